"""Zeroing of rings, and what is refused; `test_cache_manager` says the rest of what is zeroed."""

from typing import Any

import pytest
from kvbraid.cache import CacheManager, GroupOptions, Need
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.spec import GroupSpec, SpecKind

from tests.unit.cache.caches import config, full

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
