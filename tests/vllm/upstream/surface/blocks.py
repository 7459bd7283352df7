"""Blocks of a pool as tests use them: their hashes can be set, and they know their neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbraid.cache import BlockInfo
from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache.blocks import NULL_BLOCK_ID, Block
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

if TYPE_CHECKING:
    from .pool import BlockPool


class PoolBlock(Block):
    """A block, with its pool and its place in the free queue."""

    __slots__ = ("number", "pool")

    def __init__(self, pool: BlockPool, number: BlockId, block_id: BlockId | None = None) -> None:
        super().__init__(pool.cache, number if block_id is None else block_id)
        self.pool = pool
        self.number = number

    def move_to(self, pool: BlockPool, number: BlockId) -> None:
        """Stand for a block of another pool from now on."""
        self._cache, self.pool, self.number = pool.cache, pool, number

    @property
    def is_null(self) -> bool:
        return self.number == NULL_BLOCK_ID

    @property
    def block_hash(self) -> BlockHashWithGroupId | None:
        info = self._info()
        if info.block_hash is None or info.group is None:
            return None
        return self.pool.spelled(info.group, info.block_hash)

    def set_block_hash(self, key: BlockHashWithGroupId, num_tokens: int | None = None) -> None:
        assert self.block_hash is None, "a block is given a hash while it has one"
        self._cache.pool.register(self.number, *self.pool.native_key(key), num_tokens or 0)

    def reset_hash(self) -> None:
        while (key := self.block_hash) is not None:
            self._cache.pool.unregister(self.number, *self.pool.native_key(key))

    @property
    def next_free_block(self) -> object:
        """The block that is evicted after this one; the queue's end after the last."""
        return self.pool.free_block_queue.after(self.number)

    @property
    def prev_free_block(self) -> object:
        """The block that is evicted before this one; the queue's end before the first."""
        return self.pool.free_block_queue.before(self.number)

    def _info(self) -> BlockInfo:
        (info,) = self._cache.pool.describe([self.number])
        return info
