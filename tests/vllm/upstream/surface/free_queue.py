"""The free queue as an object: a view of the native one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbraid.ids import BlockId

if TYPE_CHECKING:
    from .blocks import PoolBlock
    from .pool import BlockPool


class FreeKVCacheBlockQueue:
    """The free blocks, next victim first, between two ends that are no blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.fake_free_list_head = _Head(self)
        self.fake_free_list_tail = _Tail(self)

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the queue."""
        return self._pool.cache.pool.num_free

    def get_all_free_blocks(self) -> list[PoolBlock]:
        """Return the blocks, next victim first."""
        return [self._pool.block(number) for number in self._pool.cache.debug.free_queue()]

    def after(self, number: BlockId) -> object:
        """Return what follows a block: a block or the end; None for one that is not free."""
        return self._next_to(number, 1)

    def before(self, number: BlockId) -> object:
        """Return what precedes a block: a block or the head; None for one that is not free."""
        return self._next_to(number, -1)

    def _next_to(self, number: BlockId, step: int) -> object:
        queue = self._pool.cache.debug.free_queue()
        if number not in queue:
            return None
        ends = [self.fake_free_list_head, *map(self._pool.block, queue), self.fake_free_list_tail]
        return ends[queue.index(number) + 1 + step]


class _Head:
    def __init__(self, queue: FreeKVCacheBlockQueue) -> None:
        self._queue = queue

    @property
    def next_free_block(self) -> object:
        """The next victim; the tail of an empty queue."""
        blocks = self._queue.get_all_free_blocks()
        return blocks[0] if blocks else self._queue.fake_free_list_tail


class _Tail:
    def __init__(self, queue: FreeKVCacheBlockQueue) -> None:
        self._queue = queue

    @property
    def prev_free_block(self) -> object:
        """The last victim; the head of an empty queue."""
        blocks = self._queue.get_all_free_blocks()
        return blocks[-1] if blocks else self._queue.fake_free_list_head
