"""States saved inside the step that ends a prompt, if the engine's backend can do that."""

import pytest
from kvbraid.cache import CacheManager, GroupOptions, Interval, Need

from tests.unit.cache.caches import blocks_held, config, full, mamba

PROMPT = list(range(42))


def saving(every: int | None) -> CacheManager:
    options = (GroupOptions(), GroupOptions(checkpoint_alignment=every))
    return CacheManager(config(full(4), mamba(4), group_options=options, retention=Interval(0)))


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
    cache = saving(every)
    assert at_once(cache, PROMPT) == num_steps
    assert blocks_held(cache, PROMPT, 4)[1] == {40}
    assert cache.match(cache.add(PROMPT)).num_tokens == 40
