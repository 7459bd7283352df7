"""The drop-in manager, with the parts that tests reach into as objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvbraid.cache import CacheManager, Dense, Interval
from kvbraid.integrations.vllm import KvbraidCacheManager
from kvbraid.integrations.vllm.cache.coordinator import Coordinator
from kvbraid.integrations.vllm.cache.requests import Requests
from kvbraid.integrations.vllm.cache.work import StepWork
from kvbraid.integrations.vllm.recovery.tracked import TrackedCacheManager
from vllm.distributed.kv_events import BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)
from vllm.v1.request import Request

from .pool import BlockPool
from .tables import Group


class KVCacheManager(KvbraidCacheManager):
    """The drop-in, with a pool and a coordinator that answer what tests ask."""

    block_pool: BlockPool

    def __init__(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on as they are.
        super().__init__(kv_cache_config, *args, **kwargs)
        self._stand_on(self.cache)

    def _stand_on(self, cache: CacheManager) -> None:
        self.cache = cache
        self._requests = Requests(cache, self._hash_block_size)
        self._work = StepWork(cache, self._requests)
        self.block_pool = BlockPool.of(cache, self._hash_block_size)
        is_single = self.num_kv_cache_groups == 1
        kind = UnitaryKVCacheCoordinator if is_single else HybridKVCacheCoordinator
        self.coordinator = kind(self, self._requests)

    def retain(self, interval: int | None) -> None:
        """Keep by another interval from now on; nothing may have been cached yet."""
        assert not self.cache.debug.cached(), "the retention of a cache that is used already"
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
                    self.cache.pool.register(self.block_pool.own(block), group, digest, end)

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


class TrackedManager(TrackedCacheManager, KVCacheManager):
    """The manager of a scheduler with a connector, with the same parts."""


class _Coordinator(Coordinator):
    """The groups together, with their sizes, and tables that follow their requests."""

    def __init__(self, manager: KVCacheManager, requests: Requests) -> None:
        cache = manager.cache
        super().__init__(manager.kv_cache_config, cache, requests, manager.block_pool)
        self._manager = manager
        topology = cache.config.topology
        self.scheduler_block_size = topology.alignment
        self.hash_block_size = topology.hash_block_size
        self.single_type_managers = tuple(
            Group(view, manager.cache, requests, manager.block_pool)
            for view in self.single_type_managers
        )

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
