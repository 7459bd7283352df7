"""Who is waited for after the start, and for how long."""

from kvbraid.ids import PodState
from kvbraid.service.answers import FeedRow
from kvbraid.service.readiness import Readiness


def row(pod: str, state: PodState, *, rank: int = 0, is_rebuilt: bool = False) -> FeedRow:
    return FeedRow(pod=pod, dp_rank=rank, last_seq=None, state=state, is_rebuilt=is_rebuilt)


UNTRIED = row("c", PodState.STALE)
REBUILDING = row("b", PodState.REBUILDING)
LOST_AGAIN = row("a", PodState.STALE, is_rebuilt=True)


def test_a_pod_is_missing_until_its_first_rebuild_has_ended() -> None:
    readiness = Readiness(60.0, clock=lambda: 0.0)
    assert readiness.missing([]) == ""
    assert readiness.missing([REBUILDING]) == "in the first rebuild: b"
    assert readiness.missing([UNTRIED]) == "not connected: c"
    assert readiness.missing([LOST_AGAIN]) == ""
    assert readiness.missing([row("a", PodState.DEGRADED, is_rebuilt=True)]) == ""


def test_pods_are_named_once_and_sorted_by_what_they_lack() -> None:
    rows = [UNTRIED, REBUILDING, row("a", PodState.STALE), row("a", PodState.STALE, rank=1)]
    told = Readiness(60.0, clock=lambda: 0.0).missing(rows)
    assert told == "not connected: a, c; in the first rebuild: b"


def test_a_pod_is_missing_if_one_of_its_ranks_is() -> None:
    rows = [row("a", PodState.EXACT, is_rebuilt=True), row("a", PodState.REBUILDING, rank=1)]
    assert Readiness(60.0, clock=lambda: 0.0).missing(rows) == "in the first rebuild: a"


def test_nobody_is_waited_for_longer_than_the_limit_after_the_start() -> None:
    now = [1000.0]
    readiness = Readiness(60.0, clock=lambda: now[0])
    now[0] = 1059.9
    assert readiness.missing([UNTRIED, REBUILDING])
    now[0] = 1060.0
    assert readiness.missing([UNTRIED, REBUILDING]) == ""
    assert readiness.missing([row("later", PodState.STALE)]) == ""


def test_a_limit_of_nothing_waits_for_nobody() -> None:
    assert Readiness(0.0, clock=lambda: 5.0).missing([UNTRIED, REBUILDING]) == ""
