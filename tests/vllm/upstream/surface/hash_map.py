"""The map from hashes to blocks, as an object: a view of the native index."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, TypeAlias

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

from .blocks import PoolBlock

if TYPE_CHECKING:
    from .pool import BlockPool

Found: TypeAlias = PoolBlock | dict[int, PoolBlock]
"""One block, or several by their numbers, as vLLM's map has them."""


class HashMap:
    """What a pool's blocks are found by."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._cache = _Entries(self)

    def __len__(self) -> int:
        return len(self._pool.cache.debug.cached())

    def get_one_block(self, key: BlockHashWithGroupId) -> PoolBlock | None:
        """Return the oldest block that is found by the hash."""
        return next(iter(self.blocks(key)), None)

    def contain(self, key: BlockHashWithGroupId, block_id: int) -> bool:
        """Return whether the block is found by the hash."""
        return any(block.block_id == block_id for block in self.blocks(key))

    def insert(self, key: BlockHashWithGroupId, block: PoolBlock) -> None:
        """Make a block findable."""
        number = self._pool.own(block)
        self._pool.cache.pool.register(number, *self._pool.native_key(key), 0)

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> PoolBlock | None:
        """Take the hash away from a block; None if the block is not found by it."""
        for block in self.blocks(key):
            if block.block_id == block_id:
                self._pool.cache.pool.unregister(block.number, *self._pool.native_key(key))
                return block
        return None

    def blocks(self, key: BlockHashWithGroupId) -> list[PoolBlock]:
        """Return all blocks that are found by the hash, oldest first."""
        holders = self._pool.cache.pool.holders(*self._pool.native_key(key))
        return [self._pool.block(number) for number in holders]

    def keys(self) -> list[BlockHashWithGroupId]:
        """Return every hash that a block is found by."""
        return [self._pool.spelled(*key) for key in self._pool.cache.debug.cached()]


class _Entries(MutableMapping[BlockHashWithGroupId, Found]):
    """The same as a mapping from a hash to its blocks; a copy of it is a dictionary."""

    def __init__(self, index: HashMap) -> None:
        self._index = index

    def __getitem__(self, key: BlockHashWithGroupId) -> Found:
        blocks = self._index.blocks(key)
        if not blocks:
            raise KeyError(key)
        return blocks[0] if len(blocks) == 1 else {block.block_id: block for block in blocks}

    def __setitem__(self, key: BlockHashWithGroupId, found: Found) -> None:
        for block in found.values() if isinstance(found, dict) else [found]:
            self._index.insert(key, block)

    def __delitem__(self, key: BlockHashWithGroupId) -> None:
        for block in self._index.blocks(key):
            self._index.pop(key, block.block_id)

    def __iter__(self) -> Iterator[BlockHashWithGroupId]:
        return iter(self._index.keys())

    def __len__(self) -> int:
        return len(self._index)

    def __copy__(self) -> dict[BlockHashWithGroupId, Found]:
        return dict(self)
