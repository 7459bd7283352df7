"""What a cache tells those who store and load its blocks, and the index of a tier."""

import pytest
from kvbraid.cache import CacheManager
from kvbraid.errors import UnknownError
from kvbraid.events import BlockRemoved
from kvbraid.hashing import EngineHash, block_hashes

from tests.unit.cache.caches import config, full, window

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
