"""One group's manager, as vLLM has one for each kind: the parts that have a meaning in our cache.

vLLM's cache is made of such managers; ours is not. To find out what a group reuses and keeps, this
asks a cache that has only this group.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from typing import Any, ClassVar

from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.ids import BlockId
from kvbraid.integrations.vllm import EngineSettings, cache_config
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
)

from .blocks import PoolBlock
from .pool import BlockPool


def _config(
    spec: KVCacheSpec,
    *,
    num_groups: int = 1,
    num_blocks: int = 2,
    alignment: int | None = None,
    hash_block_size: int | None = None,
    retention: int | None = None,
    eagle: bool = False,
    caching: bool = True,
    zeroing: bool = False,
) -> CacheConfig:
    """Return the configuration of a cache that has groups of one kind alone."""
    unit = hash_block_size or spec.block_size
    groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index in range(num_groups)]
    config = cache_config(
        KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=retention,
        ),
        EngineSettings(
            max_model_len=(1 << 31) - 1,
            scheduler_block_size=lcm(alignment or spec.block_size, spec.block_size),
            hash_block_size=unit,
            use_eagle=eagle,
            caching=caching,
        ),
    )
    is_fine = isinstance(spec, FullAttentionSpec | MambaSpec)
    is_inside = is_fine and alignment is not None and alignment < spec.block_size
    options = [replace(option, needs_zeroing=zeroing) for option in config.group_options]
    return replace(
        config,
        topology=replace(config.topology, partial_hits=is_inside),
        group_options=tuple(options),
    )


class _GroupManager:
    """A group of one kind, alone in a cache that its pool stands on from then on."""

    supports_fine_grained_hash_lookup: ClassVar = False

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        enable_caching: bool,
        kv_cache_group_id: int,
        scheduler_block_size: int,
        needs_kv_cache_zeroing: bool = False,
        max_admission_blocks_per_request: int | None = None,
    ) -> None:
        assert kv_cache_group_id == 0, "the only group"
        del max_admission_blocks_per_request  # The cache works it out.
        self.records_new_block_ids = needs_kv_cache_zeroing and not isinstance(
            kv_cache_spec, CircularBufferSpec
        )
        self._cache = CacheManager(
            _config(
                kv_cache_spec,
                num_blocks=block_pool.num_gpu_blocks,
                alignment=scheduler_block_size,
                hash_block_size=block_pool.hash_block_size,
                caching=enable_caching,
                zeroing=self.records_new_block_ids,
            )
        )
        block_pool.move_to(self._cache)
        self.block_pool = block_pool
        self._numbers: dict[str, int] = {}

    @property
    def req_to_blocks(self) -> dict[str, list[PoolBlock]]:
        """The block table of each request."""
        return {name: self._table(number) for name, number in self._numbers.items()}

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[PoolBlock]:
        """Have a request hold blocks for so many tokens; return the new ones."""
        return self._allocate(
            self._with_tokens(request_id, num_tokens_main_model),
            num_new_tokens=num_tokens_main_model,
            num_lookahead_tokens=num_tokens - num_tokens_main_model,
            # What is read no more is given back by a call of its own.
            num_in_flight_tokens=num_tokens,
        )

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        record_for_zeroing: bool = True,
    ) -> None:
        """Give a request blocks for tokens computed elsewhere, after those that it has."""
        del record_for_zeroing  # For rings, which are never zeroed.
        loaded_until = num_local_computed_tokens + num_external_computed_tokens
        self._allocate(
            self._with_tokens(request_id, loaded_until),
            num_new_tokens=0,
            num_external_tokens=num_external_computed_tokens,
            num_computed_tokens=num_local_computed_tokens,
        )

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[PoolBlock],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
    ) -> int:
        """Return how many blocks a request without a hit still needs."""
        assert not new_computed_blocks, "our cache finds a hit by the hashes of a request"
        assert num_local_computed_tokens in (0, total_computed_tokens)
        need = Need(
            request=self._with_tokens(request_id, num_tokens_main_model),
            num_new_tokens=num_tokens_main_model - total_computed_tokens,
            num_lookahead_tokens=num_tokens - num_tokens_main_model,
            num_computed_tokens=total_computed_tokens,
        )
        return self._cache.blocks_needed(need)

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """Give back what no token after so many tokens reads."""
        self._cache.free_skipped(self._number(request_id), processed_computed_tokens)

    def free(self, request_id: str) -> None:
        """Give all blocks of a request back."""
        self._cache.release([self._numbers.pop(request_id)])

    def take_new_block_ids(self) -> list[BlockId]:
        """Take the blocks to zero."""
        return self._cache.take_work().blocks_to_zero

    def _allocate(self, request: int, **need: Any) -> list[PoolBlock]:  # noqa: ANN401 - fields
        fields = {"num_computed_tokens": 0, "delay_commit": True, **need}
        allocation = self._cache.allocate([Need(request=request, **fields)])
        assert allocation.num_fit == 1
        return [self.block_pool.block(block_id) for block_id in allocation.new_blocks(0)[0]]

    def _with_tokens(self, request_id: str, num_tokens: int) -> int:
        """Return a request that has at least so many tokens.

        A manager of vLLM is told lengths alone. Our cache knows the tokens of a request, and
        refuses a load of more than these and a step that ends far beyond them.
        """
        request = self._number(request_id)
        missing = num_tokens - self._cache.num_tokens(request)
        if missing > 0:
            self._cache.extend(request, [0] * missing)
        return request

    def _number(self, request_id: str) -> int:
        if request_id not in self._numbers:
            self._numbers[request_id] = self._cache.add([0])
        return self._numbers[request_id]

    def _table(self, number: int) -> list[PoolBlock]:
        return [self.block_pool.block(block_id) for block_id in self._cache.blocks(number)[0]]

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        alignment_tokens: int,
    ) -> tuple[tuple[list[PoolBlock], ...], int]:
        """Return the blocks and tokens that groups of one kind reuse together."""
        cache = CacheManager(
            _config(
                kv_cache_spec,
                num_groups=len(kv_cache_group_ids),
                num_blocks=block_pool.num_gpu_blocks,
                alignment=alignment_tokens,
                hash_block_size=block_pool.hash_block_size,
                eagle=drop_eagle_block,
            )
        )
        digests: list[bytes] = []
        for number, block_hash in enumerate(block_hashes):
            end = (number + 1) * block_pool.hash_block_size
            keys = [
                block_pool.native_key(make_block_hash_with_group_id(block_hash, group))
                for group in kv_cache_group_ids
            ]
            for index, (group, digest) in enumerate(keys):
                for holder in block_pool.cache.pool.holders(group, digest):
                    cache.pool.register(holder, index, digest, end)
            digests.append(keys[0][1])
        # At least one token is always left to compute.
        request = cache.add([0] * (max_length + 1), block_hashes=digests)
        num_tokens = cache.match(request).num_tokens
        tables = cache.hit_blocks(request, num_tokens)
        return tuple([block_pool.block(number) for number in ids] for ids in tables), num_tokens

    @classmethod
    def reachable_block_mask(
        cls,
        start_block: int,
        end_block: int,
        alignment_tokens: int,
        kv_cache_spec: KVCacheSpec,
        use_eagle: bool,
        retention_interval: int | None = None,
        reachable_boundaries: Sequence[int] = (),
        dcp_world_size: int = 1,
    ) -> list[bool] | None:
        """Return which blocks a retention keeps; None: all."""
        ranks = dcp_world_size if kv_cache_spec.dcp_sharded else 1
        spec = replace(kv_cache_spec, block_size=kv_cache_spec.block_size * ranks)
        config = _config(
            spec, alignment=alignment_tokens, retention=retention_interval, eagle=use_eagle
        )
        blocks = range(start_block, end_block)
        return CacheManager(config).debug.kept_blocks(0, blocks, reachable_boundaries)


class FullAttentionManager(_GroupManager):
    """Of full attention."""

    supports_fine_grained_hash_lookup: ClassVar = True


class SlidingWindowManager(_GroupManager):
    """Of a window."""


class ChunkedLocalAttentionManager(_GroupManager):
    """Of chunks."""


class MambaManager(_GroupManager):
    """Of states."""

    supports_fine_grained_hash_lookup: ClassVar = True


class CircularBufferManager(_GroupManager):
    """Of rings."""


class RSWAManager(_GroupManager):
    """Of R-SWA, which our cache refuses."""
