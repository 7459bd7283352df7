"""Blocks as vLLM's scheduler passes them around: ids, and objects that are made only on demand.

The scheduler itself needs only ids. An object stands in for one of vLLM's own blocks: its
properties are read from the cache on each access, and none can be set.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    make_block_hash_with_group_id,
)

from kvbraid.cache import BlockInfo, CacheManager
from kvbraid.ids import BlockId

NULL_BLOCK_ID: Final = 0


class Block:
    """One block, as vLLM knows its properties."""

    __slots__ = ("_cache", "block_id")

    def __init__(self, cache: CacheManager, block_id: BlockId) -> None:
        self._cache = cache
        self.block_id = block_id

    @property
    def is_null(self) -> bool:
        """Whether this block stands for positions at which a group needs no block."""
        return self.block_id == NULL_BLOCK_ID

    @property
    def ref_cnt(self) -> int:
        """The number of references to this block."""
        return self._info().num_references

    @property
    def block_hash(self) -> BlockHashWithGroupId | None:
        """The first hash that finds this block, with its group."""
        info = self._info()
        if info.block_hash is None:
            return None
        return make_block_hash_with_group_id(info.block_hash, info.group)

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens that the hash covers."""
        return self._info().num_tokens or None

    def _info(self) -> BlockInfo:
        (info,) = self._cache.pool.describe([self.block_id])
        return info

    def __repr__(self) -> str:
        return f"Block({self.block_id})"


class EngineBlockPool:
    """The part of a block pool that a scheduler and a connector use; the cache holds the pool."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._blocks: dict[int, Block] = {}

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return self._cache.config.num_blocks

    @property
    def null_block(self) -> Block:
        """The block that stands for positions at which a group needs no block."""
        return self.block(BlockId(NULL_BLOCK_ID))

    @property
    def blocks(self) -> list[Block]:
        """All blocks by id."""
        return [self.block(BlockId(number)) for number in range(self.num_gpu_blocks)]

    def block(self, block_id: BlockId) -> Block:
        """Return the object for a block: the same one on every call."""
        block = self._blocks.get(block_id)
        if block is None:
            block = self._blocks[block_id] = Block(self._cache, block_id)
        return block

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        """Take the blocks that would be evicted next, with one reference each.

        Raises:
            InvalidValueError: Fewer than `num_blocks` blocks are free.
        """
        return [self.block(block_id) for block_id in self._cache.pool.take(num_blocks)]

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take one more reference to each block."""
        self._cache.pool.hold(self._ids(blocks))

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Drop one reference to each block; the first block is evicted first."""
        self._cache.pool.free(self._ids(ordered_blocks))

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: Sequence[int]
    ) -> list[Block] | None:
        """Return the block that a hash finds in each group; None if a group has no such block."""
        found = []
        for group in kv_cache_group_ids:
            holders = self._cache.pool.holders(group, block_hash)
            if not holders:
                return None
            found.append(self.block(holders[0]))
        return found

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop the hashes of blocks; references to the blocks stay."""
        self._cache.pool.forget([BlockId(block_id) for block_id in block_ids])

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be handed out."""
        return self._cache.pool.num_free

    def get_usage(self) -> float:
        """Return the share of the pool that is referenced."""
        return self._cache.pool.usage

    def _ids(self, blocks: Iterable[Block]) -> list[BlockId]:
        return [block.block_id for block in blocks]


class Blocks(KVCacheBlocks):  # type: ignore[misc] # Untyped where vLLM is not installed.
    """Blocks by group, as ids. `find` is called once, when the ids are first needed."""

    def __init__(self, pool: EngineBlockPool, find: Callable[[], Sequence[list[BlockId]]]) -> None:
        self._pool = pool
        self._find = find

    @cached_property
    def _block_ids(self) -> Sequence[list[BlockId]]:
        return self._find()

    @cached_property
    def blocks(self) -> tuple[Sequence[Block], ...]:
        """The blocks as objects."""
        return tuple([self._pool.block(block_id) for block_id in ids] for ids in self._block_ids)

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[BlockId], ...] | None:
        """Return the ids by group; None if there are no blocks and `allow_none` is set."""
        ids = self._block_ids
        if group_ids is not None:
            ids = [ids[group] for group in group_ids]
        if allow_none and not any(ids):
            return None
        return tuple(list(group) for group in ids)
