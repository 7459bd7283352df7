"""What engines say of their load: how much of it is not ours, how long it counts, what it does."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import FullError
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId
from kvbraid.policy import EngineLoad, Router, RouterOptions, Seconds, Standing
from kvbraid.policy.engine_load import EngineLoads
from kvbraid.policy.view import RankId
from kvbraid.spec import GroupSpec, SpecKind, Topology

A, B = (PodId("a"), 0), (PodId("b"), 0)
SECONDS = Seconds(fixed=0.5, per_token=1e-12, per_pair=0.0)
"""Any prefill takes half a second."""


def router(**options: float) -> Router:
    index = FleetIndex()
    attention = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
    for pod, _ in (A, B):
        index.register(pod, model="m", topology=attention)
    made = RouterOptions(**options)  # type: ignore[arg-type]
    return Router(index, seconds={"m": SECONDS}, options=made, chance=Random(1))


def request(lora: str | None = None) -> Request:
    return Request(model="m", token_ids=range(32), lora=lora)


def test_requests_of_others_make_a_rank_wait_for_as_long_as_ours_take() -> None:
    asked = router()
    asked.note_load(A, EngineLoad(running=1, waiting=3), now=0.0)
    decision = asked.pick("r", request(), now=1.0)
    assert decision.rank == B
    terms = dict(zip(decision.view.ranks, decision.terms(), strict=True))
    assert (terms[A].wait, terms[A].others) == pytest.approx((0.0, 1.5))
    assert (terms[B].wait, terms[B].others) == (0.0, 0.0)
    assert [sum(each) for each in decision.terms()] == pytest.approx(decision.costs)
    columns = dict(zip(decision.view.ranks, zip(
        decision.view.wait, decision.view.waiting, decision.view.running, strict=True,
    ), strict=True))  # fmt: skip
    assert columns == {A: (pytest.approx(1.5), 3, 4), B: (0.0, 0, 0)}


def test_our_own_requests_are_not_counted_twice() -> None:
    asked = router()
    for number in range(3):
        asked.pick(f"r{number}", request(), now=0.0, candidates=[A])
    asked.note_load(A, EngineLoad(running=1, waiting=3), now=0.0)
    decision = asked.pick("r", request(), now=0.0, candidates=[A])
    [terms] = decision.terms()
    assert (terms.wait, terms.others) == pytest.approx((1.5, 0.0))
    assert decision.view.running == [4]  # Four are in the engine, and three of them are ours.


def test_a_request_that_ends_while_an_engine_is_asked_counts_for_nobody() -> None:
    asked = router()
    asked.pick("r", request(), now=0.0, candidates=[A])
    asked.note_load(A, EngineLoad(running=1), now=0.0)
    asked.end("r", now=1.0)
    asked.note_load(A, EngineLoad(running=1), now=1.0)  # It was counted before its end.
    assert asked.pick("s", request(), now=1.0, candidates=[A]).view.running == [0]
    asked.end("s", now=2.0)
    asked.note_load(A, EngineLoad(running=1), now=2.0)  # Now this is somebody else's.
    assert asked.pick("t", request(), now=2.0, candidates=[A]).view.running == [1]


def test_what_others_sent_takes_as_long_as_our_prefills_did() -> None:
    asked = router()
    for number in range(50):
        asked.pick(f"r{number}", request(), now=number, candidates=[B])
        asked.end(f"r{number}", now=number + 0.9)
    asked.note_load(A, EngineLoad(waiting=2), now=50.0)
    [terms] = asked.pick("r", request(), now=50.0, candidates=[A]).terms()
    assert terms.others == pytest.approx(2 * 0.5)


def test_a_reading_counts_until_it_is_too_old() -> None:
    asked = router(load_age_s=5.0)
    asked.note_load(A, EngineLoad(waiting=3, usage=0.5), now=0.0)
    assert asked.engine_loads(now=4.9) == {A: EngineLoad(waiting=3, usage=0.5)}
    assert asked.pick("r", request(), now=4.9).rank == B
    [terms] = asked.pick("r", request(), now=5.0, candidates=[A]).terms()
    assert terms.others == 0.0
    assert asked.engine_loads(now=5.0) == {}


def test_a_policy_sees_the_usage_that_the_engine_says() -> None:
    asked = router()
    asked.set_standing(A[0], Standing(usage=0.1))
    asked.note_load(B, EngineLoad(usage=0.75), now=0.0)
    view = asked.pick("r", request(), now=0.0).view
    assert dict(zip(view.ranks, view.usage, strict=True)) == {A: 0.1, B: 0.75}


def test_an_adapter_goes_where_it_runs_if_others_have_no_room() -> None:
    asked = router()
    asked.note_load(A, EngineLoad(loras=frozenset({"poet"})), now=0.0)
    asked.note_load(B, EngineLoad(loras=frozenset({"other"})), now=0.0)
    for number in range(8):
        decision = asked.pick(f"r{number}", request("poet"), now=0.0)
        assert (decision.rank, decision.left_out) == (A, {"lora_not_loaded": 1})
    assert asked.pick("new", request("third"), now=0.0).lifted == ("lora_not_loaded",)
    assert not asked.pick("none", request(), now=0.0).left_out


def test_a_rank_is_full_of_the_requests_of_others_too() -> None:
    asked = router()
    for pod, _ in (A, B):
        asked.set_standing(pod, Standing(max_running=2))
    asked.note_load(A, EngineLoad(running=2), now=0.0)
    assert asked.pick("r", request(), now=0.0, may_overfill=False).rank == B
    assert asked.pick("s", request(), now=0.0, may_overfill=False).rank == B
    with pytest.raises(FullError, match="every rank of 'm' is full"):
        asked.pick("t", request(), now=0.0, may_overfill=False)
    assert asked.num_booked() == 2
    assert asked.pick("t", request(), now=0.0).lifted == ("full",)
    asked.check_integrity()


counts = st.integers(0, 1000)
notes = st.tuples(
    st.sampled_from([A, B, (PodId("c"), 3)]), counts, counts, counts, counts, st.floats(0, 3)
)


@given(st.lists(notes))
def test_what_others_sent_is_never_less_than_nothing_and_old_readings_are_dropped(
    steps: list[tuple[RankId, int, int, int, int, float]],
) -> None:
    loads, now, last = EngineLoads(age_s=5.0), 0.0, dict[RankId, float]()
    last_seen: dict[RankId, tuple[int, int]] = {}
    for rank, running, waiting, own_running, own_waiting, passed in steps:
        now += passed
        load = EngineLoad(running=running, waiting=waiting)
        loads.note(rank, load, running=own_running, waiting=own_waiting, now=now)
        last_at, last[rank] = last.get(rank), now
        reading = loads.get(rank, now)
        assert reading is not None
        others, seen = reading.others, reading.seen
        assert 0 <= others.waiting <= others.running <= running + waiting
        assert seen.waiting == max(waiting - own_waiting, 0)
        assert seen.running >= running + waiting - own_running
        if last_at is not None and now - last_at < 5.0:
            assert others == tuple(map(min, seen, last_seen[rank]))
        else:
            assert others == seen
        last_seen[rank] = seen
        fresh = {each for each, at in last.items() if now - at < 5.0}
        assert {each for each, _ in loads.fresh(now)} == fresh
        assert len(loads) == len(fresh)
