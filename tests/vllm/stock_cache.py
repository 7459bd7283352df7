"""vLLM's own cache manager with the calls of ours that a scheduler makes.

The real engine's cache passes each test first, which shows mistakes of the test itself. This
module imports vLLM, so it runs in .venv-vllm only.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import msgspec
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.retention import Interval
from kvbraid.cache.step import Match, Need, Work
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.spec import GroupSpec, SpecKind

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Its dependencies' own.
    import torch
    from vllm.distributed.kv_events import KVEventBatch
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request

_HEADS: Final = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
_SPECS: Final[dict[SpecKind, Any]] = {
    SpecKind.FULL_ATTENTION: lambda g: FullAttentionSpec(block_size=g.block_size, **_HEADS),
    SpecKind.SLIDING_WINDOW: lambda g: SlidingWindowSpec(
        block_size=g.block_size, sliding_window=g.window, **_HEADS
    ),
    SpecKind.CHUNKED_LOCAL_ATTENTION: lambda g: ChunkedLocalAttentionSpec(
        block_size=g.block_size, attention_chunk_size=g.chunk, **_HEADS
    ),
    SpecKind.MAMBA: lambda g: MambaSpec(
        block_size=g.block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
    ),
}


def _group(index: int, group: GroupSpec) -> Any:  # noqa: ANN401 - vLLM exists only in .venv-vllm.
    return KVCacheGroupSpec([f"layer{index}"], _SPECS[group.kind](group), group.eagle)


@dataclass(frozen=True)
class StockEvents:
    """A step's events as vLLM's structs."""

    events: list[Any]

    def __len__(self) -> int:
        return len(self.events)

    def to_bytes(self, ts: float, dp_rank: int | None) -> bytes:
        batch = KVEventBatch(ts=ts, events=self.events, data_parallel_rank=dp_rank)
        return msgspec.msgpack.encode(batch)


class StockCache:
    """One vLLM KVCacheManager; request handles are ours."""

    def __init__(self, config: CacheConfig) -> None:
        self.config, topology, retention = config, config.topology, config.retention
        hash_function = get_hash_fn_by_name(config.hash_algo.value)
        with patch.dict(os.environ, PYTHONHASHSEED=config.hash_seed or ""):
            kv_cache_utils.init_none_hash(hash_function)
        self._hasher = kv_cache_utils.get_request_block_hasher(
            topology.hash_block_size, hash_function
        )
        self._manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=config.num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[_group(*pair) for pair in enumerate(topology.groups)],
                prefix_cache_retention_interval=(
                    retention.tokens if isinstance(retention, Interval) else None
                ),
            ),
            max_model_len=config.max_model_len,
            scheduler_block_size=topology.alignment,
            hash_block_size=topology.hash_block_size,
            max_in_flight_tokens=config.max_in_flight_tokens,
            use_eagle=any(group.eagle for group in topology.groups),
            enable_kv_cache_events=config.events,
        )
        self._requests: dict[int, Any] = {}
        self._matches: dict[int, Any] = {}
        self._last = 0

    def add(
        self,
        tokens: Sequence[int],
        *,
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
    ) -> int:
        self._last += 1
        lora = extra.lora and LoRARequest(extra.lora.name, lora_id or 1, extra.lora.path)
        self._requests[self._last] = Request(
            request_id=str(self._last),
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            lora_request=lora,
            cache_salt=extra.cache_salt,
            block_hasher=self._hasher,
        )
        return self._last

    def extend(self, request: int, tokens: Sequence[int]) -> None:
        self._requests[request].append_output_token_ids(list(tokens))

    def start_step(self) -> None:
        self._manager.new_step_starts()

    def match(self, request: int) -> Match:
        blocks, num_tokens, junction = self._manager.get_computed_blocks(self._requests[request])
        self._matches[request] = blocks
        return Match(num_tokens, junction)

    def allocate(self, needs: Sequence[Need]) -> SimpleNamespace:
        for num_fit, need in enumerate(needs):
            request = self._requests[need.request]
            if need.junction is not None:
                request.shared_prefix_boundary = need.junction
            blocks = self._manager.allocate_slots(
                request,
                need.num_new_tokens,
                num_new_computed_tokens=need.num_hit_tokens,
                new_computed_blocks=self._matches.pop(need.request, None),
            )
            if blocks is None:
                return SimpleNamespace(num_fit=num_fit)
            request.num_computed_tokens += need.num_hit_tokens + need.num_new_tokens
        return SimpleNamespace(num_fit=len(needs))

    def take_work(self, *, caller_frees: bool = False) -> Work:
        """Drop the copies, which nobody makes here."""
        del caller_frees
        _copies, held = self._manager.take_kv_cache_block_copies()
        self._manager.block_pool.free_blocks(held)
        return Work([], [], [])

    def release(self, requests: Sequence[int]) -> None:
        for request in requests:
            self._manager.free(self._requests.pop(request))

    def reset(self) -> bool:
        return bool(self._manager.reset_prefix_cache())

    def take_events(self) -> StockEvents:
        return StockEvents(self._manager.take_events())
