"""The engine's own KV cache manager as a `Side`: the truth that lock-step compares with.

Everything the engine decides is decided by its unchanged code, with two exceptions. The second
and later hashes of one block live in a set there, whose order (so the order in which their
removals are announced) differs from process to process; here they keep the order of insertion.
And no request starts on a copy that would be made too early (see `unwritten`).
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from kvbraid.spec import SpecKind

from tests.vllm.lockstep.configs import Config, Group
from tests.vllm.lockstep.side import Ask, Blocks, Hit, NewRequest
from tests.vllm.lockstep.unwritten import UnwrittenBlocks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import msgspec
    import torch
    from vllm.distributed.kv_events import KVEventBatch
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request, RequestStatus

logging.getLogger("vllm").setLevel(logging.ERROR)  # Each refused reset is a line otherwise.

Spec: TypeAlias = Any
"""A `KVCacheSpec` of the engine, which is not installed where types are checked."""

SAMPLING: Final = SamplingParams(max_tokens=10_000)
ENCODER: Final = msgspec.msgpack.Encoder()


class InsertionOrder(dict[int, Any]):
    """The engine's map from a block to its further hashes, each set replaced by an ordered one."""

    class Ordered(dict[bytes, None]):
        """A set that keeps the order of insertion, as far as the engine uses one."""

        def add(self, key: bytes) -> None:
            self.setdefault(key)

    def setdefault(self, key: int, default: Any = None) -> Any:  # noqa: ANN401 - the engine's.
        """Return the hashes of a block."""
        return super().setdefault(key, self.Ordered(dict.fromkeys(default)))


@cache
def seeded_hash() -> Any:  # noqa: ANN401 - a function of the engine.
    """Return the engine's default hash function, its parent of first blocks initialised."""
    kv_cache_utils.init_none_hash(sha256)
    return sha256


def spec_of(group: Group, config: Config) -> Spec:
    """Return the engine's spec of a group."""
    is_sharded = group.kind is not SpecKind.MAMBA and not group.is_replicated
    block_size = group.block_size // (config.num_ranks if is_sharded else 1)
    if group.kind is SpecKind.MAMBA:
        return MambaSpec(
            block_size=block_size,
            shapes=((8,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            num_speculative_blocks=config.num_draft_tokens,
            num_prefill_checkpoint_blocks=int(config.checkpoint_alignment is not None),
            prefill_checkpoint_alignment=config.checkpoint_alignment,
        )
    sizes = {
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_size": 8,
        "dtype": torch.float32 if group.is_wide else torch.bfloat16,
        "dcp_sharded": is_sharded,
    }
    window = {
        "sliding_window": group.window,
        "extra_retained_tokens": config.num_reprefillable_tokens,
    }
    makers = {
        SpecKind.FULL_ATTENTION: lambda: FullAttentionSpec(**sizes),
        SpecKind.MLA_ATTENTION: lambda: MLAAttentionSpec(**sizes),
        SpecKind.SLIDING_WINDOW: lambda: SlidingWindowSpec(**sizes, **window),
        SpecKind.SLIDING_WINDOW_MLA: lambda: SlidingWindowMLASpec(**sizes, **window),
        SpecKind.CHUNKED_LOCAL_ATTENTION: lambda: ChunkedLocalAttentionSpec(
            **sizes, attention_chunk_size=group.chunk
        ),
    }
    return makers[group.kind]()


def manager_of(config: Config) -> KVCacheManager:
    """Build the engine's manager; check that it sees the configuration as the tests do."""
    cache_config = KVCacheConfig(
        num_blocks=config.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer{index}"], spec_of(group, config), is_eagle_group=group.eagle)
            for index, group in enumerate(config.groups)
        ],
        prefix_cache_retention_interval=config.retention,
    )
    manager = KVCacheManager(
        cache_config,
        max_model_len=config.max_model_len,
        scheduler_block_size=config.alignment,
        hash_block_size=config.hash_block_size,
        max_in_flight_tokens=config.max_in_flight_tokens,
        enable_caching=config.caching,
        use_eagle=config.use_eagle,
        num_prefill_lookahead=config.prefill_lookahead,
        enable_kv_cache_events=config.events,
        dcp_world_size=config.num_ranks,
        watermark=config.watermark,
        enable_mamba_shared_prefix_checkpoint=config.partial_junctions,
    )
    assert manager.coordinator.enable_partial_hash_hits == config.partial_hits
    assert manager.mamba_shared_prefix_checkpoint == config.partial_junctions
    assert cache_config.needs_kv_cache_zeroing == config.needs_zeroing
    manager.block_pool.cached_block_hashes_by_block = InsertionOrder()
    return manager


class Theirs:
    """The engine's manager as a `Side`."""

    def __init__(self, config: Config) -> None:
        self.manager = manager_of(config)
        self._hasher = kv_cache_utils.get_request_block_hasher(
            config.hash_block_size, seeded_hash()
        )
        self._requests: dict[int, Request] = {}
        self._hits: dict[int, Any] = {}
        self._being_copied: list[int] = []
        self._unwritten = UnwrittenBlocks()

    @property
    def num_early_copies(self) -> int:
        """How often a request would have started on a copy made too early."""
        return self._unwritten.num_early_copies

    def add(self, request: NewRequest) -> None:
        lora = request.extra.lora
        self._requests[request.key] = Request(
            request_id=str(request.key),
            prompt_token_ids=list(request.tokens),
            sampling_params=SAMPLING,
            pooling_params=None,
            arrival_time=0.0,
            mm_features=[
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=item.identifier,
                    mm_position=PlaceholderRange(offset=item.offset, length=item.length),
                )
                for item in request.extra.media
            ],
            lora_request=None
            if lora is None
            else LoRARequest(lora.name, request.lora_id, lora.path),
            cache_salt=request.extra.cache_salt,
            block_hasher=self._hasher,
            session_id=request.session_id,
        )

    def extend(self, key: int, tokens: Sequence[int]) -> None:
        self._requests[key].append_output_token_ids(list(tokens))

    def start_step(self) -> None:
        ends, self._being_copied = self._being_copied, []
        self.free_blocks(ends)
        self._unwritten.start_step()
        self.manager.new_step_starts()

    def match(self, key: int) -> Hit:
        blocks, num_tokens, junction = self.manager.get_computed_blocks(self._requests[key])
        self._hits[key] = blocks, num_tokens
        return Hit(num_tokens, junction)

    def allocate(self, asks: Sequence[Ask], reserved_blocks: int) -> list[Blocks]:
        fitting: list[Blocks] = []
        groups = self.manager.coordinator.single_type_managers
        for ask in asks:
            hits = None if ask.junction is None else self._hit_of(ask)
            if hits is not None and self._unwritten.has_to_wait(groups, ask, hits.blocks):
                break
            request = self._requests[ask.key]
            request.num_computed_tokens = ask.num_computed_tokens
            request.num_in_flight_tokens = ask.num_in_flight_tokens
            request.status = RequestStatus.WAITING if ask.is_waiting else RequestStatus.RUNNING
            if ask.junction is not None:
                request.shared_prefix_boundary = ask.junction
            blocks = self.manager.allocate_slots(
                request,
                ask.num_new_tokens,
                num_new_computed_tokens=ask.num_hit_tokens,
                new_computed_blocks=hits,
                num_lookahead_tokens=ask.num_lookahead_tokens,
                num_external_computed_tokens=ask.num_external_tokens,
                delay_cache_blocks=ask.delay_commit,
                skip_zeroing_group_ids=ask.loading_groups,
                full_sequence_must_fit=ask.full_sequence_must_fit,
                reserved_blocks=reserved_blocks,
            )
            if blocks is None:
                break
            self._unwritten.note(groups, ask)
            fitting.append([list(ids) for ids in blocks.get_block_ids()])
        return fitting

    def _hit_of(self, ask: Ask) -> Any:  # noqa: ANN401 - the engine's.
        """Return the blocks of a hit, whole ones only if a load covers the rest."""
        blocks, num_tokens = self._hits[ask.key]
        if ask.num_hit_tokens == num_tokens:
            return blocks
        return self.manager.truncate_computed_blocks(blocks, ask.num_hit_tokens)

    def decode(self, keys: Sequence[int], tokens: Sequence[int]) -> list[Blocks]:
        asks: list[Ask] = []
        for key, token in zip(keys, tokens, strict=True):
            computed = self._requests[key].num_tokens
            self.extend(key, (token,))
            asks.append(Ask(key=key, num_new_tokens=1, num_computed_tokens=computed))
        return self.allocate(asks, 0)

    def commit(self, key: int, num_tokens: int) -> None:
        self.manager.cache_blocks(self._requests[key], num_tokens)

    def free_skipped(self, key: int, num_processed_tokens: int) -> None:
        request = self._requests[key]
        self.manager.remove_skipped_blocks(
            request.request_id, num_processed_tokens, request.num_prompt_tokens
        )

    def release(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.manager.free(self._requests.pop(key))
            self._hits.pop(key, None)

    def preempt(self, key: int) -> None:
        self.manager.free(self._requests[key])

    def pop_blocks(self, key: int) -> list[int]:
        self._hits.pop(key, None)
        return [
            block.block_id for block in self.manager.pop_blocks_for_free(self._requests.pop(key))
        ]

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        pool = self.manager.block_pool
        pool.free_blocks([pool.blocks[block_id] for block_id in block_ids])

    def zero_again(self, key: int, start_token: int) -> None:
        self.manager.record_blocks_for_zeroing(str(key), start_token)

    def roll_back(self, key: int, num_computed_tokens: int) -> None:
        self._requests[key].num_computed_tokens = num_computed_tokens

    def forget(self, block_ids: Sequence[int]) -> None:
        self.manager.evict_blocks(set(block_ids))

    def reset(self) -> bool:
        """Forget every hash; vLLM's own manager cannot tell a copy from a use, so it sees none."""
        pool = self.manager.block_pool
        ends = [pool.blocks[block_id] for block_id in self._being_copied]
        pool.free_blocks(ends)
        is_done = bool(self.manager.reset_prefix_cache())
        pool.touch(ends)
        return is_done

    def take_work(self, caller_frees: bool) -> tuple[list[tuple[int, int]], list[int]]:
        pairs, _ = self.manager.take_kv_cache_block_copies()
        copies = [(copy.src_block_id, copy.dst_block_id) for copy in pairs]
        if not caller_frees:
            self._being_copied += [block_id for copy in copies for block_id in copy]
        # A failed load lists null blocks too; whether nobody's block is zeroed does not matter.
        to_zero = [block_id for block_id in self.manager.take_new_block_ids() if block_id]
        return copies, to_zero if self.manager.kv_cache_config.needs_kv_cache_zeroing else []

    def take_events(self) -> bytes:
        events = self.manager.take_events()
        if not events:
            return b""
        batch = KVEventBatch(ts=0.0, events=events, data_parallel_rank=0)
        return bytes(ENCODER.encode(batch))

    def num_free_blocks(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())

    def free_queue(self) -> list[int]:
        return [b.block_id for b in self.manager.block_pool.free_block_queue.get_all_free_blocks()]

    def tables(self, keys: Sequence[int]) -> list[Blocks]:
        return [[list(ids) for ids in self.manager.get_block_ids(str(key))] for key in keys]

    def resident(self) -> dict[tuple[int, bytes], list[int]]:
        return dict(self._copies())

    def _copies(self) -> Iterator[tuple[tuple[int, bytes], list[int]]]:
        for key, found in self.manager.block_pool.cached_block_hash_to_block._cache.items():
            block_ids = list(found) if isinstance(found, dict) else [found.block_id]
            yield (int.from_bytes(key[-4:], "big"), key[:-4]), block_ids
