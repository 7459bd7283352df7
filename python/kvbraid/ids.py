"""One type per identifier: identifiers of different kinds cannot be mixed up.

Nothing here holds state or knows what the identifiers point to.
"""

from enum import Enum
from typing import NewType

PodId = NewType("PodId", str)
"""The operator's name of one engine instance that emits events and takes requests."""

GroupId = NewType("GroupId", int)
"""Index of a KV cache group in its engine's own order (the wire's `group_idx`)."""

BlockId = NewType("BlockId", int)
"""A physical block of one pool; all groups share the numbering, and 0 is the null block."""

BlockHash = NewType("BlockHash", bytes)
"""An engine's chained hash of one block: parent, tokens and extra keys."""


class Tier(Enum):
    """Where a copy of a block lives, nearest first; the value is its name in answers."""

    GPU = "gpu"
    CPU = "cpu"
    STORAGE = "storage"


class PodState(Enum):
    """How far a pod's history is known. Only in EXACT can an answer be exact."""

    EXACT = "exact"  # Complete since sequence number 0, a clear or a restart.
    REBUILDING = "rebuilding"  # Replay is under way.
    DEGRADED = "degraded"  # History is missing, or configuration was contradicted.
    STALE = "stale"  # No connection.

    __hash__ = object.__hash__  # Of a member, which is there once; that of Enum costs a call.
