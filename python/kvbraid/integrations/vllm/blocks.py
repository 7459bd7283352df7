"""Blocks as vLLM's scheduler passes them around: ids, with an object made only for who asks.

The scheduler itself wants ids. Objects stand in for vLLM's own blocks: their properties are read
from the cache at the moment of asking, and nothing can be set.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, make_block_hash_with_group_id

from kvbraid.cache import CacheManager
from kvbraid.errors import UnsupportedError
from kvbraid.integrations.vllm.requests import Requests

NULL_BLOCK_ID = 0


class Block:
    """One block, as vLLM knows its properties."""

    __slots__ = ("_pool", "block_id")

    def __init__(self, pool: "BlockPool", block_id: int) -> None:
        self._pool = pool
        self.block_id = block_id

    @property
    def is_null(self) -> bool:
        """Whether it stands for positions that a group needs nothing of."""
        return self.block_id == NULL_BLOCK_ID

    @property
    def ref_cnt(self) -> int:
        """References to it; walks all requests."""
        return self._pool.num_references(self.block_id)

    @property
    def block_hash(self) -> BlockHashWithGroupId | None:
        """The hash by which it is found, with its group; walks the pool."""
        entry = self._pool.entry(self.block_id)
        return None if entry is None else make_block_hash_with_group_id(entry.digest, entry.group)

    def __repr__(self) -> str:
        return f"Block({self.block_id})"


class Entry(NamedTuple):
    """By what a block is found."""

    group: int
    digest: bytes


class BlockPool:
    """What the scheduler asks of a pool; the pool itself is in the cache."""

    def __init__(self, cache: CacheManager, requests: Requests) -> None:
        self._cache = cache
        self._requests = requests
        self._blocks: dict[int, Block] = {}
        self._held: Counter[int] = Counter()

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return self._cache.config.num_blocks

    @property
    def null_block(self) -> Block:
        """The block that stands for positions that a group needs nothing of."""
        return self.block(NULL_BLOCK_ID)

    @property
    def blocks(self) -> list[Block]:
        """All blocks by id."""
        return [self.block(block_id) for block_id in range(self.num_gpu_blocks)]

    def block(self, block_id: int) -> Block:
        """Return the object of a block: always the same one."""
        block = self._blocks.get(block_id)
        if block is None:
            block = self._blocks[block_id] = Block(self, block_id)
        return block

    def hold(self, block_ids: Iterable[int]) -> list[Block]:
        """Return blocks that the caller has a reference to from now on, and frees."""
        blocks = [self.block(block_id) for block_id in block_ids]
        self._held.update(block.block_id for block in blocks if not block.is_null)
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Drop a reference of each; the first is evicted first."""
        block_ids = [block.block_id for block in ordered_blocks]
        self._cache.free_blocks(block_ids)
        self._held.subtract(block_id for block_id in block_ids if block_id != NULL_BLOCK_ID)
        self._held += Counter()  # Drops what is back at zero.

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be handed out."""
        return self._cache.num_free_blocks

    def get_usage(self) -> float:
        """Return the share of the pool that is referenced."""
        return self._cache.usage

    def entry(self, block_id: int) -> Entry | None:
        """Return by what a block is found, or None; walks everything cached."""
        return self.entries().get(block_id)

    def entries(self) -> dict[int, Entry]:
        """Return by what each cached block is found; walks everything cached."""
        return {
            block_id: Entry(group, digest)
            for (group, digest), block_ids in self._cache.cached().items()
            for block_id in block_ids
        }

    def num_references(self, block_id: int) -> int:
        """Return how many references a block has; walks all requests."""
        tables = (ids for number in self._requests.numbers() for ids in self._cache.blocks(number))
        return self._held[block_id] + sum(ids.count(block_id) for ids in tables)


class Blocks(KVCacheBlocks):  # type: ignore[misc] # Untyped where vLLM is not installed.
    """Blocks by group. Owns its lists."""

    def __init__(self, pool: BlockPool, block_ids: Sequence[list[int]]) -> None:
        self._pool = pool
        self._block_ids = tuple(block_ids)

    @cached_property
    def blocks(self) -> tuple[Sequence[Block], ...]:
        """The blocks as objects."""
        return tuple([self._pool.block(block_id) for block_id in ids] for ids in self._block_ids)

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Return the ids by group; None where that is allowed and there is none."""
        ids = self._block_ids
        if group_ids is not None:
            ids = tuple(ids[group] for group in group_ids)
        if allow_none and not any(ids):
            return None
        return tuple(list(group) for group in ids)


class Hit(Blocks):
    """What a look-up found: a length. Adopting it takes nothing but that."""

    def __init__(self, pool: BlockPool, num_tokens: int) -> None:
        super().__init__(pool, ())
        self.num_tokens = num_tokens

    @property
    def blocks(self) -> tuple[Sequence[Block], ...]:
        """Refused: a hit's blocks are known once it is adopted.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"the blocks of a hit of {self.num_tokens} tokens are not known before it is "
            "allocated; ask get_blocks(request_id) after allocate_slots"
        )

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Refused as `blocks` is."""
        del allow_none, group_ids
        return self.blocks  # type: ignore[return-value] # Raises.
