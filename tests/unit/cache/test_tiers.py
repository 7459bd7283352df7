"""What a cache tells those who store and load its blocks, and the index of a tier."""

import pytest
from kvbraid.cache import CacheManager, Findable, Need
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.events import BlockRemoved
from kvbraid.hashing import EngineHash, block_hashes

from tests.unit.cache.caches import compute, config, full, leave, mamba, window

TOKENS = list(range(40))
DIGESTS = [bytes([number]) * 32 for number in range(9)]


def test_a_cache_hands_out_the_hashes_that_it_computed() -> None:
    cache = CacheManager(config(full(4), window(8, 8)))
    request = cache.add(TOKENS[:11])
    expected = [*block_hashes(TOKENS[:14], EngineHash(block_size=4, seed="0"))]
    assert cache.tiers.block_hashes(request) == expected[:2]
    cache.extend(request, TOKENS[11:14])
    assert cache.tiers.block_hashes(request) == expected
    assert cache.tiers.block_hashes(request, 1) == expected[1:]
    assert cache.tiers.block_hashes(request, 3) == cache.tiers.block_hashes(request, 9) == []


def test_a_cache_hands_out_the_hashes_that_it_was_given() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS[:9], block_hashes=DIGESTS[:2])
    cache.extend(request, TOKENS[9:14], block_hashes=[DIGESTS[2][:16]])
    assert cache.tiers.block_hashes(request) == [*DIGESTS[:2], DIGESTS[2][:16]]


def test_a_cache_hands_out_no_hashes_of_a_request_that_has_gone() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    cache.release([request])
    with pytest.raises(UnknownError, match=f"{request}"):
        cache.tiers.block_hashes(request)


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_a_cache_without_requests_is_the_index_of_a_tier(medium: str) -> None:
    index = CacheManager(config(full(4), full(4), num_blocks=4, medium=medium))
    for number, digest in enumerate(DIGESTS[:3]):
        slots = index.pool.take(1)
        index.pool.register(slots[0], number % 2, digest, 4)
        index.pool.free(slots)
    assert len(index.take_events()) == 0
    used = index.pool.holders(0, DIGESTS[0])
    index.pool.hold(used)  # It is read, and becomes the newest.
    index.pool.free(used)
    taken = index.pool.take(2)
    short = [int.from_bytes(digest[-8:], "big") for digest in DIGESTS]
    assert index.take_events().structs() == tuple(
        BlockRemoved(block_hashes=(short[number],), medium=medium, group_idx=number % 2)
        for number in (1, 2)
    )
    assert index.pool.holders(0, DIGESTS[0]) == used
    index.debug.check_integrity(taken)


# What to store.


def test_what_is_committed_is_findable_once() -> None:
    cache = CacheManager(config(full(4), window(8, 4), findable=True))
    request = cache.add(TOKENS[:9])
    hashes = cache.tiers.block_hashes(request)
    compute(cache, request, [5])
    tables = cache.blocks(request)
    assert cache.tiers.take_findable() == [
        Findable(group, tables[group][0], hashes[0], 4, request) for group in (0, 1)
    ]
    assert cache.allocate([Need(request=request, num_new_tokens=4)]).num_fit == 1
    cache.take_work()
    cache.release([request])
    assert cache.tiers.take_findable() == [
        Findable(group, tables[group][1], hashes[1], 8, request) for group in (0, 1)
    ]
    compute(cache, cache.add(TOKENS[:9]), [9], hit=8)
    assert cache.tiers.take_findable() == []


def test_what_is_loaded_is_findable_when_it_is_committed() -> None:
    cache = CacheManager(config(full(4), findable=True))
    request = cache.add(TOKENS[:9])
    need = Need(request=request, num_new_tokens=0, num_external_tokens=8, delay_commit=True)
    assert cache.allocate([need]).num_fit == 1
    assert cache.tiers.take_findable() == []
    cache.commit(request, 4)
    assert [found.num_tokens for found in cache.tiers.take_findable()] == [4]
    cache.commit(request, 8)
    assert [found.num_tokens for found in cache.tiers.take_findable()] == [8]


def test_what_is_no_longer_found_is_not_listed() -> None:
    cache = CacheManager(config(full(4), mamba(4), findable=True))
    request = cache.add(TOKENS[:12])
    compute(cache, request, [8])
    first, second = cache.blocks(request)[0]
    cache.pool.forget([first])
    assert [found.block_id for found in cache.tiers.take_findable()] == [second]
    cache.start_step()
    assert cache.allocate([Need(request=request, num_new_tokens=4)]).num_fit == 1
    cache.preempt([request])  # Its step never ran.
    assert cache.tiers.take_findable() == []


def test_what_nobody_takes_does_not_pile_up() -> None:
    cache = CacheManager(config(full(4), num_blocks=6, findable=True))
    for start in range(0, 400, 20):
        leave(cache, range(start, start + 20), 20)
    listed = cache.tiers.take_findable()
    assert {(f.group, f.block_hash): [f.block_id] for f in listed} == cache.debug.cached()
    assert len(listed) == 5


def test_a_cache_that_notes_nothing_says_so() -> None:
    with pytest.raises(InvalidValueError, match="findable is off"):
        CacheManager(config(full(4))).tiers.take_findable()
