"""Which blocks are zeroed: new ones, unless a load fills them, and what a failed load left."""

from typing import Any

import pytest
from kvbraid.cache import CacheManager, GroupOptions, Need
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.spec import GroupSpec, SpecKind

from tests.unit.cache.caches import config, full, window

ZEROED = GroupOptions(needs_zeroing=True)
TOKENS = list(range(40))
RING = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4, prefix_cacheable=False)
CROSS = GroupSpec(kind=SpecKind.CROSS_ATTENTION, block_size=4, prefix_cacheable=False)


def cache_of(*groups: GroupSpec, options: tuple[GroupOptions, ...] | None = None) -> CacheManager:
    return CacheManager(config(*groups, group_options=options or (ZEROED,) * len(groups)))


def load(cache: CacheManager, num_tokens: int, groups: tuple[int, ...], **more: Any) -> int:  # noqa: ANN401 - fields of the need
    """Have a request wait for a load of its first tokens."""
    request = cache.add(TOKENS)
    need = Need(
        request=request,
        num_new_tokens=0,
        num_external_tokens=num_tokens,
        delay_commit=True,
        loading_groups=groups,
        **more,
    )
    assert cache.allocate([need]).num_fit == 1
    return request


def zeroed(cache: CacheManager) -> list[BlockId]:
    return cache.take_work().blocks_to_zero


def test_blocks_that_a_load_fills_are_not_zeroed() -> None:
    for groups, listed in (((), [0, 1]), ((1,), [0]), ((0, 1), [])):
        cache = cache_of(full(4), full(4))
        tables = cache.blocks(load(cache, 12, groups))
        assert zeroed(cache) == [block for group in listed for block in tables[group]]


def test_blocks_of_a_load_that_come_after_the_loaded_tokens_are_zeroed() -> None:
    cache = cache_of(full(4))
    (table,) = cache.blocks(load(cache, 10, (0,), num_lookahead_tokens=4))
    assert len(table) == 4
    assert zeroed(cache) == table[3:]  # The load fills a part of the third block.


def test_only_a_group_that_needs_it_is_zeroed_again() -> None:
    cache = cache_of(full(4), full(4), options=(GroupOptions(), ZEROED))
    request = load(cache, 12, (0, 1))
    cache.commit(request, 4)
    cache.record_blocks_for_zeroing(request, 4)
    assert zeroed(cache) == cache.blocks(request)[1][1:]
    assert zeroed(cache) == []


def test_what_a_failed_load_left_is_zeroed_again_without_null_blocks() -> None:
    cache = cache_of(full(4), window(6, 8))
    request = load(cache, 36, (0, 1))
    assert zeroed(cache) == []
    whole, short = cache.blocks(request)
    assert short[:3] == [0, 0, 0]
    cache.commit(request, 16)
    cache.record_blocks_for_zeroing(request, 16)
    assert zeroed(cache) == [*whole[4:], *short[3:]]
    cache.debug.check_integrity()


def test_a_ring_is_zeroed_whole_and_an_encoders_blocks_never() -> None:
    ring = GroupOptions(is_ring=True, needs_zeroing=True)
    cache = cache_of(full(4), RING, CROSS, options=(ZEROED, ring, ZEROED))
    request = load(cache, 12, (0, 1, 2), num_encoder_tokens=8)
    whole, slot, encoder = cache.blocks(request)
    assert zeroed(cache) == encoder
    cache.record_blocks_for_zeroing(request, 8)
    assert zeroed(cache) == [whole[2], *slot]


def test_a_block_that_a_transfer_may_still_write_is_not_zeroed() -> None:
    cache = cache_of(full(4))
    request = load(cache, 12, (0,))
    last = cache.blocks(request)[0][2]
    cache.pool.hold([last])
    with pytest.raises(InvalidValueError, match=f"would wipe block {last} of group 0"):
        cache.record_blocks_for_zeroing(request, 4)
    assert zeroed(cache) == []
    cache.pool.free([last])
    cache.record_blocks_for_zeroing(request, 4)
    assert zeroed(cache) == cache.blocks(request)[0][1:]


def test_zeroing_starts_where_a_block_of_each_group_starts() -> None:
    cache = cache_of(full(4), window(20, 8))
    request = load(cache, 24, (0, 1))
    with pytest.raises(InvalidValueError, match="a block of group 1; start at a multiple of 8"):
        cache.record_blocks_for_zeroing(request, 12)
    assert zeroed(cache) == []
    cache.record_blocks_for_zeroing(request, 24)
    assert zeroed(cache) == []
