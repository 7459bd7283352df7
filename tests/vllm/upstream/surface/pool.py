"""A pool that tests reach into, over our cache: of an engine's manager, or standing alone.

A block that is registered through a pool, and not for a request of the cache, has an event that is
made here, after the events that the cache has recorded by then.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Final

from kvbraid.cache import CacheConfig, CacheManager
from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache import events
from kvbraid.integrations.vllm.cache.blocks import Block, EngineBlockPool
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology
from vllm.distributed.kv_events import MEDIUM_GPU, KVCacheEvent
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    get_block_hash,
    get_group_id,
    make_block_hash_with_group_id,
)
from vllm.v1.request import Request

from .blocks import PoolBlock
from .free_queue import FreeKVCacheBlockQueue
from .hash_map import HashMap
from .stored import stored

_GROUPS_OF_A_LONE_POOL: Final = 8
_DIGEST_BYTES: Final = (16, 32)


class BlockPool(EngineBlockPool):
    """A pool that stands alone: nobody said which groups there are."""

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        metrics_collector: None = None,
        medium: str = MEDIUM_GPU,
    ) -> None:
        assert metrics_collector is None
        assert medium == MEDIUM_GPU
        group = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=hash_block_size)
        config = CacheConfig(
            topology=Topology(groups=(group,) * _GROUPS_OF_A_LONE_POOL),
            dialect=EngineDialect.VLLM,
            num_blocks=num_gpu_blocks,
            caching=enable_caching,
            events=enable_kv_cache_events,
        )
        self._stand_on(CacheManager(config), hash_block_size)

    @classmethod
    def of(cls, cache: CacheManager, hash_block_size: int) -> "BlockPool":
        """Return the pool of a cache that an engine's manager has."""
        pool = cls.__new__(cls)
        pool._stand_on(cache, hash_block_size)
        return pool

    def move_to(self, cache: CacheManager) -> None:
        """Stand on another cache; nothing may have been done yet."""
        assert not self._blocks, "a pool whose blocks are known already"
        self._stand_on(cache, self.hash_block_size)

    def _stand_on(self, cache: CacheManager, hash_block_size: int) -> None:
        super().__init__(cache)
        self.cache = cache
        self.hash_block_size = hash_block_size
        self.enable_caching = cache.config.caching
        self.enable_kv_cache_events = cache.config.events
        self.medium = MEDIUM_GPU
        self._events: list[KVCacheEvent] = []
        self._spelling: dict[tuple[int, bytes], BlockHashWithGroupId] = {}

    # Blocks.

    def block(self, block_id: BlockId) -> PoolBlock:
        """Return the object of a block: always the same one."""
        block = self._blocks.get(block_id)
        if block is None:
            block = self._blocks[block_id] = PoolBlock(self, block_id)
        assert isinstance(block, PoolBlock)
        return block

    def own(self, block: Block) -> BlockId:
        """Return which block of this pool it is: one made by hand becomes the next victim."""
        assert isinstance(block, PoolBlock)
        if block.pool is not self:
            key, num_tokens = block.block_hash, block.block_hash_num_tokens
            (number,) = self.cache.pool.take(1)
            block.move_to(self, number)
            self._blocks[number] = block
            if key is not None:
                block.set_block_hash(key, num_tokens)
        return block.number

    def _ids(self, blocks: Iterable[Block]) -> list[BlockId]:
        return [self.own(block) for block in blocks]

    def is_block_writable(self, block: PoolBlock) -> bool:
        """Return whether its one owner may write to it."""
        return not block.is_null and block.ref_cnt == 1 and block.block_hash is None

    @cached_property
    def free_block_queue(self) -> FreeKVCacheBlockQueue:
        """The free blocks."""
        return FreeKVCacheBlockQueue(self)

    # Hashes. Tests also make up some that no engine has: these are found by a digest of them.

    def native_key(self, key: BlockHashWithGroupId) -> tuple[int, bytes]:
        """Return the group and the hash by which the cache knows a key."""
        group, digest = get_group_id(key), bytes(get_block_hash(key))
        if group >= self.cache.num_groups or len(digest) not in _DIGEST_BYTES:
            group, digest = 0, sha256(key).digest()
            self._spelling[group, digest] = key
        return group, digest

    def spelled(self, group: int, digest: bytes) -> BlockHashWithGroupId:
        """Return the key that the cache knows by a group and a hash."""
        made_up = self._spelling.get((group, digest))
        return made_up or make_block_hash_with_group_id(BlockHash(digest), group)

    @cached_property
    def cached_block_hash_to_block(self) -> HashMap:
        """What blocks are found by."""
        return HashMap(self)

    @property
    def cached_block_hashes_by_block(self) -> dict[int, set[BlockHashWithGroupId]]:
        """By block, the hashes beyond the one it is found by first."""
        further: dict[int, set[BlockHashWithGroupId]] = {}
        for (group, digest), holders in self.cache.debug.cached().items():
            key = self.spelled(group, digest)
            for number in holders:
                if self.block(number).block_hash != key:
                    further.setdefault(number, set()).add(key)
        return further

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: Sequence[int]
    ) -> list[Block] | None:
        """Return, for each group, the block that is found by a hash; None if one has none."""
        keys = (make_block_hash_with_group_id(block_hash, group) for group in kv_cache_group_ids)
        found = [self.cached_block_hash_to_block.get_one_block(key) for key in keys]
        blocks = [block for block in found if block is not None]
        return blocks if len(blocks) == len(found) else None  # type: ignore[return-value]

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[PoolBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: Sequence[bool] | None = None,
    ) -> None:
        """Make whole blocks of a request findable, but for null blocks and those masked out."""
        positions = range(num_cached_blocks, num_full_blocks)
        kept = [
            position
            for position in positions
            if not blocks[position].is_null
            and (block_mask is None or block_mask[position - num_cached_blocks])
        ]
        for position in kept:
            number, end = self.own(blocks[position]), (position + 1) * block_size
            self.cache.pool.forget([number])
            digest = request.block_hashes[end // self.hash_block_size - 1]
            self.cache.pool.register(number, kv_cache_group_id, digest, end)
        if self.enable_kv_cache_events and positions:
            self._tell(
                stored(
                    request,
                    [(position * block_size, (position + 1) * block_size) for position in kept],
                    (positions.start * block_size, positions.stop * block_size),
                    (kv_cache_group_id, block_size, self.hash_block_size),
                )
            )

    def cache_partial_block(
        self,
        request: Request,
        block: PoolBlock,
        num_tokens: int,
        kv_cache_group_id: int,
        block_size: int,
        replace_existing_hashes: bool = False,
    ) -> BlockHashWithGroupId | None:
        """Make a block findable at a boundary inside it; return the key."""
        unit = self.hash_block_size
        assert num_tokens % unit == 0, "no hash ends there"
        assert block_size % unit == 0, "a block is of whole hash blocks"
        if block.is_null:
            return None
        number = self.own(block)
        digest = request.block_hashes[num_tokens // unit - 1]
        is_known = number in self.cache.pool.holders(kv_cache_group_id, digest)
        is_shorter = not is_known and (block.block_hash_num_tokens or num_tokens) < num_tokens
        if replace_existing_hashes or is_shorter:
            self.cache.pool.forget([number])
        self.cache.pool.register(number, kv_cache_group_id, digest, num_tokens)
        if self.enable_kv_cache_events and (replace_existing_hashes or not is_known):
            part = (num_tokens - unit, num_tokens)
            self._tell(stored(request, [part], part, (kv_cache_group_id, unit, unit)))
        return make_block_hash_with_group_id(digest, kv_cache_group_id)

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached, unless a block is in use; return whether it was done."""
        return self.cache.reset()

    # Events.

    @property
    def kv_event_queue(self) -> list[KVCacheEvent]:
        """What happened since events were taken."""
        self._events += events.to_vllm(self.cache.take_events())
        return self._events

    def emit_cached_block_events(
        self, request: Request, num_cached_blocks: int, block_size: int, kv_cache_group_id: int
    ) -> None:
        """Tell of blocks that a request reuses, from its first one on."""
        if self.enable_kv_cache_events and num_cached_blocks:
            whole = (0, num_cached_blocks * block_size)
            parts = [(start, start + block_size) for start in range(*whole, block_size)]
            self._tell(
                stored(
                    request, parts, whole, (kv_cache_group_id, block_size, self.hash_block_size)
                )
            )

    def take_events(self) -> list[KVCacheEvent]:
        """Take what happened."""
        taken = self.kv_event_queue
        self._events = []
        return taken

    def _tell(self, event: KVCacheEvent) -> None:
        self.kv_event_queue.append(event)
