"""Our cache with the interface of vLLM's KV cache manager, as far as its schedulers use it.

Invariant: after each call the same blocks are held, findable and free as with vLLM's own manager,
and the same events are recorded in the same order. It holds no block itself: requests are numbers
of our cache, blocks are ids, and the objects that vLLM passes around are made on demand.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    KVCacheConfig,
    MambaSpec,
)
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import Request, RequestStatus

from kvbraid.cache import ByValue, CacheManager, Need
from kvbraid.errors import UnsupportedError
from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache import events
from kvbraid.integrations.vllm.cache.blocks import Block, Blocks, EngineBlockPool
from kvbraid.integrations.vllm.cache.convert import EngineSettings, cache_config
from kvbraid.integrations.vllm.cache.coordinator import Coordinator
from kvbraid.integrations.vllm.cache.requests import Requests
from kvbraid.integrations.vllm.cache.sinks import reset_beside, sink_blocks
from kvbraid.integrations.vllm.cache.work import StepWork

_WAITING = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class KvbraidCacheManager:
    """Our cache, with the methods and names of vLLM's manager.

    `by_value` replaces the retention of the engine's configuration; `findable` is for a connector
    that takes what became findable.

    Raises:
        UnsupportedError: Our cache does not treat the model or a setting in the way vLLM does.
        InvalidValueError: No cache can do this; the message names the group, rule and remedy.
    """

    def __init__(  # noqa: PLR0913 - vLLM's own signature.
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_prefill_lookahead: int = 0,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: KVCacheMetricsCollector | None = None,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
        *,
        by_value: ByValue | None = None,
        findable: bool = False,
    ) -> None:
        _refuse(metrics_collector)
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.enable_kv_cache_events = enable_kv_cache_events
        self.use_eagle = use_eagle
        self.log_stats = log_stats
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.num_kv_cache_groups = len(kv_cache_config.kv_cache_groups)
        self._hash_block_size = hash_block_size
        self._has_states = any(
            isinstance(group.kv_cache_spec, MambaSpec) for group in kv_cache_config.kv_cache_groups
        )
        self.cache = CacheManager(
            cache_config(
                kv_cache_config,
                EngineSettings(
                    max_model_len=max_model_len,
                    scheduler_block_size=scheduler_block_size,
                    hash_block_size=hash_block_size,
                    max_in_flight_tokens=max_in_flight_tokens,
                    caching=enable_caching,
                    use_eagle=use_eagle,
                    num_prefill_lookahead=num_prefill_lookahead,
                    events=enable_kv_cache_events,
                    watermark=watermark,
                    mamba_shared_prefix_checkpoint=enable_mamba_shared_prefix_checkpoint,
                    decode_context_parallel=dcp_world_size,
                    prefill_context_parallel=pcp_world_size,
                    by_value=by_value,
                    findable=findable,
                ),
            )
        )
        self._sinks = sink_blocks(kv_cache_config)
        self.cache.pool.hold(self._sinks)
        self.held_beside: Callable[[], Sequence[BlockId]] = tuple
        """The blocks that are held for no request; a connector may set it, and `on_reset`."""
        self.on_reset: Callable[[], None] = lambda: None
        self.mamba_shared_prefix_checkpoint = self.cache.config.partial_junctions
        self._requests = Requests(self.cache, hash_block_size)
        self._work = StepWork(self.cache, self._requests)
        self._events: list[KVCacheEvent] = []
        self.block_pool = EngineBlockPool(self.cache)
        self.coordinator = Coordinator(
            kv_cache_config, self.cache, self._requests, self.block_pool
        )
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.empty_kv_cache_blocks = KVCacheBlocks(
            tuple(() for _ in range(self.num_kv_cache_groups))
        )

    # Names.

    def number_of(self, request: Request) -> int:
        """Return a request's number in `cache`, which knows all of its tokens from now on."""
        return self._requests.number_of(request)

    def find_number(self, request_id: str) -> int | None:
        """Return the number of a request; None if it is not known."""
        return self._requests.find(request_id)

    # Looking up.

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        """Return whether the request may reuse what is cached."""
        return self.enable_caching and not request.skip_reading_prefix_cache

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int, int]:
        """Look the request up; return the blocks and tokens it can reuse, and the junction."""
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        number = self._requests.number_of(request)
        num_tokens, junction = self.cache.match(number)
        if num_tokens == 0:
            return self.empty_kv_cache_blocks, 0, junction
        if self.enable_kv_cache_events and request.kv_cache_report_mode == "full":
            self._report_reuse(request, num_tokens)
        find = partial(self.cache.hit_blocks, number, num_tokens)
        return Blocks(self.block_pool, find), num_tokens, junction

    def get_computed_blocks_for_connector(
        self, request: Request
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        """Look the request up. All groups have the same hit: `_check_connector` refuses others."""
        return *self.get_computed_blocks(request), False

    def truncate_computed_blocks(
        self, blocks: KVCacheBlocks, num_computed_tokens: int
    ) -> KVCacheBlocks:
        """Return the part of a look-up's result that lies before an aligned token.

        A state group may have fewer blocks: the load then brings the state.
        """
        kept: list[list[BlockId]] = []
        for group, ids in zip(
            self.coordinator.single_type_managers, blocks.get_block_ids(), strict=True
        ):
            spec = group.kv_cache_spec
            if not spec.prefix_cacheable:
                kept.append([])
                continue
            count, rest = divmod(num_computed_tokens, group.block_size)
            assert rest == 0, f"{num_computed_tokens} tokens end inside a block of {spec}"
            assert isinstance(spec, MambaSpec) or count <= len(ids), f"{len(ids)} of {spec}"
            kept.append(ids[:count])
        return self._blocks(kept)

    # Allocating.

    def new_step_starts(self) -> None:
        """Begin a step."""
        self._work.start_step()

    def allocate_slots(  # noqa: PLR0913 - vLLM's own signature.
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> KVCacheBlocks | None:
        """Adopt a hit and add blocks for a step; None if the request does not fit."""
        del new_computed_blocks  # The hit's length determines its blocks.
        allocation = self.cache.allocate(
            [
                Need(
                    request=self._requests.number_of(request),
                    num_new_tokens=num_new_tokens,
                    num_hit_tokens=num_new_computed_tokens,
                    junction=request.shared_prefix_boundary,
                    num_external_tokens=num_external_computed_tokens,
                    num_lookahead_tokens=num_lookahead_tokens,
                    num_in_flight_tokens=request.num_in_flight_tokens,
                    num_encoder_tokens=num_encoder_tokens,
                    num_computed_tokens=request.num_computed_tokens,
                    delay_commit=delay_cache_blocks,
                    loading_groups=skip_zeroing_group_ids,
                    full_sequence_must_fit=full_sequence_must_fit,
                    is_waiting=has_scheduled_reqs and request.status in _WAITING,
                )
            ],
            reserved_blocks=reserved_blocks,
        )
        if allocation.num_fit == 0:
            return None
        return self._blocks(allocation.new_blocks(0))

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make the blocks of computed tokens findable."""
        if self.enable_caching:
            self.cache.commit(self._requests.number_of(request), num_computed_tokens)

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Give back the blocks that no token after the first `num_computed_tokens` reads."""
        del num_prompt_tokens  # For R-SWA, which is refused.
        number = self._requests.find(request_id)
        if number is not None:
            self.cache.free_skipped(number, processed_computed_tokens)

    # Giving back.

    def free(self, request: Request) -> None:
        """Give all blocks of a finished or preempted request back."""
        number = self._requests.forget(request.request_id)
        if number is not None:
            self.cache.release([number])

    def pop_blocks_for_free(self, request: Request) -> list[Block]:
        """Hand the blocks of a request over; the caller frees them, the last one first."""
        number = self._requests.forget(request.request_id)
        return [] if number is None else self._objects(self.cache.pop_blocks(number))

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop the hashes of blocks; references to the blocks stay."""
        self.cache.pool.forget([BlockId(block_id) for block_id in block_ids])

    def reset_prefix_cache(self) -> bool:
        """Drop the hashes of all blocks unless a block is in use; return whether it was done."""
        if not reset_beside(self.cache, [*self._sinks, *self.held_beside()]):
            return False
        self.on_reset()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    # What workers have to do.

    def take_new_block_ids(self) -> list[BlockId]:
        """Take the blocks to zero before the step runs."""
        return self._work.take_blocks_to_zero()

    def _copied(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        """Do what there is to do about copies that a step begins with."""

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[Block]]:
        """Take the copies to make before the step runs, and both ends of each, held."""
        copies = self._work.take_copies()
        self._copied(copies)
        ends = [block_id for copy in copies for block_id in copy]
        return [KVCacheBlockCopy(*copy) for copy in copies], self._objects(ends)

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Take the states that a connector may store, by request: group, block, tokens."""
        if not self._has_states:
            return {}
        return self._work.take_states()

    def finalize_partial_tail_offloads(self, request: Request) -> list[tuple[int, int, int]]:
        """Take the states at the end of a finished request's prompt, if no later token was
        computed."""
        number = self._requests.find(request.request_id)
        if number is None:
            return []
        tails = self.cache.take_state_tails(number)
        if request.num_in_flight_tokens:
            return []
        return [
            (group, block_id, num_tokens)
            for _, group, block_id, num_tokens in tails
            if num_tokens == request.num_computed_tokens
        ]

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """List a request's blocks from a token on for zeroing: a load left them unwritten."""
        self.cache.record_blocks_for_zeroing(self._requests.known(request_id), start_token)

    # Reading.

    @property
    def usage(self) -> float:
        """Share of the pool that is referenced, 0 to 1."""
        return self.cache.pool.usage

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """Return the block table of a request."""
        number = self._requests.find(request_id)
        return self.empty_kv_cache_blocks if number is None else self._blocks_of(number)

    def get_block_ids(self, request_id: str) -> tuple[list[BlockId], ...]:
        """Return the block table of a request, as ids."""
        number = self._requests.find(request_id)
        if number is None:
            return tuple([] for _ in range(self.num_kv_cache_groups))
        return tuple(self.cache.blocks(number))

    def get_block_ids_for_computed_tokens(
        self, request_id: str, num_computed_tokens: int
    ) -> tuple[list[BlockId], ...]:
        """Return the ids of the blocks that hold computed tokens."""
        clipped = []
        groups = self.kv_cache_config.kv_cache_groups
        for group, ids in zip(groups, self.get_block_ids(request_id), strict=True):
            spec = group.kv_cache_spec
            is_by_token = isinstance(spec, AttentionSpec) and not isinstance(
                spec, CrossAttentionSpec | EncoderOnlyAttentionSpec
            )
            end = -(-num_computed_tokens // spec.block_size) if is_by_token else None
            clipped.append(ids[:end])
        return tuple(clipped)

    def create_kv_cache_blocks(self, blocks: tuple[Sequence[Block], ...]) -> KVCacheBlocks:
        """Return blocks by group as one object."""
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def estimate_cached_tokens(self, request: Request) -> int:
        """Return the number of tokens up to which every group has findable blocks."""
        number = self._requests.find(request.request_id)
        if number is None:
            return 0
        tables = self.cache.blocks(number)
        infos = iter(self.cache.pool.describe([block_id for ids in tables for block_id in ids]))
        cached = [
            max((info.num_tokens for info in islice(infos, len(ids))), default=0) for ids in tables
        ]
        groups = self.cache.config.topology.groups
        reused = zip(groups, cached, strict=True)
        return min((end for group, end in reused if group.prefix_cacheable), default=0)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return zeros: vLLM no longer counts these blocks."""
        del running_request_id
        return [0] * self.num_kv_cache_groups

    # Telling.

    def take_events(self) -> list[KVCacheEvent]:
        """Take the events since the last call."""
        if not self.enable_kv_cache_events:
            return []
        taken = self._events + events.to_vllm(self.cache.take_events())
        self._events = []
        return taken

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Take the counts of look-ups since the last call; None if they are not kept."""
        stats = self.prefix_cache_stats
        self.prefix_cache_stats = PrefixCacheStats() if self.log_stats else None
        return stats

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Count the look-up of a request that was admitted."""
        if self.prefix_cache_stats is not None and self.prefix_cache_lookup_enabled(request):
            self.prefix_cache_stats.record(
                num_tokens=request.num_tokens,
                num_hits=num_hits,
                preempted=request.num_preemptions > 0,
            )

    def _report_reuse(self, request: Request, num_tokens: int) -> None:
        groups = self.coordinator.single_type_managers
        self._events += events.to_vllm(self.cache.take_events())  # They come before.
        self._events += events.reused(request, num_tokens, groups, self._hash_block_size)

    def _blocks_of(self, number: int) -> KVCacheBlocks:
        return self._blocks(self.cache.blocks(number))

    def _blocks(self, block_ids: list[list[BlockId]]) -> KVCacheBlocks:
        if not any(block_ids):
            return self.empty_kv_cache_blocks
        return Blocks(self.block_pool, lambda: block_ids)

    def _objects(self, block_ids: list[BlockId]) -> list[Block]:
        return [self.block_pool.block(block_id) for block_id in block_ids]


def _refuse(metrics: KVCacheMetricsCollector | None) -> None:
    if metrics is not None:
        raise UnsupportedError(
            "residency metrics of single blocks: kvbraid was not tested with them; leave "
            "--kv-cache-metrics out, or start vLLM without --scheduler-cls"
        )
