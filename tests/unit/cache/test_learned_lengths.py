"""Where steps end because requests branch off there, and when that is not worth a step."""

import random
from collections.abc import Sequence

import pytest
from kvbraid.cache import ByValue, CacheManager, EvictionPolicy, Match, Need
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import config, full, mamba, window

MIXES = {"windows": [full(4), window(9, 4)], "states": [full(4), mamba(4)]}


def cache_of(groups: Sequence[GroupSpec], num_blocks: int) -> CacheManager:
    retention = ByValue(policy=EvictionPolicy.VALUE)
    return CacheManager(config(*groups, num_blocks=num_blocks, retention=retention))


def text(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(1 << 20) for _ in range(length)]


def serve(cache: CacheManager, tokens: list[int]) -> tuple[int, int]:
    """Compute a prompt in the steps that the cache plans; return what was reused, and at how many
    learned lengths steps should end."""
    request = cache.add(tokens)
    match = cache.match(request)
    num_stops = len(cache._core.stops(request))
    hit: Match | None = match
    done = match.num_tokens
    while done < len(tokens):
        num_new = cache.plan_chunk(request, 64, match=hit or Match(0, 0))
        cache.start_step()
        need = Need(request=request, num_new_tokens=num_new, match=hit)
        assert cache.allocate([need]).num_fit == 1
        done, hit = done + num_new, None
    cache.start_step()
    cache.release([request])
    return match.num_tokens, num_stops


@pytest.mark.parametrize("mix", MIXES)
def test_lengths_that_are_not_worth_a_step_are_tried_again_by_one_request_in_64(mix: str) -> None:
    """Prefixes of two lengths come back when all of them has been evicted."""
    cache, draw = cache_of(MIXES[mix], 24), random.Random(mix)
    families = [text(draw, 8 if number % 3 else 16) for number in range(12)]
    tried = {}
    for number in range(135):
        hit, tried[number] = serve(cache, families[number % 12] + text(draw, 5))
        assert not hit
    assert {number: num for number, num in tried.items() if num and number > 60} == {64: 1, 128: 1}
    cache.debug.check_integrity()


def test_lengths_that_come_back_but_save_little_are_not_worth_a_step() -> None:
    """Always four prompts begin alike: a resume saves 8 tokens of 216, less than one in 24."""
    cache, draw = cache_of(MIXES["states"], 200), random.Random(1)
    families = [text(draw, 8) for _ in range(34)]
    num_hits, tried = 0, []
    for number in range(135):
        hit, num_stops = serve(cache, families[number // 4] + text(draw, 208))
        num_hits += hit > 0
        tried += [number] * num_stops
    assert num_hits > 20
    assert [number for number in tried if number > 80] == [128], tried
