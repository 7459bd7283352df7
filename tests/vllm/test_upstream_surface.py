"""What the surface for vLLM's own tests shows of our cache is what vLLM's own parts hold.

Here it is compared with vLLM's objects; `make test-vllm-upstream` runs vLLM's tests on it.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.vllm.drop_in_pair import LAYOUTS, Pair, prefill, tokens

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from vllm.v1.core import block_pool as stock

    from tests.vllm.upstream import surface


class Shown(Pair):
    """Both managers, ours with the surface; every comparison looks at it too."""

    def __init__(self, pair: Pair) -> None:
        vars(self).update(vars(pair))
        self.num_looks = 0
        ours = surface.KVCacheManager.__new__(surface.KVCacheManager)
        vars(ours).update(vars(pair.ours))
        ours._stand_on(pair.ours.cache)
        self.ours = ours

    def compare(self) -> None:
        super().compare()
        theirs: Any = self.theirs.block_pool
        ours: Any = self.ours.block_pool
        self.num_looks += 1
        assert _queue(ours) == _queue(theirs)
        assert len(ours.cached_block_hash_to_block) == len(theirs.cached_block_hash_to_block)
        assert _entries(ours) == _entries(theirs)
        assert ours.cached_block_hashes_by_block == theirs.cached_block_hashes_by_block
        groups: Iterable[tuple[Any, Any]] = zip(
            self.theirs.coordinator.single_type_managers,
            self.ours.coordinator.single_type_managers,
            strict=True,
        )
        for their_group, our_group in groups:
            assert our_group.num_cached_block == their_group.num_cached_block
            for name, empty in (("cached_blocks_this_step", set()), ("last_state_block_idx", {})):
                assert getattr(our_group, name) == getattr(their_group, name, empty)
            for request, table in their_group.req_to_blocks.items():
                ids = [block.block_id for block in our_group.req_to_blocks[request]]
                assert ids == [block.block_id for block in table]


def _queue(pool: Any) -> list[int]:  # noqa: ANN401 - of either kind
    """Walk the free queue from its head to its tail."""
    queue = pool.free_block_queue
    numbers, block = [], queue.fake_free_list_head.next_free_block
    while block is not queue.fake_free_list_tail:
        numbers.append(block.block_id)
        block = block.next_free_block
    assert len(numbers) == queue.num_free_blocks
    return numbers


def _entries(pool: Any) -> dict[bytes, list[int]]:  # noqa: ANN401 - of either kind
    entries = pool.cached_block_hash_to_block._cache
    return {
        key: [b.block_id for b in (found.values() if isinstance(found, dict) else [found])]
        for key, found in entries.items()
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_surface_shows_what_vllms_parts_hold(name: str) -> None:
    pair = Shown(LAYOUTS[name]())
    first, second = pair.request(tokens(1, 150)), pair.request(tokens(1, 100) + tokens(2, 60))
    assert prefill(pair, first) is not None
    assert prefill(pair, second) is not None
    pair.decode(first, 20)
    pair.preempt(second)
    assert prefill(pair, second) is not None
    pair.compare_blocks()
    pair.finish([first, second])
    assert pair.num_looks > 30


def test_a_pool_that_stands_alone_does_what_vllms_does() -> None:
    unit, block_size = 16, 32
    pools: list[Any] = [kind(8, True, unit, True) for kind in (stock.BlockPool, surface.BlockPool)]
    request = LAYOUTS["states inside blocks"]().request(tokens(1, 128))
    seen = []
    for pool in pools:
        blocks = pool.get_new_blocks(4)
        pool.cache_full_blocks(request, blocks, 0, 3, block_size, 1, [True, False, True])
        for boundary in (96, 112):
            pool.cache_partial_block(request, blocks[3], boundary, 0, block_size)
        pool.emit_cached_block_events(request, 2, block_size, 2)
        pool.touch(blocks[:1])
        pool.free_blocks(blocks)
        before = (_queue(pool), _entries(pool), pool.cached_block_hashes_by_block)
        pool.get_new_blocks(6)
        pool.evict_blocks({blocks[0].block_id})
        seen.append((before, _queue(pool), _entries(pool), pool.take_events()))
    assert seen[0] == seen[1]
    assert len(seen[0][-1]) > 5
