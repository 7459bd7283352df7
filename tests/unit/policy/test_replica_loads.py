"""What other replicas have booked: its sums after every step, its age, and what a router does."""

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kvbraid.errors import FullError, UnknownError
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId
from kvbraid.policy import EngineLoad, RankLoad, Router, RouterOptions, Seconds, Standing
from kvbraid.policy.replica_loads import MOST_REPLICAS, NOTHING, ReplicaLoads
from kvbraid.policy.view import RankId
from kvbraid.spec import GroupSpec, SpecKind, Topology

A, B = (PodId("a"), 0), (PodId("b"), 0)
SECONDS = Seconds(fixed=0.5, per_token=1e-12, per_pair=0.0)
"""Any prefill takes half a second."""
BUSY = RankLoad(running=4, running_tokens=90, waiting=3, waiting_tokens=60, wait_us=1_500_000)


def router(**options: float) -> Router:
    index = FleetIndex()
    attention = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
    for pod, _ in (A, B):
        index.register(pod, model="m", topology=attention)
    made = RouterOptions(**options)  # type: ignore[arg-type]
    return Router(index, seconds={"m": SECONDS}, options=made, chance=Random(1))


def request(first: int = 0) -> Request:
    return Request(model="m", token_ids=range(first, first + 64))


def test_what_a_replica_has_booked_makes_a_rank_wait_and_ends_by_age() -> None:
    asked = router()
    assert asked.merge("other", {A: BUSY}, now=10.0)
    decision = asked.pick("r", request(), now=10.5)
    assert decision.rank == B
    view, terms = decision.view, dict(zip(decision.view.ranks, decision.terms(), strict=True))
    assert (terms[A].wait, terms[A].others) == (0.0, 1.5)
    columns = (view.wait, view.running, view.running_tokens, view.waiting, view.waiting_tokens)
    row = view.ranks.index(A)
    assert [column[row] for column in columns] == [1.5, 4, 90, 3, 60]
    assert asked.replica_ages_s(now=10.9) == {"other": pytest.approx(0.9)}
    assert asked.pick("s", request(), now=11.0, candidates=[A]).view.wait == [0.0]
    assert asked.replica_ages_s(now=11.0) == {}
    asked.check_integrity()


def test_what_is_booked_here_is_what_another_replica_takes() -> None:
    one, other = router(), router()
    one.pick("r", request(), now=0.0, candidates=[A])
    one.pick("s", request(1000), now=0.0, candidates=[A])
    one.first_token("r", now=0.5)
    booked = one.booked(now=0.75)
    assert booked == {A: RankLoad(2, 128, 1, 64, 250_000)}
    other.merge("one", booked, now=5.0)
    view = other.pick("t", request(2000), now=5.0, candidates=[A]).view
    assert (view.wait, view.running, view.waiting) == ([0.25], [2], [1])
    assert router().booked(now=0.0) == {}


def test_requests_of_replicas_are_not_counted_again_where_an_engine_counts_them() -> None:
    asked = router()
    asked.merge("other", {A: BUSY}, now=0.0)
    asked.pick("mine", request(), now=0.0, candidates=[A])
    asked.note_load(A, EngineLoad(running=3, waiting=5), now=0.0)  # 4 and 1 are known, 3 are not.
    view = asked.pick("r", request(), now=0.1, candidates=[A]).view
    assert view.running == [8]


def test_by_the_word_of_a_replica_alone_nobody_is_refused() -> None:
    asked = router()
    for rank in (A, B):
        asked.set_standing(rank[0], Standing(max_running=2))
    asked.merge("liar", {rank: BUSY._replace(running=1 << 20) for rank in (A, B)}, now=0.0)
    for number in range(4):
        asked.pick(f"{number}", request(), now=0.0, may_overfill=False)
    with pytest.raises(FullError):  # Now both are full of our own.
        asked.pick("4", request(), now=0.0, may_overfill=False)
    other = router()
    other.set_standing(A[0], Standing(max_running=2))
    other.merge("liar", {A: BUSY}, now=0.0)
    other.note_load(A, EngineLoad(running=2), now=0.0)  # This the engine says.
    with pytest.raises(FullError):
        other.pick("r", request(), now=0.0, candidates=[A], may_overfill=False)
    assert other.pick("r", request(), now=0.0, may_overfill=False).rank == B


def test_a_request_of_another_replica_counts_as_on_its_way_for_its_time() -> None:
    asked = router()
    assert asked.promise(A, request(), lasts_s=2.0, now=0.0)
    assert asked.pick("r", request(), now=0.1).rank == A
    assert asked.pick("r", request(), now=0.1).resumable == 48
    asked.fail("r", now=0.1)
    asked.check_integrity()
    assert asked.pick("s", request(), now=2.0, candidates=[A]).resumable == 0
    asked.check_integrity()
    assert not asked.promise((PodId("c"), 0), request(), lasts_s=2.0, now=0.0)
    with pytest.raises(UnknownError):
        asked.promise(A, Request(model="x", token_ids=[1]), lasts_s=2.0, now=0.0)


def test_where_nothing_in_flight_counts_the_requests_of_others_do_not() -> None:
    asked = router(in_flight=False)
    assert not asked.promise(A, request(), lasts_s=2.0, now=0.0)
    assert asked.pick("r", request(), now=0.0, candidates=[A]).resumable == 0


def test_a_shorter_age_counts_at_once() -> None:
    asked = router()
    asked.merge("other", {A: BUSY}, now=0.0)
    asked.route_by(seconds={"m": SECONDS}, options=RouterOptions(replica_age_s=0.2))
    assert asked.replica_ages_s(now=0.3) == {}


RANKS = st.sampled_from([A, B, (PodId("c"), 3)])
LOADS = st.dictionaries(RANKS, st.builds(RankLoad, *[st.integers(0, 1 << 40)] * 5))


class Lives(RuleBasedStateMachine):
    """Replicas come, speak and fall silent, more of them than count."""

    def __init__(self) -> None:
        super().__init__()
        self.loads, self.now = ReplicaLoads(age_s=1.0), 0.0
        self.model: dict[str, tuple[float, dict[RankId, RankLoad]]] = {}

    @rule(name=st.integers(0, MOST_REPLICAS + 4).map(str), loads=LOADS)
    def merge(self, name: str, loads: dict[RankId, RankLoad]) -> None:
        self.end_old()
        counts = name in self.model or len(self.model) < MOST_REPLICAS
        assert self.loads.merge(name, loads, self.now) is counts
        if counts:
            self.model[name] = (self.now, loads)

    @rule(gap=st.floats(0, 2))
    def wait(self, gap: float) -> None:
        self.now += gap

    def end_old(self) -> None:
        self.model = {n: it for n, it in self.model.items() if self.now - it[0] < 1.0}

    @invariant()
    def agrees(self) -> None:
        self.end_old()
        ranks = [A, B, (PodId("c"), 3), (PodId("d"), 0)]
        expected = {}
        for row, rank in enumerate(ranks):
            said = [loads[rank] for _, loads in self.model.values() if rank in loads]
            total = RankLoad(*map(sum, zip(*said, strict=True))) if said else NOTHING
            if total != NOTHING:
                expected[row] = total
        assert self.loads.sums(ranks, self.now) == expected
        assert self.loads.ages_s(self.now).keys() == self.model.keys()
        self.loads.check_integrity()


TestLives = Lives.TestCase
