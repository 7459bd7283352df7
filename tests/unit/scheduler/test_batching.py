"""Batches, chunks, preemption and drafts, without loads. Random lives of them: `test_faults`."""

import pytest
from kvbraid.cache import GroupOptions
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.scheduler import Finish, StepResult

from tests.unit.cache.caches import full, mamba, window
from tests.unit.scheduler.engines import Engine, sampled


def expected(prompt: list[int], count: int) -> list[int]:
    return [sampled(len(prompt) + n) for n in range(count)]


def test_a_prompt_is_computed_in_chunks_next_to_what_decodes() -> None:
    engine = Engine(full(4), max_step_tokens=10)
    first, second = engine.add(range(6), 5), engine.add(range(100, 125), 1)
    seen = []
    for _ in range(4):
        step = engine.schedule()
        assert step is not None
        seen.append([(p.request, p.start, p.num_tokens, p.samples) for p in step.scheduled])
        engine.update()
    assert seen == [
        [(first, 0, 6, True), (second, 0, 4, False)],
        [(first, 6, 1, True), (second, 4, 9, False)],
        [(first, 7, 1, True), (second, 13, 9, False)],
        [(first, 8, 1, True), (second, 22, 3, True)],
    ]


def test_the_one_that_started_last_gives_its_blocks_back_and_starts_first_again() -> None:
    engine = Engine(full(4), cache={"num_blocks": 7})
    first, second, third = (engine.add(range(n, n + 8), 9) for n in (0, 100, 200))
    engine.schedule()
    engine.update()
    assert list(engine.scheduler.inspect().running) == [first, second, third]
    engine.schedule()  # All of them need a third block.
    engine.update()
    assert list(engine.scheduler.inspect().running) == [first, second]
    while engine.num_tokens(first) < 15:
        engine.schedule()
        engine.update()
    assert list(engine.scheduler.inspect().running) == [first]
    assert [request.number for request in engine.scheduler.inspect().waiting] == [second, third]
    engine.run()
    assert engine.tokens(second) == expected(list(range(8)), 9)


def test_two_steps_in_flight_schedule_a_token_before_the_one_before_it_is_known() -> None:
    engine = Engine(full(4), max_steps_in_flight=2)
    request = engine.add(range(6), 3)
    for start, count in ((0, 6), (6, 1)):
        step = engine.schedule()
        assert step is not None
        ((number, _, begin, length, *_),) = step.scheduled
        assert (number, begin, length) == (request, start, count)
    with pytest.raises(InvalidValueError, match="2 steps are in flight"):
        engine.scheduler.schedule()
    engine.update()
    engine.run()
    assert engine.tokens(request) == expected(list(range(6)), 3)


def test_what_a_step_in_flight_reads_is_not_given_back_before_it_is_processed() -> None:
    engine = Engine(window(5, 4), max_step_tokens=8, max_steps_in_flight=2)
    request = engine.add(range(24), 1)
    engine.schedule()
    engine.schedule()
    assert all(engine.cache.blocks(request)[0])
    engine.update()
    engine.schedule()
    assert [bool(block) for block in engine.cache.blocks(request)[0][:2]] == [False, True]
    engine.update()
    engine.run()


def test_rejected_drafts_are_computed_again_and_accepted_ones_are_not() -> None:
    engine = Engine(full(4), num_lookahead_tokens=3)
    request = engine.add(range(6), 8)
    starts = []
    for accepted in (0, 2, 0, 3):
        step = engine.schedule()
        assert step is not None
        starts.append((step.scheduled[0].start, step.scheduled[0].num_drafts))
        engine.update(accepted=iter([accepted]).__next__)
    assert starts == [(0, 0), (6, 3), (9, 3), (10, 2)]
    assert engine.tokens(request) == expected(list(range(6)), 8)
    assert engine.said[request][-1].finish is Finish.LENGTH


def test_a_stop_token_ends_a_request_and_what_was_sampled_after_it_is_dropped() -> None:
    engine = Engine(full(4), num_lookahead_tokens=3, max_steps_in_flight=2)
    request = engine.add(range(6), 20, stop_tokens={sampled(8)})
    engine.run()
    assert engine.tokens(request) == expected(list(range(6)), 3)
    assert engine.said[request][-1].finish is Finish.STOP


def test_a_request_that_can_never_fit_ends_with_an_error_and_others_go_on() -> None:
    engine = Engine(full(4), cache={"num_blocks": 5})
    large, small = engine.add(range(40)), engine.add(range(5))
    engine.run()
    assert [(o.finish, o.error) for o in engine.said[large]] == [(Finish.ERROR, "out_of_blocks")]
    assert engine.said[small][-1].finish is Finish.LENGTH


def test_cached_and_computed_tokens_are_told_once_and_are_the_prompt() -> None:
    engine = Engine(full(4))
    engine.add(range(10))
    engine.run()
    request = engine.add(range(12), 3)
    engine.run()
    assert [output.prompt for output in engine.said[request]] == [(8, 0, 4), None, None]


def test_bad_calls_are_refused_and_change_nothing() -> None:
    engine = Engine(full(4), max_steps_in_flight=2, cache={"max_model_len": 20})
    with pytest.raises(InvalidValueError, match="the prompt has 0 tokens"):
        engine.add([])
    with pytest.raises(InvalidValueError, match="-1 may follow"):
        engine.add([1], -1)
    with pytest.raises(InvalidValueError, match="20 at most"):
        engine.add(range(19), 2)
    with pytest.raises(UnknownError, match="request 77"):
        engine.abort(77)
    request = engine.add(range(6), 3)
    first, second = engine.schedule(), engine.schedule()
    assert first is not None
    assert second is not None
    for step, tokens, what in (
        (second, {request: [1]}, "step 1 ends, but the oldest is 0"),
        (first, {}, f"step 0 has 0 tokens for request {request}; expected 1 to 1"),
        (first, {request: [1, 2]}, "step 0 has 2 tokens"),
    ):
        with pytest.raises(InvalidValueError, match=what):
            engine.scheduler.update(step, StepResult(tokens=tokens))
        engine.check()
    engine.update()
    engine.run()
    assert len(engine.tokens(request)) == 3


def test_options_that_cannot_work_are_refused() -> None:
    for options, what in (
        ({"max_step_tokens": 0}, "max_step_tokens is 0"),
        ({"max_steps_in_flight": 3}, "max_steps_in_flight is 3"),
        ({"findable": "never"}, "findable is 'never'"),
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"num_lookahead_tokens": 2}, "group 1 keeps 1 states for 2 drafts"),
        ({"num_lookahead_tokens": 1, "max_steps_in_flight": 2}, "2 steps in flight at most"),
    ):
        cache = {"group_options": (GroupOptions(), GroupOptions(num_speculative_blocks=1))}
        with pytest.raises(InvalidValueError, match=what):
            Engine(full(4), mamba(4), cache=cache, **options)


def test_states_with_room_for_drafts_take_them_back() -> None:
    cache = {"group_options": (GroupOptions(), GroupOptions(num_speculative_blocks=2))}
    engine = Engine(full(4), mamba(4), cache=cache, num_lookahead_tokens=2)
    request = engine.add(range(10), 9)
    while engine.scheduler.num_requests:
        engine.schedule()
        engine.update(accepted=iter([1]).__next__)
    assert engine.tokens(request) == expected(list(range(10)), 9)
