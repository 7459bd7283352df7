"""What callers hold: counted from the moment when they get it until they free it."""

import pytest
from kvbraid.cache import CacheManager, Need
from kvbraid.errors import InvalidValueError

from tests.unit.cache.caches import compute, config, full

TOKENS = list(range(40))


def test_a_quarantine_is_counted_until_the_transfer_has_ended() -> None:
    cache = CacheManager(config(full(4), num_blocks=8))
    request = cache.add(TOKENS[:20])
    need = Need(request=request, num_new_tokens=0, num_external_tokens=16, delay_commit=True)
    cache.allocate([need])
    written = cache.blocks(request)[0][2:]
    cache.pool.hold(written)
    assert cache.pool.num_held == 2
    cache.preempt([request])
    assert cache.pool.num_free == 5
    assert not set(written) & set(cache.debug.free_queue())
    cache.debug.check_integrity(written)
    assert not cache.reset()
    cache.pool.free(written)
    assert (cache.pool.num_held, cache.pool.num_free) == (0, 7)
    cache.debug.check_integrity()


def test_a_caller_cannot_free_what_a_request_holds() -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add(TOKENS)
    compute(cache, request, [8])
    one, two = cache.blocks(request)[0]
    cache.pool.hold([two])
    with pytest.raises(InvalidValueError, match=f"block {one} is freed 1 times.* holds 0"):
        cache.pool.free([two, one])
    with pytest.raises(InvalidValueError, match=f"block {two} is freed 2 times.* holds 1"):
        cache.pool.free([two, two])
    assert cache.pool.num_held == 1
    cache.debug.check_integrity([two])


def test_the_null_block_is_never_held() -> None:
    cache = CacheManager(config(full(4)))
    null = cache.pool.take(0)
    cache.pool.hold([*null, 0])  # type: ignore[list-item]
    assert cache.pool.num_held == 0
    cache.pool.free([0])  # type: ignore[list-item]
    assert cache.take_statistics().num_held_blocks == 0
