"""The contract between a node's cache and the fleet: events, and how they look on the wire.

In reading order:

    model     the three events, and a batch of them
    wire      bytes to events and back
    buffered  TensorRT-LLM's events, as usual payloads
    sequence  what came from a publisher and what is missing: `held` waits, `digest` compares
"""

from kvbraid.events.model import (
    AllBlocksCleared,
    BatchRefusal,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    ExtraKey,
    TokenId,
)
from kvbraid.events.wire import WireForm, decode, encode_batch

__all__ = [
    "AllBlocksCleared",
    "BatchRefusal",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventBatch",
    "ExtraKey",
    "TokenId",
    "WireForm",
    "decode",
    "encode_batch",
]
