"""Loads: when a request goes on, what is findable when, what failures and aborts leave."""

from collections.abc import Callable

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.loads import Cause, Failures, Record
from kvbraid.recovery import Action, Policy, State
from kvbraid.scheduler import Finish, LoadReport, Offer, Query, Scheduler

from tests.unit.cache.caches import full, mamba, window
from tests.unit.scheduler.engines import Engine, sampled

RECORD = Record("host", b"key")
PROMPT = list(range(42))


def offers(count: int, *, is_async: bool) -> Callable[[Query], Offer | None]:
    """Tokens up to a boundary, for every long prompt that lacks some."""

    def answer(query: Query) -> Offer | None:
        rest = count - query.num_hit_tokens
        lacks = rest > 0 and len(query.tokens) >= 40
        return Offer(rest, "host", is_async, (RECORD,)) if lacks else None

    return answer


def fails(request: int, *positions: int, causes: dict[Record, Cause] | None = None) -> Failures:
    return Failures(places={request: {0: positions}}, causes=causes or {})


def hit(engine: Engine) -> int:
    """What a request with the same prompt would find."""
    request = engine.cache.add(PROMPT)
    found = engine.cache.match(request).num_tokens
    engine.cache.release([request])
    return found


def test_an_asynchronous_load_keeps_its_request_waiting_until_every_rank_has_reported() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=True), num_ranks=2)
    request = engine.add(PROMPT)
    step = engine.schedule()
    assert step is not None
    (load,) = step.loads
    assert (load.request, load.start, load.num_tokens, step.scheduled) == (request, 0, 40, ())
    assert [target.position for target in load.targets] == list(range(10))
    engine.update([LoadReport(rank=0, ended=[0])])
    assert engine.schedule() is None
    assert hit(engine) == 0
    engine.report([LoadReport(rank=1, ended=[0])])
    assert hit(engine) == 40
    step = engine.schedule()
    assert step is not None
    assert (step.scheduled[0].start, step.scheduled[0].num_tokens) == (40, 2)
    (output,) = engine.update()
    assert output.prompt == (0, 40, 2)


def test_only_what_the_rule_needs_at_the_end_is_loaded() -> None:
    engine = Engine(full(4), window(6, 4), mamba(4), answer=offers(40, is_async=True))
    engine.add(PROMPT)
    step = engine.schedule()
    assert step is not None
    places = [(target.group, target.position) for target in step.loads[0].targets]
    assert places == [(0, n) for n in range(10)] + [(1, 8), (1, 9), (2, 9)]


@pytest.mark.parametrize(("findable", "at_schedule"), [("computed", []), ("scheduled", [10])])
def test_a_synchronous_load_is_announced_when_it_is_known_to_be_good_or_at_once(
    findable: str, at_schedule: list[int]
) -> None:
    engine = Engine(full(4), answer=offers(40, is_async=False), findable=findable)
    engine.add(PROMPT)
    step = engine.schedule()
    assert step is not None
    assert step.scheduled[0].start == 40
    stored = [e for e in engine.cache.take_events().structs() if isinstance(e, BlockStored)]
    assert [len(event.block_hashes) for event in stored] == at_schedule
    engine.update()
    assert hit(engine) == 40


def test_what_was_announced_of_a_load_that_failed_is_retracted() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=False), findable="scheduled")
    request = engine.add(PROMPT)
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0], failures=fails(request, 3))])
    removed = [
        event
        for events in engine.events
        for event in events.structs()
        if isinstance(event, BlockRemoved)
    ]
    assert sum(len(event.block_hashes) for event in removed) >= 1
    assert hit(engine) == 12
    assert engine.tiers.forgotten
    engine.run()
    assert engine.said[request][0].prompt == (0, 12, 30)
    assert engine.said[request][-1].num_recomputed == 28


def test_a_load_that_a_rank_gave_up_starts_over_elsewhere_while_its_blocks_are_held() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=True), num_ranks=2)
    request = engine.add(PROMPT)
    step = engine.schedule()
    assert step is not None
    engine.update([LoadReport(rank=0, ended=[0]), LoadReport(rank=1, given_up=[0])])
    assert engine.cache.pool.num_held == 10
    engine.schedule()
    written = {b for table in engine.cache.blocks(request) for b in table}
    assert written.isdisjoint(target.block_id for target in step.loads[0].targets)
    engine.update()
    engine.report([LoadReport(rank=1, ended=[0])])
    assert engine.cache.pool.num_held == 0
    engine.run()
    assert engine.said[request][0].prompt == (0, 0, 42)


@pytest.mark.parametrize(
    ("groups", "start"),
    [
        ((full(4),), 39),
        ((full(4), window(6, 4)), 39),
        ((full(4), window(5, 4)), 39),
        ((full(4), mamba(4)), 36),
    ],
)
def test_of_a_prompt_that_was_loaded_whole_only_what_the_last_token_lacks_is_computed(
    groups: tuple[object, ...], start: int
) -> None:
    engine = Engine(*groups, answer=offers(40, is_async=True))  # type: ignore[arg-type]
    engine.add(PROMPT[:40])
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0])])
    step = engine.schedule()
    assert step is not None
    assert (step.scheduled[0].start, step.loads) == (start, ())


def test_the_policy_says_whether_a_request_computes_asks_again_or_ends() -> None:
    for policy, num_loads, ends in (
        (Policy.RECOMPUTE, 1, Finish.LENGTH),
        (Policy.RETRY, 2, Finish.LENGTH),
        (Policy.FAIL, 1, Finish.ERROR),
    ):
        engine = Engine(full(4), answer=offers(40, is_async=True), policy=policy)
        request = engine.add(PROMPT)
        healthy = engine.add([7, *PROMPT[:2]])
        engine.schedule()
        causes = {RECORD: Cause.TIMEOUT}
        engine.update([LoadReport(rank=0, ended=[0], failures=fails(request, 3, causes=causes))])
        assert engine.tiers.backed_off == [RECORD]
        engine.run()
        assert len([n for n in engine.loads.values() if n.request == request]) == num_loads
        assert engine.said[request][-1].finish is ends
        assert engine.said[healthy][-1].finish is Finish.LENGTH


def test_a_tier_that_keeps_failing_is_not_asked_for_a_while() -> None:
    refused = []

    def answer(query: Query) -> Offer | None:
        refused.append(tuple(query.refused))
        return offers(40, is_async=True)(query) if not query.refused else None

    engine = Engine(full(4), answer=answer, cooldown_failures=1, cooldown_steps=2)
    first = engine.add(PROMPT)
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0], failures=Failures(requests=[first]))])
    engine.add(PROMPT[::-1], 1)
    engine.run()
    engine.add(PROMPT[1:], 1)
    engine.run()
    assert refused == [(), ("host",), ()]


def test_a_load_that_fails_after_it_was_said_to_be_good_counts_like_any_other() -> None:
    asked = []

    def answer(query: Query) -> Offer | None:
        asked.append((query.request, tuple(query.refused)))
        return offers(40, is_async=True)(query)

    engine = Engine(full(4), mamba(4), answer=answer, cooldown_failures=1, max_step_tokens=1)
    first = engine.add(PROMPT, 1)
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0])])
    engine.schedule()
    engine.update([LoadReport(rank=0, failures=fails(first, 2))])
    engine.run()
    second = engine.add(PROMPT[::-1], 1)
    engine.run()
    assert asked == [(first, ()), (second, ("host",))]


def test_a_report_after_a_token_was_handed_out_ends_the_request_under_every_policy() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=True))
    request = engine.add(PROMPT, 5)
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0])])
    engine.schedule()
    engine.update()
    (output,) = engine.report([LoadReport(rank=0, failures=fails(request, 2))])
    assert (output.finish, output.error) == (Finish.ERROR, "tainted_output")
    assert hit(engine) == 8


def test_every_recovery_can_be_dumped_and_decided_again() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=True))
    states: list[State] = []
    engine.scheduler = Scheduler(engine.cache, engine.options, engine.tiers, dump=states.append)
    request = engine.add(PROMPT)
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0], failures=fails(request, 2))])
    (state,) = states
    assert state.decide().requests[request].resume == 8


def test_what_failed_of_an_earlier_load_is_not_taken_for_a_part_of_the_next_one() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=True), num_ranks=2)
    request = engine.add(PROMPT)
    engine.schedule()
    engine.update([])
    failed = Failures(places={request: {0: [3]}}, requests=[request])
    engine.report([LoadReport(rank=0, ended=[0], failures=failed)])
    engine.scheduler.inspect().preempt(engine.scheduler.inspect().requests[request])
    engine.schedule()
    engine.update([LoadReport(rank=1, ended=[0])])
    engine.report(engine.ended([1]))
    assert hit(engine) == 40
    engine.run()
    assert engine.tokens(request) == [sampled(42), sampled(43)]
    assert not engine.scheduler.ledgers.actions


def test_reports_that_make_no_sense_are_refused_and_change_nothing() -> None:
    engine = Engine(full(4), answer=offers(40, is_async=False), num_ranks=2)
    engine.add(PROMPT)
    engine.schedule()
    for reports, what in (
        ([LoadReport(rank=2)], "rank 2; expected 0 to 1"),
        ([LoadReport(rank=0, ended=[1])], "load 1, which has not begun"),
        ([LoadReport(rank=0, ended=[0])], "rank 1 has not reported on load 0"),
    ):
        steps = list(engine.steps)
        with pytest.raises(InvalidValueError, match=what):
            engine.update(reports)
        engine.steps = steps
        engine.check()
    engine.update()


@pytest.mark.parametrize("answer", [offers(39, is_async=True), offers(64, is_async=False)])
def test_an_offer_that_ends_where_nobody_can_go_on_is_counted_and_refused(
    answer: Callable[[Query], Offer | None],
) -> None:
    engine = Engine(full(4), answer=answer, cooldown_failures=2, max_running=9)
    for first in range(3):
        engine.add([100 + first, *PROMPT[1:]])
    engine.run()
    assert not engine.loads
    # After two of them the tier is in cooldown; an offer that it makes all the same counts, too.
    assert engine.scheduler.ledgers.num_refused_offers == 3
    assert engine.scheduler.ledgers.cooldowns.cooling(0) == ("host",)


def test_what_an_aborted_request_computed_from_garbage_and_gave_back_is_not_found() -> None:
    engine = Engine(
        window(8, 4),
        answer=offers(8, is_async=False),
        max_step_tokens=16,
        cache={"num_blocks": 32},
    )
    request = engine.add(PROMPT)
    engine.schedule()  # Loads 8 tokens, and computes 16 from them.
    engine.update()
    before = {*engine.cache.blocks(request)[0]}
    engine.schedule()  # Gives back what the window has passed.
    gone = before.difference(engine.cache.blocks(request)[0])
    written = [b for b in gone if engine.cache.pool.describe([b])[0].num_tokens > 8]
    assert len(written) >= 2, "the test is pointless"
    engine.abort(request)
    engine.update([LoadReport(rank=0, failures=Failures(requests=[request]))])
    assert not engine.cache.debug.cached()


def test_a_state_inside_a_block_is_not_kept_once_a_step_in_flight_moves_it_on() -> None:
    engine = Engine(
        full(4),
        mamba(4),
        answer=lambda query: Offer(4, "host", is_async=False),
        max_steps_in_flight=2,
        cache={"topology": {"hash_block_size": 2, "partial_hits": True}},
    )
    request = engine.add(range(7))
    for end in (6, 7):  # The state at 6 tokens would serve the same prompt.
        step = engine.schedule()
        assert step is not None
        (part,) = step.scheduled
        assert part.start + part.num_tokens == end
    engine.update()
    states = engine.cache.blocks(request)[1]
    assert [engine.cache.pool.describe([block])[0].num_tokens for block in states] == [4, 0]


def test_who_began_with_a_copy_of_a_part_of_a_block_goes_back_if_that_block_failed() -> None:
    engine = Engine(
        full(4),
        full(2),
        answer=offers(40, is_async=False),
        max_steps_in_flight=2,
        findable="scheduled",
        cache={
            "num_blocks": 128,
            "topology": {"alignment": 4, "hash_block_size": 2, "partial_hits": True},
        },
    )
    first = engine.add(PROMPT)
    engine.schedule()
    second = engine.add(PROMPT[:40])
    step = engine.schedule()
    assert step is not None
    (copy,) = step.work.copies
    assert copy[0] == engine.cache.blocks(first)[0][9]
    assert copy[1] == engine.cache.blocks(second)[0][9]
    engine.update([LoadReport(rank=0, ended=[0], failures=fails(first, 9))])
    assert engine.scheduler.ledgers.actions == {Action.REWIND: 2}
    engine.run()
    assert [output.num_recomputed for output in engine.said[second][-1:]] == [2]
