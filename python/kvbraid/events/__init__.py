"""The contract between a node's cache and the fleet: events, and how they look on the wire."""

from kvbraid.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    ExtraKey,
    Refusal,
    TokenId,
)
from kvbraid.events.wire import WireForm, decode, encode_batch

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventBatch",
    "ExtraKey",
    "Refusal",
    "TokenId",
    "WireForm",
    "decode",
    "encode_batch",
]
