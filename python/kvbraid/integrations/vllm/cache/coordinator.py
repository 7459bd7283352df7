"""What the scheduler reads from the parts of vLLM's manager: group sizes, blocks still needed.

Read-only: everything that changes a block goes through the manager.
"""

from collections.abc import Sequence

from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec

from kvbraid.cache import CacheManager, Need
from kvbraid.integrations.vllm.cache.blocks import Block, EngineBlockPool
from kvbraid.integrations.vllm.cache.requests import Requests


class GroupView:
    """One group, as the scheduler and the engine read it; a block covers tokens of all ranks."""

    def __init__(
        self, index: int, spec: KVCacheSpec, block_size: int, admission_cap: int | None
    ) -> None:
        self.kv_cache_group_id = index
        self.kv_cache_spec = spec
        self.block_size = block_size
        self.max_admission_blocks_per_request = admission_cap


class Coordinator:
    """The groups together."""

    def __init__(
        self,
        config: KVCacheConfig,
        cache: CacheManager,
        requests: Requests,
        pool: EngineBlockPool,
    ) -> None:
        self._cache = cache
        self._requests = requests
        self.block_pool = pool
        settings = cache.config
        self.enable_partial_hash_hits = bool(settings.topology.partial_hits)
        self.num_reprefillable_tokens = settings.num_reprefillable_tokens
        self.eagle_group_ids = {
            index for index, group in enumerate(settings.topology.groups) if group.eagle
        }
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        self.single_type_managers = tuple(
            GroupView(index, spec, group.block_size, _admission_cap(spec, cache))
            for index, (spec, group) in enumerate(
                zip(specs, settings.topology.groups, strict=True)
            )
        )
        self.full_attention_group_id = next(
            (index for index, spec in enumerate(specs) if isinstance(spec, FullAttentionSpec)),
            None,
        )

    def get_num_blocks_to_allocate(  # noqa: PLR0913 - vLLM's own signature.
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: tuple[Sequence[Block], ...],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """Return how many more blocks a running request needs to have `num_tokens` tokens.

        The scheduler asks this while a connector loads for another request.
        """
        # A running request has adopted its hit already, so these do not matter.
        del new_computed_blocks, num_local_computed_tokens, prefill_end
        need = Need(
            request=self._requests.known(request_id),
            num_new_tokens=max(num_tokens_main_model - total_computed_tokens, 0),
            num_lookahead_tokens=max(num_tokens - num_tokens_main_model, 0),
            num_encoder_tokens=num_encoder_tokens,
            num_computed_tokens=total_computed_tokens,
        )
        return self._cache.blocks_needed(need, is_admission=apply_admission_cap)


def _admission_cap(spec: KVCacheSpec, cache: CacheManager) -> int | None:
    """Return the most blocks that one request reserves in a window or chunk group."""
    cap = getattr(spec, "max_admission_blocks_per_request", None)
    if cap is None:
        return None
    return int(
        cap(
            max_in_flight_tokens=cache.config.max_in_flight_tokens,
            max_model_len=cache.config.max_model_len,
        )
    )
