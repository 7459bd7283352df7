"""vLLM's own Python `KVCacheManager`, set up as its scheduler and its tests do; and our drop-in.

Requests are the engine's `Request` with its block hasher (sha256), so they compute hashes when
they are made and when tokens are appended. Statistics are off. Import this module only in the
vLLM environment.
"""

import itertools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from kvbraid.cache import Match
from kvbraid.spec import GroupSpec, SpecKind

from bench.cache.side import BLOCK, Groups

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import msgspec
    import torch
    from kvbraid.integrations.vllm import KvbraidCacheManager
    from vllm.distributed.kv_events import KVEventBatch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request

logging.getLogger("vllm").setLevel(logging.ERROR)
init_none_hash(sha256)

Spec: TypeAlias = Any
"""A `KVCacheSpec` of the engine, which is not installed where types are checked."""

SAMPLING: Final = SamplingParams(max_tokens=1_000_000)
HASHER: Final[Callable[[Request], list[bytes]]] = get_request_block_hasher(BLOCK, sha256)
MAX_MODEL_LEN: Final = 1 << 21


def spec_of(group: GroupSpec) -> Spec:
    """Return the engine's spec for a group."""
    if group.kind is SpecKind.MAMBA:
        return MambaSpec(
            block_size=group.block_size,
            shapes=((8,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
        )
    sizes: dict[str, Any] = {
        "block_size": group.block_size,
        "num_kv_heads": 1,
        "head_size": 8,
        "dtype": torch.bfloat16,
    }
    if group.window is not None:
        return SlidingWindowSpec(**sizes, sliding_window=group.window)
    return FullAttentionSpec(**sizes)


def new_request(number: int, tokens: list[int]) -> Request:
    """Make an engine request; its hashes are computed here."""
    return Request(
        request_id=str(number),
        prompt_token_ids=tokens,
        sampling_params=SAMPLING,
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=HASHER,
    )


class Rival:
    """The engine's manager."""

    manager_class: ClassVar[Callable[..., Any]] = KVCacheManager

    def __init__(
        self,
        groups: Groups,
        num_blocks: int,
        *,
        events: bool = False,
        retention: int | None = None,
    ) -> None:
        self.manager = self.manager_class(
            KVCacheConfig(
                num_blocks=num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[
                    KVCacheGroupSpec([f"layer{index}"], spec_of(group))
                    for index, group in enumerate(groups)
                ],
                prefix_cache_retention_interval=retention,
            ),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_kv_cache_events=events,
        )
        self._found: Any = None
        self._numbers = itertools.count()

    def add(self, tokens: list[int]) -> Request:
        return new_request(next(self._numbers), tokens)

    def match(self, request: Request) -> Match:
        self._found, num_tokens, junction = self.manager.get_computed_blocks(request)
        return Match(num_tokens, junction)

    def allocate(self, request: Request, num_new_tokens: int, hit: Match | None = None) -> None:
        if hit is None:
            blocks = self.manager.allocate_slots(request, num_new_tokens)
            num_hit_tokens = 0
        else:
            request.shared_prefix_boundary = hit.junction
            num_hit_tokens = hit.num_tokens
            blocks = self.manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens=num_hit_tokens,
                new_computed_blocks=self._found,
            )
        assert blocks is not None
        request.num_computed_tokens += num_hit_tokens + num_new_tokens

    def decode(self, requests: Sequence[Request], tokens: Sequence[int]) -> None:
        allocate = self.manager.allocate_slots
        for request, token in zip(requests, tokens, strict=True):
            request.append_output_token_ids(token)
            assert allocate(request, 1) is not None
            request.num_computed_tokens += 1

    def release(self, request: Request) -> None:
        self.manager.free(request)

    def start_step(self) -> None:
        self.manager.new_step_starts()

    def take_events(self) -> object:
        return KVEventBatch(ts=0.0, events=self.manager.take_events(), data_parallel_rank=0)

    def encoded(self, events: object) -> bytes:
        return bytes(msgspec.msgpack.encode(events))

    def blocks(self, request: Request) -> Sequence[Sequence[int]]:
        return [list(ids) for ids in self.manager.get_block_ids(request.request_id)]

    def forget(self, block_ids: Sequence[int]) -> None:
        self.manager.evict_blocks(set(block_ids))

    def reset(self) -> None:
        assert self.manager.reset_prefix_cache()

    def num_free_blocks(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())


class DropIn(Rival):
    """Our cache as vLLM's scheduler calls it: one call for each request."""

    manager_class = KvbraidCacheManager
