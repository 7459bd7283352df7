"""vLLM's own cases of failed loads, rebuilt for one to six groups: the failed blocks of one load.

Three requests load nearly all of their prompts, and some blocks of the second one fail: the first
and the last, one in the middle and the last, the last alone, in every group alone and in all.
"""

from itertools import permutations
from typing import Final

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.recovery.expected_starts import (
    Expected,
    expected,
    expected_after_all,
    written_since,
)
from tests.vllm.recovery.mixes import MIXES, dense
from tests.vllm.recovery.rebuilt_engine import (
    NUM_TOKENS,
    RebuiltEngine,
    Report,
    check_untouched,
    groups_that_fail,
    loaded_by,
)

MIDDLE: Final = 200
WARM: Final = 183
MODES: Final = {
    (False, False): "with the step",
    (False, True): "with the step, ahead",
    (True, False): "before",
    (True, True): "before, ahead",
}
EVERY_MIX_AND_MODE: Final = pytest.mark.parametrize(
    ("name", "waits", "is_async"),
    [
        pytest.param(name, *mode, id=f"{name}: {title}")
        for name in MIXES
        for mode, title in MODES.items()
    ],
)


def prompts() -> list[list[int]]:
    return [tokens(seed, NUM_TOKENS) for seed in range(3)]


def report(engine: RebuiltEngine, bad: set[int], *, waits: bool, is_async: bool) -> None:
    """Spoil blocks and report them with the output of the step, and go on to the end."""
    engine.spoiled = bad
    if is_async:
        engine.schedule()  # A step is in flight when the report comes.
    engine.mark()
    engine.use(Report(blocks=bad, ended=set(engine.loads) if waits else set()))
    engine.spoiled = set()
    engine.run()


def fail_second(
    engine: RebuiltEngine,
    groups: list[int],
    failing: set[int],
    end: int,
    *,
    waits: bool,
    is_async: bool,
) -> Expected | None:
    """Let three requests load to `end`, and blocks of the second one fail; None if it has none."""
    requests = [engine.request(prompt, (end, waits)) for prompt in prompts()]
    engine.schedule()
    bad = engine.blocks_of(requests[1], groups, failing)
    if not bad:
        return None  # A window that has passed: the load brings nothing there.
    lost = bad | written_since(engine, requests[1], end)
    due = expected(engine, requests[1], lost)
    report(engine, bad, waits=waits, is_async=is_async)
    assert engine.start_of(requests[1]) == due.start, (failing, groups, due)
    check_untouched(engine, (requests[0], requests[2]))
    return due


@EVERY_MIX_AND_MODE
def test_a_request_resumes_from_the_longest_boundary_that_its_good_blocks_allow(
    name: str, waits: bool, is_async: bool
) -> None:
    mix = MIXES[name]
    end = loaded_by(mix)
    starts = set()
    for failing in ({0, end - 1}, {MIDDLE, end - 1}, {end - 1}):
        for groups in groups_that_fail(mix):
            engine = RebuiltEngine(mix, is_async=is_async)
            due = fail_second(engine, groups, failing, end, waits=waits, is_async=is_async)
            starts |= {due.start} if due else set()
    assert len(starts) == (3 if "wide" in name or "latent" in name else len(starts))


@EVERY_MIX_AND_MODE
def test_a_request_that_must_start_over_finds_what_was_cached_before_it(
    name: str, waits: bool, is_async: bool
) -> None:
    mix = dense(MIXES[name])
    end = loaded_by(mix)
    for failing in ({MIDDLE, end - 1}, {end - 1}):
        for groups in groups_that_fail(mix):
            engine = RebuiltEngine(mix, is_async=is_async)
            engine.request(prompts()[1][:WARM])
            engine.run()
            due = fail_second(engine, groups, failing, end, waits=waits, is_async=is_async)
            assert due is None or due.start >= WARM // 16 * 16 - 16 * ("draft" in name)


@pytest.mark.parametrize("name", MIXES)
def test_a_load_of_the_whole_prompt_resumes_at_a_boundary_or_at_the_last_token(name: str) -> None:
    mix = MIXES[name]
    for failing in ({0, NUM_TOKENS - 1}, {MIDDLE, NUM_TOKENS - 1}, {NUM_TOKENS - 1}):
        for groups in groups_that_fail(mix):
            engine = RebuiltEngine(mix)
            fail_second(engine, groups, failing, NUM_TOKENS, waits=True, is_async=False)


@pytest.mark.parametrize("name", MIXES)
def test_a_good_load_of_the_whole_prompt_is_not_asked_for_again(name: str) -> None:
    engine = RebuiltEngine(MIXES[name])
    request = engine.request(prompts()[1], *[(NUM_TOKENS, True)] * 3)
    engine.schedule()
    due = expected_after_all(engine, request)
    engine.mark()
    engine.use(Report(ended=set(engine.loads)))
    engine.run()
    assert engine.start_of(request) == due
    assert len(engine.plan[request.request_id]) == 2


@pytest.mark.parametrize("name", MIXES)
def test_failures_that_come_one_by_one_end_where_all_of_them_together_would(name: str) -> None:
    mix = MIXES[name]
    end = loaded_by(mix)
    for order in permutations((0, MIDDLE, end - 1)):
        engine = RebuiltEngine(mix)
        requests = [engine.request(prompt, (end, True)) for prompt in prompts()]
        engine.schedule()
        groups = range(len(mix.groups))
        bad = engine.blocks_of(requests[1], groups, order)
        due = expected(engine, requests[1], bad)
        engine.spoiled = bad
        each = [engine.blocks_of(requests[1], groups, [token]) for token in order]
        engine.mark()
        for blocks in each:
            engine.use(Report(blocks=blocks))
            engine.schedule()
        engine.use(Report(ended=set(engine.loads)))
        engine.spoiled = set()
        engine.run()
        assert engine.start_of(requests[1]) == due.start, order


@EVERY_MIX_AND_MODE
def test_a_request_that_was_preempted_loads_again_and_resumes_as_before(
    name: str, waits: bool, is_async: bool
) -> None:
    mix = MIXES[name]
    end = loaded_by(mix)
    for failing in ({0, end - 1}, {MIDDLE, end - 1}, {end - 1}):
        engine = RebuiltEngine(mix, is_async=is_async)
        request = engine.request(prompts()[1], (end, False), (end, waits))
        while len(engine.outputs[request.request_id]) < 2:
            engine.schedule()
            engine.use()
        assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        engine.schedule()
        bad = engine.blocks_of(request, range(len(mix.groups)), failing)
        lost = bad | written_since(engine, request, end)
        due = expected(engine, request, lost)
        report(engine, bad, waits=waits, is_async=is_async)
        assert engine.start_of(request) == due.start, failing
