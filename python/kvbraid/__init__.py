"""kvbraid: exact reusable prefixes for hybrid-attention language models."""

from kvbraid._native import __version__
from kvbraid.errors import (
    CaptureError,
    InvalidValueError,
    KvbraidError,
    ServiceError,
    TooLargeError,
    TopologyError,
    TraceError,
    UnknownError,
)
from kvbraid.fleet.answer import Bounds, Explanation, PodExplanation, PodInfo, PodScore, Scores
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import MediaItem, Request
from kvbraid.ids import GroupId, PodId, PodState, Tier
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology, topology_from_mapping

__all__ = [
    "Bounds",
    "CaptureError",
    "EngineDialect",
    "Explanation",
    "FleetIndex",
    "GroupId",
    "GroupSpec",
    "IndexOptions",
    "InvalidValueError",
    "KvbraidError",
    "MediaItem",
    "PodExplanation",
    "PodId",
    "PodInfo",
    "PodScore",
    "PodState",
    "Request",
    "Scores",
    "ServiceError",
    "SpecKind",
    "Tier",
    "TooLargeError",
    "Topology",
    "TopologyError",
    "TraceError",
    "UnknownError",
    "__version__",
    "topology_from_mapping",
]
