"""POST /v1/pick: a rank for each request, booked once, and who may be chosen."""

from collections.abc import Iterator

import pytest
from kvbraid.events.wire import encode_batch
from kvbraid.ids import PodId, PodState
from kvbraid.policy import BASELINES, RouterOptions, Seconds
from kvbraid.policy import Terms as PolicyTerms
from kvbraid.policy.fitting import LEAST
from kvbraid.service.answers import CostTerms
from kvbraid.service.picking import MOST_FALLBACKS
from kvbraid.service.routing import Routing

from tests.service.picks import PROMPT, REUSED, Fleet, fleet_of, hold
from tests.service.score_app import refusal


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


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
        "present": 96, "policy": "cost", "knowledge": "events", "seconds": "default", "fit": None,
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


def test_coefficients_are_fitted_to_what_prompts_take_if_that_is_wanted() -> None:
    given = Seconds(fixed=0.0, per_token=1.0, per_pair=0.0)
    for fleet in fleet_of(
        Routing(seconds={"m": given}, options=RouterOptions(fit=frozenset({"m"})))
    ):
        answers = []
        for number in range(LEAST + 1):
            tokens = [1000 * number + each for each in range(16 * (1 + number % 5))]
            answers.append(fleet.pick(request_id="r", token_ids=tokens))
            fleet.clock.now += 1 + 3 * len(tokens)
            fleet.report("r", "first_token")
            fleet.clock.now += 900
            counted = {"cached_tokens": 0, "prompt_tokens": len(tokens)}
            fleet.report("r", "end", **counted)
        assert (answers[0]["seconds"], answers[0]["fit"]["num_samples"]) == ("given", 0)
        assert (answers[0]["fit"]["fixed"], answers[0]["fit"]["per_token"]) == (0.0, 1.0)
        assert answers[-1]["seconds"] == "fitted"
        assert answers[-1]["fit"] == pytest.approx(
            {"num_samples": LEAST, "fixed": 1.0, "per_token": 3.0, "per_pair": 0.0}
        )
        counts = fleet.metrics("kvbraid_pick_bookings_total")
        assert counts['{what="fit_samples"}'] == LEAST + 1


def test_an_engine_that_counts_another_prompt_tells_nothing_of_prefills() -> None:
    for fleet in fleet_of(Routing(options=RouterOptions(fit=frozenset({"m"})))):
        assert fleet.pick(request_id="r")["seconds"] == "default"
        fleet.clock.now += 1
        fleet.report("r", "first_token")
        fleet.clock.now += 1
        fleet.report("r", "end", cached_tokens=0, prompt_tokens=161)
        counts = fleet.metrics("kvbraid_pick_bookings_total")
        assert counts['{what="fit_not_reported"}'] == 1


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
