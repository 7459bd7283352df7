"""POST /v1/pick and /v1/picked: a rank for each request, booked once, and what is reported."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from httpx import Response
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet import FleetIndex, Request, Scores, Seen
from kvbraid.ids import PodId, PodState
from kvbraid.policy import BASELINES, RouterOptions, Seconds
from kvbraid.policy import Terms as PolicyTerms
from kvbraid.service.answers import CostTerms
from kvbraid.service.config import Limits, ServerOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.http.routes import Call, Context, pick_at_once
from kvbraid.service.picking import MOST_FALLBACKS, Picking
from kvbraid.service.registry import Service
from kvbraid.service.routing import Routing

from tests.service.fakes import FakeFeed
from tests.service.in_process import TestClient
from tests.service.score_app import refusal

TOPOLOGY = {"groups": [{"kind": "full_attention", "block_size": 16}]}
POD: dict[str, Any] = {"model": "m", "endpoint": "tcp://h:5557", "topology": TOPOLOGY}
PROMPT = list(range(160))
REUSED = 144
"""What the same prompt again can reuse: at least one token is always computed."""


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Fleet:
    """A client of a service of two pods, whose time stands still until it is told."""

    def __init__(self, client: TestClient, index: FleetIndex, service: Service, clock: Clock):
        self.client, self.index, self.service, self.clock = client, index, service, clock

    def put(self, pod: str, **fields: object) -> str:
        body = {**POD, "url": f"http://{pod}:8000", **fields}
        return str(self.client.put(f"/v1/pods/{pod}", json=body).json()["status"])

    def ask(self, **fields: object) -> Response:
        body = {"model": "m", "token_ids": PROMPT, **fields}
        answer: Response = self.client.post("/v1/pick", json=body)
        return answer

    def pick(self, **fields: object) -> dict[str, Any]:
        answer = self.ask(**fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def report(self, pick: str, event: str, **fields: object) -> str:
        return str(self.reported(pick, event, **fields)["status"])

    def reported(self, pick: str, event: str, **fields: object) -> dict[str, Any]:
        answer = self.client.post("/v1/picked", json={"pick": pick, "event": event, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.json()["pick"] == pick
        return dict(answer.json())

    def running(self) -> dict[str, int]:
        rows = self.client.get("/v1/pods").json()["pods"]
        return {row["pod"]: row["running"] for row in rows}

    def metrics(self, name: str) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(name))
        return {labels.removeprefix(name): float(value) for labels, _, value in found}


class RememberingIndex(FleetIndex):
    """Remembers so many tokens of each prompt, or nothing."""

    remembered = Seen(160, 0, 0)

    def score(self, request: Request, *, with_seen: bool = False) -> Scores:
        scores = super().score(request, with_seen=with_seen)
        scores.seen = self.remembered
        return scores


def fleet_of(
    routing: Routing | None = None,
    limits: Limits | None = None,
    index: FleetIndex | None = None,
) -> Iterator[Fleet]:
    index, clock = index or FleetIndex(), Clock()
    picking = Picking(index, routing, clock=clock)
    service = Service(index, FakeFeed(), picking=picking, limits=limits)
    with TestClient(Application(service), base_url="http://localhost") as client:
        fleet = Fleet(client, index, service, clock)
        fleet.put("a")
        fleet.put("b")
        yield fleet
    picking._router.check_integrity()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


def hold(index: FleetIndex, pod: str, num_tokens: int) -> None:
    """Let a pod hold the beginning of the prompt, as its events say."""
    event = BlockStored(
        block_hashes=tuple(range(num_tokens // 16)), parent_block_hash=None,
        token_ids=tuple(PROMPT[:num_tokens]), block_size=16, group_idx=0,
        kv_cache_spec_kind="full_attention",
    )  # fmt: skip
    index.apply(PodId(pod), encode_batch([event]))


# ---- the answer -----------------------------------------------------------------------------


def test_a_pick_names_a_rank_its_url_its_bounds_and_what_it_costs(fleet: Fleet) -> None:
    hold(fleet.index, "b", 96)
    answer = fleet.pick(request_id="r1")
    terms = answer.pop("terms")
    cost = answer.pop("cost")
    fallback_costs = [each.pop("cost") for each in answer["fallbacks"]]
    assert answer == {
        "pick": "r1", "model": "m", "num_tokens": 160, "pod": "b", "dp_rank": 0,
        "url": "http://b:8000", "state": "exact", "lower": 96, "upper": 96, "resumable": 96,
        "present": 96, "policy": "cost", "knowledge": "events", "seconds": "default",
        "lifted": [], "left_out": {}, "candidates": None,
        "fallbacks": [{"pod": "a", "dp_rank": 0, "url": "http://a:8000"}],
    }  # fmt: skip
    assert cost == pytest.approx(sum(terms.values()))
    assert fallback_costs[0] > cost
    assert list(terms) == list(PolicyTerms._fields) == list(CostTerms.__struct_fields__)


def test_a_pick_without_an_id_gets_one_of_its_own(fleet: Fleet) -> None:
    picks = {fleet.pick()["pick"] for _ in range(3)}
    assert len(picks) == 3
    assert [fleet.report(pick, "end") for pick in picks] == ["noted"] * 3


def test_every_candidate_is_explained_to_those_who_ask(fleet: Fleet) -> None:
    hold(fleet.index, "b", 96)
    fleet.pick(request_id="first", candidates=["a"])
    candidates = {row["pod"]: row for row in fleet.pick(explain=True)["candidates"]}
    assert set(candidates) == {"a", "b"}
    assert (candidates["a"]["running"], candidates["a"]["waiting"]) == (1, 1)
    assert (candidates["a"]["resumable"], candidates["b"]["resumable"]) == (REUSED, 96)
    assert candidates["a"]["terms"]["wait"] > candidates["b"]["terms"]["wait"] == 0
    for row in candidates.values():
        assert row["cost"] == pytest.approx(sum(row["terms"].values()))


def test_no_more_than_a_few_fallbacks_are_named_and_none_twice(fleet: Fleet) -> None:
    for pod in "cdef":
        fleet.put(pod)
    fallbacks = fleet.pick()["fallbacks"]
    assert len({each["pod"] for each in fallbacks}) == len(fallbacks) == MOST_FALLBACKS


def test_token_ids_may_be_raw_with_the_fields_in_the_query(fleet: Fleet) -> None:
    query = {
        "model": "m", "request_id": "q", "priority": "-1", "session": "s", "explain": "true",
        "candidates": '[{"pod": "b", "dp_rank": 0}]',
    }  # fmt: skip
    body = b"".join(token.to_bytes(4, "little") for token in PROMPT)
    headers = {"content-type": "application/octet-stream"}
    answer = fleet.client.post("/v1/pick", params=query, content=body, headers=headers).json()
    assert (answer["pick"], answer["pod"], answer["num_tokens"]) == ("q", "b", 160)
    assert [row["pod"] for row in answer["candidates"]] == ["b"]


def test_the_coefficients_that_are_given_are_those_that_are_used() -> None:
    routing = Routing(seconds={"m": Seconds(fixed=0.0, per_token=1.0, per_pair=0.0)})
    for fleet in fleet_of(routing):
        answer = fleet.pick()
        assert (answer["seconds"], answer["terms"]["prefill"]) == ("given", 160.0)
        fleet.put("c", model="n")
        assert fleet.pick(model="n")["seconds"] == "default"


@pytest.mark.parametrize("policy", BASELINES)
def test_every_policy_answers_and_no_cost_is_infinite(policy: str) -> None:
    for fleet in fleet_of(Routing(policy=policy)):
        for pod in "cd":
            fleet.put(pod)
        answers = [fleet.pick(explain=True) for _ in range(4)]
        assert {answer["policy"] for answer in answers} == {policy}
        costs = [row["cost"] for answer in answers for row in answer["candidates"]]
        assert all(cost is None or abs(cost) < 1e20 for cost in costs)


# ---- what is booked -------------------------------------------------------------------------


def test_what_is_booked_is_promised_and_shared_by_the_next_request(fleet: Fleet) -> None:
    first = fleet.pick(request_id="1")
    second = fleet.pick(request_id="2", candidates=[first["pod"]])
    assert (first["resumable"], second["lower"], second["upper"]) == (0, 0, 0)
    assert second["resumable"] == REUSED
    assert fleet.running()[first["pod"]] == 2


def test_one_request_that_is_asked_about_three_times_is_booked_once(fleet: Fleet) -> None:
    *_, last = (fleet.pick(request_id="r")["pod"] for _ in range(3))
    assert sum(fleet.running().values()) == fleet.running()[last] == 1
    assert fleet.index.num_promised() == 1
    assert fleet.metrics("kvbraid_pick_bookings_total")['{what="asked_again"}'] == 2
    assert fleet.report("r", "end") == "noted"
    assert fleet.report("r", "end") == "unknown"
    assert sum(fleet.running().values()) == 0


def test_a_pick_that_was_refused_again_is_not_booked(fleet: Fleet) -> None:
    fleet.pick(request_id="r")
    assert refusal(fleet.ask(request_id="r", candidates=[]))[:2] == (503, "no_pod")
    assert sum(fleet.running().values()) == 0


def test_a_session_stays_where_it_is_among_equals(fleet: Fleet) -> None:
    for pod in "cdef":
        fleet.put(pod)
    seen = set()
    for number in range(8):
        answer = fleet.pick(request_id=str(number), session="s")
        fleet.report(str(number), "failed")
        seen.add(answer["pod"])
    assert len(seen) == 1


def test_a_request_does_not_wait_for_those_of_a_larger_priority(fleet: Fleet) -> None:
    fleet.pick(candidates=["a"], priority=5)
    waits = [
        fleet.pick(candidates=["a"], priority=priority)["terms"]["wait"] for priority in (9, 0)
    ]
    assert waits[0] > 0
    assert waits[1] == 0


# ---- who may be chosen ----------------------------------------------------------------------


def test_only_candidates_that_are_handed_over_are_chosen(fleet: Fleet) -> None:
    fleet.put("c", dp_size=2)
    fleet.put("n", model="n")
    given = [{"pod": "c", "dp_rank": 1}, "x", "n"]
    answer = fleet.pick(candidates=given, explain=True)
    assert (answer["pod"], answer["dp_rank"], answer["left_out"]) == ("c", 1, {"unknown": 2})
    assert len(answer["candidates"]) == 1
    every = fleet.pick(candidates=["c"], explain=True)["candidates"]
    assert [row["dp_rank"] for row in every] == [0, 1]
    filters = fleet.metrics("kvbraid_pick_filters_total")
    assert filters == {'{effect="left_out",filter="unknown"}': 1}


@pytest.mark.parametrize(
    ("candidates", "told"),
    [
        (["x"], "none of the 1 candidates serves 'm'"),
        ([{"pod": "a", "dp_rank": 1}], "none of the 1 candidates serves 'm'"),
        ([], "none of the 0 candidates serves 'm'"),
    ],
)
def test_a_request_that_nobody_may_get_is_refused_with_the_reason(
    fleet: Fleet, candidates: list[object], told: str
) -> None:
    assert refusal(fleet.ask(candidates=candidates)) == (503, "no_pod", told)
    assert fleet.index.num_promised() == 0


def test_a_pod_that_drains_gets_nothing_new_and_forgets_nothing(fleet: Fleet) -> None:
    hold(fleet.index, "b", 96)
    assert fleet.pick(request_id="r")["pod"] == "b"
    assert fleet.put("b", drain=True) == "changed"
    assert fleet.put("b", drain=True) == "unchanged"
    answer = fleet.pick()
    assert (answer["pod"], answer["left_out"]) == ("a", {"draining": 1})
    message = "no rank of 'm' may be chosen: 1 draining"
    assert refusal(fleet.ask(candidates=["b"])) == (503, "no_pod", message)
    assert fleet.running()["b"] == 1
    assert fleet.report("r", "end") == "noted"
    assert fleet.put("b") == "changed"
    again = fleet.pick(candidates=["b"])
    assert (again["lower"], again["left_out"]) == (96, {})


def test_a_pod_drains_with_the_ranks_that_only_its_engine_names(fleet: Fleet) -> None:
    fleet.index.apply(PodId("b"), encode_batch([], dp_rank=3))
    fleet.put("b", drain=True)
    answer = fleet.pick()
    assert (answer["pod"], answer["left_out"]) == ("a", {"draining": 2})


def test_a_full_pod_is_left_out_while_others_have_room(fleet: Fleet) -> None:
    hold(fleet.index, "b", 160)
    fleet.put("b", max_running=1)
    assert fleet.pick()["pod"] == "b"
    answer = fleet.pick()
    assert (answer["pod"], answer["left_out"]) == ("a", {"full": 1})
    lifted = fleet.pick(candidates=["b"])
    assert (lifted["pod"], lifted["lifted"]) == ("b", ["full"])
    assert fleet.metrics("kvbraid_pick_filters_total") == {
        '{effect="left_out",filter="full"}': 1, '{effect="lifted",filter="full"}': 1,
    }  # fmt: skip


def test_without_events_promises_are_what_is_known_and_the_answer_says_so(fleet: Fleet) -> None:
    for pod in "ab":
        fleet.index.set_state(PodId(pod), PodState.STALE, reason="not connected")
    first = fleet.pick(request_id="1")
    fleet.report("1", "end")
    again = fleet.pick()
    assert [answer["knowledge"] for answer in (first, again)] == ["promises"] * 2
    assert (again["pod"], again["resumable"]) == (first["pod"], REUSED)
    assert (again["lower"], again["lifted"]) == (0, ["stale"])
    assert fleet.metrics("kvbraid_picks_total") == {
        '{knowledge="events"}': 0, '{knowledge="promises"}': 2,
    }  # fmt: skip


def test_a_pod_that_publishes_nothing_is_known_by_what_it_was_sent(fleet: Fleet) -> None:
    for pod in "ab":
        fleet.client.delete(f"/v1/pods/{pod}").raise_for_status()
        fleet.put(pod, endpoint=None)
    first = fleet.pick(request_id="1")
    fleet.report("1", "end", cached_tokens=0)
    again = fleet.pick()
    assert (again["pod"], again["resumable"]) == (first["pod"], REUSED)
    assert (again["lower"], again["state"], again["knowledge"]) == (0, "stale", "promises")
    reasons = {row["reason"] for row in fleet.client.get("/v1/pods").json()["pods"]}
    assert reasons == {"no events: it has no endpoint"}


def test_a_pod_that_is_removed_has_no_url_and_its_requests_can_still_end(fleet: Fleet) -> None:
    pick = fleet.pick(candidates=["a"])["pick"]
    fleet.client.delete("/v1/pods/a").raise_for_status()
    assert fleet.metrics("kvbraid_bookings")[""] == 1
    assert fleet.report(pick, "first_token") == "noted"
    assert fleet.report(pick, "end", cached_tokens=7) == "noted"
    assert fleet.metrics("kvbraid_bookings")[""] == 0


def test_a_pod_that_comes_back_does_not_drain_any_more(fleet: Fleet) -> None:
    fleet.put("a", drain=True)
    fleet.client.delete("/v1/pods/a").raise_for_status()
    fleet.put("a")
    assert fleet.pick(candidates=["a"])["left_out"] == {}


# ---- reports, on bad days -------------------------------------------------------------------


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


# ---- from prompts to what was delivered ------------------------------------------------------


@pytest.fixture
def remembering() -> Iterator[Fleet]:
    yield from fleet_of(index=RememberingIndex())


def gaps(answer: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(row["gap"], row["reason"], row["tokens"]) for row in answer["gaps"]]


def test_the_end_of_a_request_is_answered_with_its_rungs_and_the_reasons_of_its_gaps() -> None:
    for fleet in fleet_of(index=RememberingIndex()):
        hold(fleet.index, "b", 96)
        first = fleet.pick(request_id="r")
        assert first["pod"] == "b"
        assert fleet.reported("r", "first_token") == {
            "pick": "r", "status": "noted", "ladder": None,
        }  # fmt: skip
        ended = fleet.reported("r", "end", cached_tokens=80, prompt_tokens=160)
        assert ended["ladder"]["rungs"] == {
            "prompt": 160, "seen": 160, "best": 96, "chosen": 96, "lower": 96, "upper": 96,
            "delivered": 80,
        }  # fmt: skip
        assert gaps(ended["ladder"]) == [
            ("best", "evicted", 64), ("delivered", "engine_recomputed", 16),
        ]  # fmt: skip
        again = fleet.reported("r", "end", cached_tokens=80)
        assert again == {"pick": "r", "status": "unknown", "ladder": None}


def test_a_prompt_on_its_way_is_reused_before_its_events_tell(remembering: Fleet) -> None:
    remembering.pick(request_id="first", candidates=["a"])
    remembering.pick(request_id="second", candidates=["a"])
    ladder = remembering.reported("second", "end", cached_tokens=REUSED)["ladder"]
    assert (ladder["rungs"]["seen"], ladder["rungs"]["chosen"]) == (160, 0)
    assert gaps(ladder) == [("best", "event_lag", 160), ("above", "event_lag", REUSED)]


def test_a_rank_that_holds_the_whole_prompt_still_computes_its_end(fleet: Fleet) -> None:
    hold(fleet.index, "b", 160)
    fleet.pick(request_id="r", candidates=["b"])
    ladder = fleet.reported("r", "end", cached_tokens=REUSED)["ladder"]
    assert gaps(ladder) == [("best", "end_of_prompt", 16)]


def test_a_better_rank_that_drains_is_the_reason_of_what_is_computed_elsewhere(
    remembering: Fleet,
) -> None:
    hold(remembering.index, "b", 96)
    remembering.put("b", drain=True)
    remembering.pick(request_id="r")
    ladder = remembering.reported("r", "end")["ladder"]
    assert gaps(ladder) == [("best", "evicted", 64), ("chosen", "left_out", 96)]
    assert ladder["rungs"]["delivered"] is None


def test_a_hybrid_that_lacks_a_state_holds_tokens_that_it_cannot_resume_from(
    remembering: Fleet,
) -> None:
    groups = [{"kind": "full_attention", "block_size": 16}, {"kind": "mamba", "block_size": 16}]
    remembering.put("b", topology={"groups": groups})
    hold(remembering.index, "b", 128)
    remembering.pick(request_id="r", candidates=["b"])
    ladder = remembering.reported("r", "end", cached_tokens=0)["ladder"]
    assert gaps(ladder) == [("best", "state_missing", 160)]


def test_an_engine_that_counts_another_prompt_has_other_tokens(fleet: Fleet) -> None:
    hold(fleet.index, "b", 96)
    fleet.pick(request_id="r", candidates=["b"])
    ladder = fleet.reported("r", "end", cached_tokens=170, prompt_tokens=171)["ladder"]
    assert ladder["rungs"]["delivered"] == 160
    assert gaps(ladder)[1:] == [("above", "tokens_differ", 64)]


def test_the_sums_are_of_tokens_and_the_same_in_every_place() -> None:
    index = RememberingIndex()
    for fleet in fleet_of(index=index):
        assert fleet.client.get("/v1/ladder").json() == {"models": []}
        hold(fleet.index, "b", 96)
        for name, cached in (("1", 96), ("2", None)):
            fleet.pick(request_id=name, candidates=["b"])
            fleet.report(name, "end", **({} if cached is None else {"cached_tokens": cached}))
        index.remembered = Seen(32, 0, 1)
        fleet.pick(request_id="3", candidates=["b"], token_ids=[*PROMPT[:96], 7])
        fleet.report("3", "end", cached_tokens=0)
        fleet.pick(request_id="4")
        fleet.report("4", "failed")
        fleet.pick(request_id="5", token_ids=[])
        assert fleet.reported("5", "end", cached_tokens=0)["ladder"] is None
        (model,) = fleet.client.get("/v1/ladder").json()["models"]
        assert {name: model[name] for name in ("model", "ended", "reported", "raised")} == {
            "model": "m", "ended": 3, "reported": 2, "raised": 1,
        }  # fmt: skip
        assert model["rungs"] == {
            "prompt": 417, "seen": 416, "best": 288, "chosen": 288, "lower": 288, "upper": 288,
            "delivered": 96,
        }  # fmt: skip
        assert gaps(model) == [
            ("seen", "forgotten", 1), ("best", "evicted", 64), ("best", "event_lag", 64),
            ("delivered", "engine_recomputed", 96), ("delivered", "not_reported", 96),
        ]  # fmt: skip
        rungs = fleet.metrics("kvbraid_ladder_tokens_total")
        assert rungs == {
            f'{{model="m",rung="{name}"}}': tokens for name, tokens in model["rungs"].items()
        }
        assert fleet.metrics("kvbraid_ladder_gap_tokens_total") == {
            f'{{gap="{gap}",model="m",reason="{reason}"}}': tokens
            for gap, reason, tokens in gaps(model)
        }
        assert fleet.metrics("kvbraid_ladder_requests_total") == {
            '{model="m",what="ended"}': 3, '{model="m",what="reported"}': 2,
            '{model="m",what="raised"}': 1,
        }  # fmt: skip


def test_a_pod_that_is_removed_meanwhile_is_promised_nothing() -> None:
    class Gone(FleetIndex):
        def score(self, request: Request, *, with_seen: bool = False) -> Scores:
            scores = super().score(request, with_seen=with_seen)
            self.remove(PodId("a"))
            self.remove(PodId("b"))
            return scores

    for fleet in fleet_of(index=Gone()):
        fleet.pick(request_id="r")
        assert fleet.metrics("kvbraid_pick_bookings_total")['{what="removed_meanwhile"}'] == 1
        assert fleet.reported("r", "end", cached_tokens=0)["ladder"] is not None


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "told"),
    [
        ({"model": "x"}, 404, "unknown_model", "'x'"),
        ({"token_ids": [2**64]}, 400, "malformed_body", "$.token_ids[0]"),
        ({"token_ids": None}, 400, "malformed_body", "token_ids"),
        ({"request_id": ""}, 400, "malformed_body", "request_id: Expected `str` of length >= 1"),
        ({"request_id": "x" * 257}, 400, "malformed_body", "request_id"),
        ({"session": "x" * 1025}, 400, "malformed_body", "session"),
        ({"priority": 2**31}, 400, "malformed_body", "priority"),
        ({"priority": 0.5}, 400, "malformed_body", "priority"),
        ({"candidates": "a"}, 400, "malformed_body", "candidates"),
        ({"candidates": [1]}, 400, "malformed_body", "candidates[0]: Expected `str | object`"),
        ({"candidates": [{"pod": "a"}]}, 400, "malformed_body", "candidates[0]"),
        ({"candidates": [{"pod": "a", "dp_rnk": 0}]}, 400, "malformed_body", "mean dp_rank?"),
        ({"pods": ["a"]}, 400, "malformed_body", "unknown key pods"),
        ({"prompt": "Hi"}, 400, "malformed_body", "unknown key prompt"),
    ],
)
def test_what_is_no_pick_is_refused_and_books_nothing(
    fleet: Fleet, change: dict[str, Any], status: int, code: str, told: str
) -> None:
    answer = refusal(fleet.ask(**change))
    assert answer[:2] == (status, code)
    assert told in answer[2]
    assert sum(fleet.running().values()) == 0


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("model=m&candidates=a,b", "query: candidates: not JSON"),
        ("model=m&candidates=[1]", "query: candidates[0]: Expected `str | object`"),
        ("model=m&pods=a", "query: unknown key pods"),
        ("model=m&explain=perhaps", "query: explain"),
        ("candidates=[]", "`model`"),
    ],
)
def test_a_query_that_is_no_pick_is_refused(fleet: Fleet, query: str, told: str) -> None:
    headers = {"content-type": "application/octet-stream"}
    answer = fleet.client.post(f"/v1/pick?{query}", content=bytes(4), headers=headers)
    assert refusal(answer)[:2] == (400, "malformed_body")
    assert told in refusal(answer)[2]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"pick": "p"}, "event"),
        ({"event": "end"}, "pick"),
        ({"pick": "p", "event": "begun"}, "event: Invalid enum value 'begun'"),
        ({"pick": "", "event": "end"}, "pick: Expected `str` of length >= 1"),
        ({"pick": "p", "event": "end", "cached_tokens": -1}, "cached_tokens: Expected `int` >= 0"),
        ({"pick": "p", "event": "end", "cached": 1}, "unknown key cached; did you mean"),
    ],
)
def test_what_is_no_report_is_refused(fleet: Fleet, body: dict[str, object], told: str) -> None:
    answer = refusal(fleet.client.post("/v1/picked", json=body))
    assert answer[:2] == (400, "malformed_body")
    assert told in answer[2]


def test_a_prompt_keeps_the_limit_of_tokens() -> None:
    for fleet in fleet_of(limits=Limits(tokens=9)):
        assert refusal(fleet.ask())[:2] == (413, "too_many_tokens")
        assert fleet.ask(token_ids=[1] * 9).status_code == 200


def test_an_empty_prompt_is_sent_somewhere(fleet: Fleet) -> None:
    answer = fleet.pick(token_ids=[])
    assert (answer["num_tokens"], answer["resumable"]) == (0, 0)


def test_both_need_the_permission_of_a_change(fleet: Fleet) -> None:
    bodies = {
        "/v1/pick": {"model": "m", "token_ids": PROMPT},
        "/v1/picked": {"pick": "p", "event": "end"},
    }
    guarded = Access.of(ServerOptions(token="t"))
    with TestClient(Application(fleet.service, access=guarded)) as client:
        for path, body in bodies.items():
            assert refusal(client.post(path, json=body))[:2] == (401, "unauthorized")
            allowed = {"authorization": "Bearer t"}
            assert client.post(path, json=body, headers=allowed).status_code == 200
    local = Access.of(ServerOptions())
    away = Application(fleet.service, access=local)
    with TestClient(away, base_url="http://evil.example") as client:
        for path, body in bodies.items():
            assert refusal(client.post(path, json=body))[:2] == (403, "foreign_host")
    off = Application(fleet.service, access=Access.of(ServerOptions(host="0.0.0.0")))
    with TestClient(off) as client:
        for path, body in bodies.items():
            assert refusal(client.post(path, json=body))[:2] == (403, "registration_off")
    assert sum(fleet.running().values()) == 1
