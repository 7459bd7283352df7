"""Our recorded events as vLLM's own structures, equal to those that its block pool would make.

Both have the same bytes on the wire, so ours are decoded with vLLM's types. Nothing is published
here: the scheduler does that.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from vllm.distributed.kv_events import MEDIUM_GPU, BlockStored, KVCacheEvent, KVEventBatch
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.kv_cache_interface import (
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)
from vllm.v1.request import Request

from kvbraid.cache import Events
from kvbraid.events.model import Event
from kvbraid.events.wire import encode_batch
from kvbraid.integrations.vllm.cache.coordinator import GroupView

_DECODER: Final = msgspec.msgpack.Decoder(KVEventBatch)


def to_vllm(events: Events) -> list[KVCacheEvent]:
    """Return the events as vLLM's structures."""
    return _decoded(events.to_bytes(0.0)) if len(events) else []


def told_by_tiers(told: Sequence[Event]) -> list[KVCacheEvent]:
    """Return events of tiers as vLLM's structures."""
    return _decoded(encode_batch(told)) if told else []


def _decoded(payload: bytes) -> list[KVCacheEvent]:
    batch = _DECODER.decode(payload)
    for event in batch.events:
        if isinstance(event, BlockStored) and event.extra_keys:
            event.extra_keys = [_with_tuples(keys) for keys in event.extra_keys]
    return list(batch.events)


def _with_tuples(keys: tuple[object, ...] | None) -> tuple[object, ...] | None:
    """Turn the arrays of multimodal items back into tuples: the wire has only arrays."""
    if keys is None:
        return None
    return tuple(tuple(key) if isinstance(key, list) else key for key in keys)


def reused(
    request: Request,
    num_tokens: int,
    groups: Sequence[GroupView],
    hash_block_size: int,
) -> Iterator[BlockStored]:
    """Announce a hit again, for a request that asks for full reports.

    As in vLLM, all positions up to the end of the hit are announced, including those that a group
    does not hold.
    """
    for index, group in enumerate(groups):
        spec = group.kv_cache_spec
        size = group.block_size
        num_blocks = min(
            -(-num_tokens // size), len(request.block_hashes) * hash_block_size // size
        )
        if not spec.prefix_cacheable or num_blocks == 0:
            continue
        extra_keys, media = [], 0
        for position in range(num_blocks):
            keys, media = generate_block_hash_extra_keys(
                request, position * size, (position + 1) * size, media
            )
            extra_keys.append(keys)
        lora = request.lora_request
        per_block = size // hash_block_size
        yield BlockStored(
            block_hashes=[
                maybe_convert_block_hash(request.block_hashes[(position + 1) * per_block - 1])
                for position in range(num_blocks)
            ],
            parent_block_hash=None,
            token_ids=request.all_token_ids[: num_blocks * size],
            block_size=size,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_GPU,
            lora_name=lora.name if lora else None,
            extra_keys=to_event_extra_keys(extra_keys),
            group_idx=index,
            session_id=request.session_id,
            kv_cache_spec_kind=get_kv_cache_spec_kind(spec).value,
            kv_cache_spec_sliding_window=get_kv_cache_spec_sliding_window(spec),
        )
