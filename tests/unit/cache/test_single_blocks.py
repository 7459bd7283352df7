"""Blocks that are taken, held and found without any request, and what a retention keeps."""

import pytest
from kvbraid.cache import CacheManager, Dense, Interval, KeptState, Need, Retention

from tests.unit.cache.caches import compute, config, full, leave, mamba, window

TOKENS = list(range(40))
DIGEST, OTHER = b"d" * 32, b"o" * 32


def cache_of_two_groups() -> CacheManager:
    return CacheManager(config(full(4), window(8, 4)))


def test_a_registered_block_is_found_behind_older_ones() -> None:
    cache = cache_of_two_groups()
    first, second = cache.pool.take(2)
    for block in (first, second):
        cache.pool.register(block, 1, DIGEST, 4)
    cache.pool.register(first, 0, OTHER, 8)
    assert cache.pool.holders(1, DIGEST) == [first, second]
    assert cache.pool.holders(0, DIGEST) == []
    assert cache.pool.describe([first])[0][1:] == (1, DIGEST, 4, None)
    assert len(cache.take_events()) == 0
    cache.debug.check_integrity([first, second])


def test_a_hash_is_taken_away_and_the_next_one_is_the_first() -> None:
    cache = cache_of_two_groups()
    (block,) = cache.pool.take(1)
    for digest, num_tokens in ((DIGEST, 4), (OTHER, 8)):
        cache.pool.register(block, 0, digest, num_tokens)
    assert not cache.pool.unregister(block, 1, DIGEST)
    assert cache.pool.unregister(block, 0, DIGEST)
    assert not cache.pool.unregister(block, 0, DIGEST)
    assert cache.pool.describe([block])[0].block_hash == OTHER
    assert cache.pool.holders(0, DIGEST) == []
    cache.debug.check_integrity([block])
    assert cache.pool.unregister(block, 0, OTHER)
    assert cache.pool.describe([block])[0].block_hash is None
    assert cache.debug.cached() == {}
    cache.debug.check_integrity([block])


def test_a_request_reuses_what_was_registered_for_it() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS[:9], block_hashes=[DIGEST, OTHER])
    assert cache.match(request).num_tokens == 0
    blocks = cache.pool.take(2)
    for number, digest in enumerate((DIGEST, OTHER)):
        cache.pool.register(blocks[number], 0, digest, 4 * (number + 1))
    assert cache.match(request).num_tokens == 8
    assert cache.hit_blocks(request, 8) == [blocks]


@pytest.mark.parametrize("num_new_tokens", [1, 4, 17])
def test_blocks_needed_is_what_an_allocation_takes(num_new_tokens: int) -> None:
    cache = CacheManager(config(full(4), window(8, 4), mamba(4)))
    leave(cache, TOKENS[:12], 4)
    request = cache.add(TOKENS)
    hit = cache.match(request).num_tokens
    assert hit
    cache.start_step()
    need = Need(request=request, num_new_tokens=num_new_tokens, num_hit_tokens=hit)
    before = cache.pool.num_free
    needed = cache.blocks_needed(need)
    assert cache.pool.num_free == before
    assert cache.allocate([need]).num_fit == 1
    assert before - cache.pool.num_free == needed
    assert cache.blocks_needed(Need(request=request, num_new_tokens=0)) == 0


def test_kept_states_are_those_of_the_step_and_of_requests_that_live() -> None:
    cache = CacheManager(config(full(4), mamba(4)))
    request = cache.add(TOKENS[:12])
    compute(cache, request, [4, 8])
    state = cache.blocks(request)[1][1]
    assert cache.take_work().kept_states == [KeptState(request, 1, state, 8)]
    assert cache.take_work().kept_states == []
    other = cache.add(TOKENS[20:])
    compute(cache, other, [4])
    cache.release([other])
    assert cache.take_work().kept_states == []
    compute(cache, cache.add(TOKENS[30:]), [4])
    cache.start_step()
    assert cache.take_work().kept_states == []


def test_the_state_at_a_prompts_end_is_told_until_it_is_copied() -> None:
    layout = config(full(4), mamba(8), topology={"partial_hits": True, "hash_block_size": 4})
    cache = CacheManager(layout)
    request = cache.add(TOKENS[:13])
    compute(cache, request, [8, 12])
    cache.take_work()
    source = cache.blocks(request)[1][1]
    again = cache.add(TOKENS[20:33])
    compute(cache, again, [8, 12])
    assert cache.take_state_tails(again) == [KeptState(again, 1, cache.blocks(again)[1][1], 12)]
    assert cache.take_state_tails(again) == []
    cache.start_step()
    assert cache.allocate([Need(request=request, num_new_tokens=1)]).num_fit == 1
    work = cache.take_work()
    ((copied, copy),) = work.copies
    assert copied == source
    assert work.kept_states == [KeptState(request, 1, copy, 12)]
    assert cache.take_state_tails(request) == []


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Dense(), None),
        (Interval(0), [False, True, False, False, False, True, False, False]),
        (Interval(16), [False, True, False, True, False, True, False, True]),
    ],
)
def test_what_a_retention_keeps_of_a_window(retention: Retention, kept: list[bool] | None) -> None:
    cache = CacheManager(config(full(4), window(4, 4), retention=retention))
    assert cache.debug.kept_blocks(0, range(8), [8, 24]) is None
    assert cache.debug.kept_blocks(1, range(8), [8, 24]) == kept
    if kept is not None:
        assert cache.debug.kept_blocks(1, range(3, 6), [8, 24]) == kept[3:6]


def test_blocks_of_a_request_that_loads_late_stay_its_own() -> None:
    """It holds blocks before anything of it is registered: none is lost when more are loaded."""
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    first = Need(request=request, num_new_tokens=12, delay_commit=True)
    assert cache.allocate([first]).num_fit == 1
    more = Need(request=request, num_new_tokens=1, num_external_tokens=4, delay_commit=True)
    assert cache.allocate([more]).num_fit == 1
    cache.debug.check_integrity()
    assert len(cache.blocks(request)[0]) == 5
