"""The router over a real index: what is booked, promised, released, left out and preferred."""

from collections import Counter
from math import isfinite
from random import Random

import pytest
from kvbraid.errors import NoRankError, UnknownError
from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId, PodState
from kvbraid.policy import (
    BASELINES,
    CostRule,
    Decision,
    Router,
    RouterOptions,
    RoutingPolicy,
    Seconds,
    Standing,
)
from kvbraid.policy.view import RankId
from kvbraid.spec import GroupSpec, SpecKind, Topology

ATTENTION = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
PODS = tuple(PodId(name) for name in "abc")
SECONDS = {"m": Seconds(fixed=0.01, per_token=1e-4, per_pair=0.0)}


def fleet() -> FleetIndex:
    index = FleetIndex()
    for pod in PODS:
        index.register(pod, model="m", topology=ATTENTION)
    return index


def router(
    index: FleetIndex, policy: RoutingPolicy | None = None, options: RouterOptions | None = None
) -> Router:
    return Router(index, policy, seconds=SECONDS, options=options, chance=Random(1))


def prompt(first: int = 0, tokens: int = 1600) -> Request:
    return Request(model="m", token_ids=range(first, first + tokens))


def store(index: FleetIndex, pod: PodId, request: Request) -> None:
    tokens = tuple(request.token_ids)
    hashes = tuple(1 + tokens[0] + block for block in range(len(tokens) // 16))
    event = BlockStored(
        block_hashes=hashes, parent_block_hash=None, token_ids=tokens, block_size=16, group_idx=0
    )
    assert index.apply(pod, encode_batch([event])).refused == 0


def test_what_is_on_its_way_counts_until_the_events_tell_of_it() -> None:
    index = fleet()
    routes = router(index)
    first = routes.pick("1", prompt(), now=0.0)
    assert (first.lower, first.upper, first.resumable, first.knowledge) == (0, 0, 0, "events")
    second = routes.pick("2", prompt(), now=0.001)
    assert (second.rank, second.resumable) == (first.rank, 1584)
    assert (second.lower, second.upper) == (0, 0)  # Nothing has been told yet.
    store(index, first.rank[0], prompt())
    assert index.num_promised() == 0
    assert routes.pick("3", prompt(), now=0.2).lower == 1584
    routes.check_integrity()


def test_a_promise_outlives_the_first_token_by_its_grace_and_a_failure_not_at_all() -> None:
    index = fleet()
    routes = router(index, options=RouterOptions(grace_s=2.0))
    routes.pick("kept", prompt(), now=0.0)
    routes.pick("failed", prompt(5000), now=0.0)
    assert index.num_promised() == 2
    assert routes.fail("failed", now=0.1)
    assert index.num_promised() == 1
    assert routes.first_token("kept", now=0.2)
    assert routes.end("kept", now=0.3)
    routes.release(now=2.1)
    assert index.num_promised() == 1
    routes.release(now=2.3)
    assert index.num_promised() == 0
    routes.check_integrity()


def test_a_request_asked_about_three_times_is_booked_once() -> None:
    index = fleet()
    routes = router(index)
    for number in range(3):
        routes.pick("same", prompt(), now=0.01 * number)
        routes.check_integrity()
    assert (routes.num_booked(), index.num_promised()) == (1, 1)
    assert routes.counts() == {"picked": 3, "asked_again": 2}


def test_reports_that_are_late_twice_or_of_nobody_are_counted() -> None:
    routes = router(fleet())
    routes.pick("1", prompt(), now=0.0)
    assert routes.first_token("1", now=0.1)
    assert routes.first_token("1", now=0.2)  # Still in flight: it changes nothing.
    assert routes.end("1", now=0.3)
    assert not routes.end("1", now=0.4)
    assert not routes.first_token("1", now=0.5)
    assert not routes.fail("never", now=0.6)
    assert routes.counts()["unknown_reports"] == 3
    assert routes.num_booked() == 0


def test_what_nobody_reports_is_released_by_time() -> None:
    index = fleet()
    routes = router(index, options=RouterOptions(hold_s=10.0))
    routes.pick("lost", prompt(), now=0.0)
    routes.pick("next", prompt(5000), now=9.0)
    assert routes.num_booked() == 2
    routes.release(now=10.0)
    assert (routes.num_booked(), index.num_promised()) == (1, 1)
    assert routes.counts()["released_by_time"] == 1


def test_above_its_limit_the_oldest_booking_is_released() -> None:
    index = fleet()
    routes = router(index, options=RouterOptions(most_bookings=2))
    for number in range(4):
        routes.pick(str(number), prompt(5000 * number), now=float(number))
        routes.check_integrity()
    assert (routes.num_booked(), index.num_promised()) == (2, 2)
    assert routes.counts()["bookings_over_limit"] == 2
    assert not routes.end("0", now=5.0)


def test_without_reports_of_first_tokens_the_predicted_time_counts() -> None:
    routes = router(fleet(), options=RouterOptions(first_tokens=False))
    one = [(PODS[0], 0)]
    routes.pick("1", prompt(), now=0.0, candidates=one)
    assert routes.pick("2", prompt(5000), now=0.1, candidates=one).view.wait == pytest.approx(
        [0.07]
    )
    assert routes.pick("3", prompt(9000), now=9.0, candidates=one).view.wait == [0.0]


@pytest.mark.parametrize(
    ("standing", "reason"),
    [(Standing(is_ready=False), "not_ready"), (Standing(drains=True), "draining")],
)
def test_a_rank_that_must_get_nothing_gets_nothing(standing: Standing, reason: str) -> None:
    index = fleet()
    routes = router(index)
    store(index, PODS[0], prompt())
    routes.set_standing((PODS[0], 0), standing)
    decision = routes.pick("1", prompt(), now=0.0)
    assert decision.rank[0] != PODS[0]
    assert decision.left_out == {reason: 1}
    for pod in PODS:
        routes.set_standing((pod, 0), standing)
    with pytest.raises(NoRankError, match=f"no rank of 'm' may be chosen: 3 {reason}"):
        routes.pick("2", prompt(), now=0.0)
    routes.forget((PODS[2], 0))
    assert routes.pick("3", prompt(), now=0.0).rank == (PODS[2], 0)


def test_full_stale_stuck_and_foreign_ranks_are_left_out_unless_all_are() -> None:
    index = fleet()
    routes = router(index, options=RouterOptions(stuck_s=5.0))
    index.set_state(PODS[0], PodState.STALE)
    routes.set_standing((PODS[1], 0), Standing(loras=frozenset({"other"})))
    lora = Request(model="m", token_ids=range(64), lora="mine")
    decision = routes.pick("1", lora, now=0.0)
    assert decision.rank == (PODS[2], 0)
    assert decision.left_out == {"stale": 1, "lora_not_loaded": 1}
    assert decision.lifted == ()
    decision = routes.pick("2", lora, now=60.0)  # c has not answered for a minute.
    assert (decision.rank, decision.lifted) == ((PODS[1], 0), ("lora_not_loaded",))
    assert decision.left_out == {"stuck": 1, "stale": 1}
    routes.set_standing((PODS[0], 0), Standing(max_running=0))
    only = routes.pick("3", lora, now=60.0, candidates=[(PODS[0], 0)])
    assert only.lifted == ("stale", "full")
    assert only.knowledge == "promises"


def test_a_pod_stands_for_its_ranks_of_which_nothing_is_said() -> None:
    index = FleetIndex()
    index.register(PODS[0], model="m", topology=ATTENTION, dp_size=2)
    routes = router(index)
    index.apply(PODS[0], encode_batch([], dp_rank=7))  # A rank that its engine names.
    routes.set_standing(PODS[0], Standing(drains=True))
    with pytest.raises(NoRankError, match="may be chosen: 3 draining"):
        routes.pick("1", prompt(), now=0.0)
    routes.set_standing((PODS[0], 1), Standing())
    decision = routes.pick("1", prompt(), now=0.0)
    assert (decision.rank, decision.left_out) == ((PODS[0], 1), {"draining": 2})
    routes.forget(PODS[0])
    assert routes.pick("1", prompt(), now=0.0).left_out == {}


def test_what_is_booked_can_be_asked_for() -> None:
    index = fleet()
    store(index, PODS[1], prompt(tokens=800))
    routes = router(index)
    decision = routes.pick("1", prompt(), now=0.0, candidates=[(PODS[1], 0)])
    booking = routes.booking("1")
    assert booking is not None
    assert (booking.lower, booking.upper, booking.tokens, booking.computes) == (
        decision.lower, decision.upper, 1600, 800,
    )  # fmt: skip
    assert [routes.running((pod, 0)) for pod in PODS] == [0, 1, 0]
    routes.end("1", now=1.0)
    assert routes.booking("1") is None
    assert routes.running((PODS[1], 0)) == 0


@pytest.mark.parametrize("name", BASELINES)
def test_the_terms_of_the_chosen_rank_are_those_of_its_place(name: str) -> None:
    decision = router(fleet(), BASELINES[name]()).pick("1", prompt(), now=0.0)
    every = decision.terms()
    assert decision.chosen_terms() == (every[decision.place] if every else None)


def test_a_booking_keeps_the_note_that_is_made_of_its_decision_before_its_promise() -> None:
    index = fleet()
    promised: list[int] = []

    def note(decision: Decision) -> tuple[RankId, int]:
        promised.append(index.num_promised())
        assert decision.columns.lower[decision.row] == decision.lower
        assert decision.columns.ranks[decision.row] == decision.rank
        return decision.rank, decision.columns.expected[decision.row]

    routes = Router(index, chance=Random(1), note=note)
    store(index, PODS[1], prompt())
    for name in ("1", "2"):
        rank = routes.pick(name, prompt(), now=0.0).rank
        booking = routes.booking(name)
        assert booking is not None
        assert booking.note == (rank, 1584 if rank[0] == PODS[1] else 0)
    assert promised == [0, 1]


def test_candidates_that_are_handed_over_are_the_only_ones() -> None:
    routes = router(fleet())
    given = [(PODS[1], 0), (PodId("elsewhere"), 0)]
    assert routes.pick("1", prompt(), now=0.0, candidates=given).rank == (PODS[1], 0)
    with pytest.raises(NoRankError, match="none of the 1 candidates serves 'm'"):
        routes.pick("2", prompt(), now=0.0, candidates=given[1:])
    with pytest.raises(UnknownError, match="nobody"):
        routes.pick("3", Request(model="nobody", token_ids=[1]), now=0.0)
    assert routes.num_booked() == 1


def test_pods_without_events_are_chosen_by_promises_alone() -> None:
    index = fleet()
    for pod in PODS:
        index.set_state(pod, PodState.STALE)
    routes = router(index, options=RouterOptions(remember_s=100.0))
    first = routes.pick("1", prompt(), now=0.0)
    assert (first.lifted, first.knowledge) == (("stale",), "promises")
    routes.first_token("1", now=0.1)
    routes.end("1", now=0.2)
    again = routes.pick("2", prompt(), now=50.0)
    assert (again.rank, again.resumable) == (first.rank, 1584)
    routes.end("2", now=50.1)
    routes.release(now=151.0)
    assert index.num_promised() == 0


def test_chance_decides_among_equals_and_a_session_always_goes_to_one() -> None:
    routes = router(fleet())
    ranks = Counter[PodId]()
    sessions: dict[str, set[PodId]] = {}
    for number in range(120):
        session = f"s{number % 4}" if number % 2 else None
        decision = routes.pick("1", prompt(5000 * number), now=100.0 * number, session=session)
        routes.fail("1", now=100.0 * number)
        if session:
            sessions.setdefault(session, set()).add(decision.rank[0])
        else:
            ranks[decision.rank[0]] += 1
    assert set(ranks) == set(PODS)
    assert all(len(homes) == 1 for homes in sessions.values())


def test_a_prompt_without_ids_counts_as_load() -> None:
    routes = router(fleet())
    unread = Request(model="m", token_ids=[])
    one = [(PODS[0], 0)]
    first = routes.pick("1", unread, now=0.0, candidates=one, num_tokens=1600)
    assert (first.view.tokens, first.upper) == (1600, 0)
    assert routes.pick("2", prompt(), now=0.0, candidates=one).view.wait == pytest.approx([0.17])
    known = routes.pick("3", prompt(), now=0.0, candidates=one, num_tokens=9)
    assert known.view.tokens == 1600


def test_load_is_averaged_over_arrivals() -> None:
    routes = router(fleet(), options=RouterOptions(arrivals=10))
    one = [(PODS[0], 0)]
    decision = routes.pick("first", prompt(), now=0.0, candidates=one)
    for number in range(1, 50):
        asked = prompt(5000 * number)
        decision = routes.pick(str(number), asked, now=0.1 * number, candidates=one)
    view = decision.view
    assert view.busy == pytest.approx(1 / 3, abs=0.01)  # One of three ranks has work.
    assert view.rate == pytest.approx(10 / 3)
    later = routes.pick("x", prompt(), now=1e9, candidates=one).view
    assert later.rate > 1 / 60


def test_requests_of_one_moment_have_a_finite_rate() -> None:
    routes = router(fleet())
    decision = routes.pick("0", prompt(), now=0.0)
    for number in range(1, 4):
        decision = routes.pick(str(number), prompt(5000 * number), now=1e-320)
        assert all(map(isfinite, decision.costs))
    assert decision.view.rate == pytest.approx(1e6 / len(PODS))


def test_a_decision_has_the_terms_of_every_candidate_and_says_whose_seconds_they_are() -> None:
    index = fleet()
    decision = router(index).pick("1", prompt(), now=0.0)
    assert decision.seconds_given
    assert [sum(terms) for terms in decision.terms()] == pytest.approx(decision.costs)
    assert decision.cost == min(decision.costs)
    default = Router(index, BASELINES["least_loaded"]()).pick("1", prompt(), now=0.0)
    assert not default.seconds_given
    assert default.terms() == []


def test_tokens_on_slower_tiers_cost_their_loading() -> None:
    index = fleet()
    tokens = tuple(range(64))
    event = BlockStored(
        block_hashes=(1, 2, 3, 4), parent_block_hash=None, token_ids=tokens, block_size=16,
        group_idx=0, medium="CPU",
    )  # fmt: skip
    index.apply(PODS[0], encode_batch([event]))
    slow = {"m": Seconds(per_loaded_token=0.001)}
    decision = Router(index, seconds=slow).pick(
        "1", Request(model="m", token_ids=range(80)), now=0
    )
    assert decision.view.loaded == [64, 0, 0]
    assert decision.terms()[0].loading == pytest.approx(0.064)


@pytest.mark.parametrize("name", ["cost", *BASELINES])
def test_random_lives_leave_no_booking_and_no_promise(name: str) -> None:
    index, random = fleet(), Random(name)
    policy = CostRule() if name == "cost" else BASELINES[name]()
    routes, now = router(index, policy), 0.0
    open_names: list[str] = []
    for number in range(300):
        now += random.random() / 10
        match random.choice(("pick", "pick", "first", "end", "fail", "store")):
            case "pick":
                asked = prompt(5000 * random.randrange(5), random.randrange(1, 200))
                decision = routes.pick(f"r{number}", asked, now=now)
                assert 0 <= decision.lower <= decision.upper <= decision.resumable + 200
                open_names.append(f"r{number}")
            case "first" if open_names:
                assert routes.first_token(random.choice(open_names), now=now)
            case "end" if open_names:
                assert routes.end(open_names.pop(random.randrange(len(open_names))), now=now)
            case "fail" if open_names:
                assert routes.fail(open_names.pop(random.randrange(len(open_names))), now=now)
            case "store":
                store(index, random.choice(PODS), prompt(5000 * random.randrange(5), 160))
        routes.check_integrity()
        index.check_integrity()
    for open_name in open_names:
        routes.end(open_name, now=now)
    routes.release(now=now + 200)
    assert (routes.num_booked(), index.num_promised()) == (0, 0)
