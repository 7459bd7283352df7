"""The drop-in manager, with the parts that tests reach into as objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from kvbraid.cache import CacheManager, Dense, Interval
from kvbraid.integrations.vllm import KvbraidCacheManager
from kvbraid.integrations.vllm.coordinator import Coordinator, GroupView
from kvbraid.integrations.vllm.requests import Requests
from vllm.distributed.kv_events import BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)
from vllm.v1.request import Request

from .blocks import PoolBlock
from .pool import BlockPool


class KVCacheManager(KvbraidCacheManager):
    """The drop-in, with a pool and a coordinator that answer what tests ask."""

    block_pool: BlockPool

    def __init__(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on as they are.
        super().__init__(kv_cache_config, *args, **kwargs)
        self._stand_on(self.cache)

    def _stand_on(self, cache: CacheManager) -> None:
        self.cache = cache
        self._requests = Requests(cache, self._hash_block_size)
        self.block_pool = BlockPool.of(cache, self._hash_block_size)
        is_single = self.num_kv_cache_groups == 1
        kind = UnitaryKVCacheCoordinator if is_single else HybridKVCacheCoordinator
        self.coordinator = kind(self, self._requests)

    def retain(self, interval: int | None) -> None:
        """Keep by another interval from now on; nothing may have been cached yet."""
        assert not self.cache.cached(), "the retention of a cache that is used already"
        retention = Dense() if interval is None else Interval(interval)
        self._stand_on(CacheManager(replace(self.cache.config, retention=retention)))

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *args: Any,  # noqa: ANN401 - passed on as they are.
        **kwargs: Any,  # noqa: ANN401 - passed on as they are.
    ) -> KVCacheBlocks | None:
        """As the drop-in; blocks that a test made up as a hit are made findable before."""
        if new_computed_blocks is not None and num_new_computed_tokens:
            self._make_findable(request, new_computed_blocks)
        return super().allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, *args, **kwargs
        )

    def _make_findable(self, request: Request, hit: KVCacheBlocks) -> None:
        for group, blocks in enumerate(hit.blocks):
            size = self.coordinator.single_type_managers[group].block_size
            for position, block in enumerate(blocks):
                if not block.is_null and block.block_hash is None:
                    end = (position + 1) * size
                    digest = request.block_hashes[end // self._hash_block_size - 1]
                    self.cache.register(self.block_pool.own(block), group, digest, end)

    def take_events(self) -> list[KVCacheEvent]:
        """Take what happened; the pool does not know of what kind a group is, this does."""
        taken: list[KVCacheEvent] = self._events + self.block_pool.take_events()
        self._events = []
        for event in taken:
            if isinstance(event, BlockStored):
                spec = self.kv_cache_config.kv_cache_groups[event.group_idx].kv_cache_spec
                event.kv_cache_spec_kind = get_kv_cache_spec_kind(spec).value
                event.kv_cache_spec_sliding_window = get_kv_cache_spec_sliding_window(spec)
        return taken


class _Coordinator(Coordinator):
    """The groups together, with their sizes, and tables that follow their requests."""

    def __init__(self, manager: KVCacheManager, requests: Requests) -> None:
        cache = manager.cache
        super().__init__(manager.kv_cache_config, cache, requests, manager.block_pool)
        self._manager = manager
        topology = cache.config.topology
        self.scheduler_block_size = topology.alignment
        self.hash_block_size = topology.hash_block_size
        for view in self.single_type_managers:
            setattr(view, "req_to_blocks", Tables(manager, view))  # noqa: B010 - it has none.

    @property
    def _cache_hit_alignment_tokens(self) -> int | None:
        return self.hash_block_size if self.enable_partial_hash_hits else self.scheduler_block_size

    @property
    def retention_interval(self) -> int | None:
        """Tokens; None: everything is kept."""
        retention = self._manager.cache.config.retention
        return retention.tokens if isinstance(retention, Interval) else None

    @retention_interval.setter
    def retention_interval(self, interval: int | None) -> None:
        self._manager.retain(interval)


class UnitaryKVCacheCoordinator(_Coordinator):
    """Of one group; tests ask for the name."""


class HybridKVCacheCoordinator(_Coordinator):
    """Of several groups."""


class Tables:
    """The block tables of one group by request."""

    def __init__(self, manager: KVCacheManager, view: GroupView) -> None:
        self._manager = manager
        self._group = view.kv_cache_group_id

    def __contains__(self, request_id: str) -> bool:
        return self._manager._requests.find(request_id) is not None

    def __getitem__(self, request_id: str) -> Table:
        return Table(self._manager, request_id, self._group)


class Table(Sequence[PoolBlock]):
    """A block table: what it is now, and what it last was once the request is gone."""

    def __init__(self, manager: KVCacheManager, request_id: str, group: int) -> None:
        self._manager = manager
        self._request_id = request_id
        self._group = group
        self._last: list[PoolBlock] = []
        self._blocks()

    def _blocks(self) -> list[PoolBlock]:
        number = self._manager._requests.find(self._request_id)
        if number is not None:
            ids = self._manager.cache.blocks(number)[self._group]
            self._last = [self._manager.block_pool.block(block_id) for block_id in ids]
        return self._last

    def __len__(self) -> int:
        return len(self._blocks())

    @overload
    def __getitem__(self, index: int) -> PoolBlock: ...
    @overload
    def __getitem__(self, index: slice) -> list[PoolBlock]: ...
    def __getitem__(self, index: int | slice) -> PoolBlock | list[PoolBlock]:
        return self._blocks()[index]

    def __eq__(self, other: object) -> bool:
        return self._blocks() == (other._blocks() if isinstance(other, Table) else other)

    __hash__ = None  # type: ignore[assignment] # Equal by what it holds.
