"""POST /v1/picked: what has become of a request, also on bad days."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
from kvbraid.fleet import Request, Scores
from kvbraid.policy import RouterOptions
from kvbraid.service.http.calls import Call, Context
from kvbraid.service.http.routes import pick_at_once
from kvbraid.service.routing import Routing

from tests.service.picks import (
    Fleet,
    RememberingIndex,
    fleet_of,
    hold,
)
from tests.service.score_app import refusal


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


def test_a_request_is_booked_until_its_end_and_waits_until_its_first_token(fleet: Fleet) -> None:
    pick = fleet.pick(candidates=["a"])["pick"]
    assert fleet.pick(candidates=["a"], request_id="w")["terms"]["wait"] > 0
    fleet.report("w", "failed")
    assert fleet.report(pick, "first_token") == "noted"
    assert fleet.report(pick, "first_token") == "noted"
    assert fleet.pick(candidates=["a"], request_id="w")["terms"]["wait"] == 0
    assert fleet.running()["a"] == 2
    assert fleet.report(pick, "end") == "noted"
    assert fleet.running()["a"] == 1


def test_reports_of_picks_that_are_unknown_late_or_twice_are_counted(fleet: Fleet) -> None:
    assert fleet.report("never", "first_token") == "unknown"
    assert fleet.report("never", "failed") == "unknown"
    pick = fleet.pick()["pick"]
    assert [fleet.report(pick, "end") for _ in range(2)] == ["noted", "unknown"]
    late = fleet.pick()["pick"]
    fleet.clock.now += 601
    assert sum(fleet.running().values()) == 0
    assert [fleet.report(late, event) for event in ("first_token", "end")] == ["unknown"] * 2
    assert fleet.metrics("kvbraid_pick_reports_total") == {
        '{event="first_token",status="unknown"}': 2, '{event="failed",status="unknown"}': 1,
        '{event="end",status="noted"}': 1, '{event="end",status="unknown"}': 2,
    }  # fmt: skip
    assert fleet.metrics("kvbraid_pick_bookings_total")['{what="released_by_time"}'] == 1
    assert fleet.index.num_promised() == 0


def test_a_request_that_failed_left_nothing(fleet: Fleet) -> None:
    first = fleet.pick(request_id="1")
    fleet.report("1", "failed")
    assert fleet.pick(request_id="2", candidates=[first["pod"]])["resumable"] == 0


def test_a_clock_that_jumps_loses_no_booking_and_keeps_none_for_ever(fleet: Fleet) -> None:
    pick = fleet.pick()["pick"]
    fleet.clock.now -= 500
    again = fleet.pick(request_id="back")
    assert again["terms"]["wait"] >= 0
    assert fleet.report(pick, "first_token") == "noted"
    assert fleet.report(pick, "end") == "noted"
    fleet.clock.now += 1e9
    assert fleet.pick(request_id="later")["terms"]["wait"] == 0
    assert fleet.report("back", "end") == "unknown"
    assert sum(fleet.running().values()) == 1


def test_what_was_delivered_is_summed_beside_what_was_promised(fleet: Fleet) -> None:
    hold(fleet.index, "b", 96)
    pick = fleet.pick(candidates=["b"])["pick"]
    fleet.report(pick, "first_token")
    fleet.report(pick, "end", cached_tokens=80)
    fleet.report(pick, "end", cached_tokens=80)  # Twice: it is not summed again.
    assert fleet.metrics("kvbraid_pick_tokens_total") == {
        '{tokens="prompt"}': 160, '{tokens="lower"}': 96, '{tokens="upper"}': 96,
        '{tokens="resumable"}': 96, '{tokens="delivered"}': 80,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("event", "tokens", "told"),
    [
        ("end", 161, "cached_tokens is 161 of a prompt of 160 tokens"),
        (
            "first_token",
            9,
            "cached_tokens with event first_token; expected it with event end alone",
        ),
        ("failed", 0, "cached_tokens with event failed; expected it with event end alone"),
        (
            "end",
            {"cached_tokens": 6, "prompt_tokens": 5},
            "cached_tokens is 6 of a prompt of 5 tokens",
        ),
        (
            "first_token",
            {"prompt_tokens": 160},
            "prompt_tokens with event first_token; expected it with event end alone",
        ),
    ],
)
def test_tokens_that_no_request_can_have_reused_are_refused_and_change_nothing(
    fleet: Fleet, event: str, tokens: int | dict[str, int], told: str
) -> None:
    pick = fleet.pick()["pick"]
    given = {"cached_tokens": tokens} if isinstance(tokens, int) else tokens
    body = {"pick": pick, "event": event, **given}
    answer = refusal(fleet.client.post("/v1/picked", json=body))
    assert answer == (400, "invalid_value", told)
    reports = fleet.metrics("kvbraid_pick_reports_total")
    assert reports == {f'{{event="{event}",status="refused"}}': 1}
    assert fleet.report(pick, "end") == "noted"


def test_promises_are_counted_until_they_end(fleet: Fleet) -> None:
    for name in "12":
        fleet.pick(request_id=name)
    assert fleet.metrics("kvbraid_promises")[""] == 2
    fleet.report("1", "failed")
    assert fleet.metrics("kvbraid_promises")[""] == 1
    fleet.report("2", "end", cached_tokens=0)
    assert fleet.metrics("kvbraid_promises")[""] == 1
    fleet.clock.now += RouterOptions().remember_s
    assert fleet.metrics("kvbraid_promises")[""] == 0


def test_above_the_limit_the_oldest_booking_is_given_up_and_counted() -> None:
    routing = Routing(options=RouterOptions(most_bookings=3))
    for fleet in fleet_of(routing):
        for number in range(5):
            fleet.pick(request_id=str(number))
        assert fleet.metrics("kvbraid_bookings")[""] == 3
        assert [fleet.report(str(n), "end") for n in (0, 1, 2)] == ["unknown", "unknown", "noted"]
        counted = fleet.metrics("kvbraid_pick_bookings_total")
        assert counted['{what="bookings_over_limit"}'] == 2


def test_picks_and_reports_of_several_data_planes_at_once_leave_nothing(fleet: Fleet) -> None:
    start = threading.Barrier(4)

    def live(number: int) -> None:
        start.wait()
        for turn in range(20):
            name = f"{(number + turn) % 3}"  # Shared by all of them.
            fleet.pick(request_id=name)
            fleet.report(name, ("first_token", "end", "failed")[turn % 3])

    threads = [threading.Thread(target=live, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("0", "1", "2"):
        fleet.report(name, "failed")
    assert sum(fleet.running().values()) == 0
    reports = fleet.metrics("kvbraid_pick_reports_total")
    assert sum(reports.values()) == 4 * 20 + 3
    assert sum(fleet.metrics("kvbraid_picks_total").values()) == 4 * 20


def test_a_short_pick_is_made_on_the_loop_unless_another_thread_is_choosing() -> None:
    class Watched(RememberingIndex):
        threads: ClassVar[list[int]] = []

        def score(self, request: Request, *, with_seen: bool = False) -> Scores:
            self.threads.append(threading.get_ident())
            return super().score(request, with_seen=with_seen)

    for fleet in fleet_of(index=Watched()):
        fleet.pick()
        assert fleet.client.portal is not None
        assert Watched.threads == [fleet.client.portal.call(threading.get_ident)]
        context = cast("Context", SimpleNamespace(service=fleet.service))
        call = Call(b'{"model":"m","token_ids":[1]}')
        with fleet.service.picking._router._lock:
            assert pick_at_once(context, call) is None
        assert pick_at_once(context, call) is not None
        assert pick_at_once(context, Call(bytes(1_000_000))) is None
