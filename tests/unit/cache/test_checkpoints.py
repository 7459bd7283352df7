"""States saved inside the step that ends a prompt, if the engine's backend can do that."""

import pytest
from kvbraid.cache import CacheManager, GroupOptions, Interval, Need, Retention

from tests.unit.cache.caches import blocks_held, config, full, mamba

PROMPT = list(range(42))


def saving(
    every: int | None, retention: Retention | None = None, *, num_blocks: int = 64
) -> CacheManager:
    options = (GroupOptions(), GroupOptions(checkpoint_alignment=every))
    more = {} if retention is None else {"retention": retention}
    return CacheManager(
        config(full(4), mamba(4), group_options=options, num_blocks=num_blocks, **more)  # type: ignore[arg-type]
    )


def at_once(cache: CacheManager, tokens: list[int]) -> int:
    """Compute a prompt in as few steps as the cache lets it; return how many these are."""
    request = cache.add(tokens)
    match, num_steps, start = cache.match(request), 0, cache.match(request).num_tokens
    while start < len(tokens):
        count = cache.plan_chunk(request, 100) if num_steps else len(tokens) - start
        if not num_steps:
            count = cache.plan_chunk(request, 100, match=match)
        need = Need(
            request=request,
            num_new_tokens=count,
            num_hit_tokens=0 if num_steps else match.num_tokens,
        )
        cache.start_step()
        assert cache.allocate([need]).num_fit == 1
        start, num_steps = start + count, num_steps + 1
    cache.debug.check_integrity()
    cache.take_work()
    cache.release([request])
    return num_steps


@pytest.mark.parametrize(("every", "num_steps"), [(None, 2), (1, 1), (8, 1), (16, 2)])
def test_one_step_keeps_the_state_that_else_takes_two(every: int | None, num_steps: int) -> None:
    cache = saving(every, Interval(0))
    assert at_once(cache, PROMPT) == num_steps
    assert blocks_held(cache, PROMPT, 4)[1] == {40}
    assert cache.match(cache.add(PROMPT)).num_tokens == 40


def test_the_saved_state_lies_before_the_running_one() -> None:
    cache = saving(1)
    request = cache.add(PROMPT)
    assert cache.allocate([Need(request=request, num_new_tokens=42)]).num_fit == 1
    state = cache.blocks(request)[1]
    assert [block > 0 for block in state] == [False] * 9 + [True, True]
    (info,) = cache.pool.describe([state[9]])
    assert (info.group, info.num_tokens) == (1, 40)
    # Only the step that ends the prompt saves one, and it is given back like any other.
    cache.decode([request] * 1, [7])
    cache.decode([request], [8])
    cache.decode([request], [9])
    assert cache.blocks(request)[1][9] == 0
    assert cache.match(cache.add(PROMPT)).num_tokens == 40


def test_the_block_of_the_saved_state_is_counted() -> None:
    fits = {
        num_blocks: saving(1, num_blocks=num_blocks).can_ever_fit(42) for num_blocks in (13, 14)
    }
    assert fits == {13: False, 14: True}
    for num_blocks, num_fit in ((13, 0), (14, 1)):
        cache = saving(1, num_blocks=num_blocks)
        request = cache.add(PROMPT)
        assert cache.allocate([Need(request=request, num_new_tokens=42)]).num_fit == num_fit


def test_a_saved_state_that_nobody_awaits_is_not_kept() -> None:
    cache = saving(1, Interval(0))
    request = cache.add(PROMPT, num_prompt_tokens=20)  # It was preempted, and comes again.
    assert cache.allocate([Need(request=request, num_new_tokens=42)]).num_fit == 1
    assert blocks_held(cache, PROMPT, 4)[1] == set()
    dense = saving(1)
    request = dense.add(PROMPT, num_prompt_tokens=20)
    assert dense.allocate([Need(request=request, num_new_tokens=42)]).num_fit == 1
    assert blocks_held(dense, PROMPT, 4)[1] == {40}
