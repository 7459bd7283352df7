"""One engine's block cache over any mix of groups: it reuses, hands out and keeps blocks."""

from kvbraid.cache.config import CacheConfig, GroupOptions
from kvbraid.cache.debug import CacheDebug
from kvbraid.cache.events import Events
from kvbraid.cache.failed_loads import Recovery
from kvbraid.cache.leaning import Leaning, Saved
from kvbraid.cache.manager import CacheManager
from kvbraid.cache.pool import BlockPool
from kvbraid.cache.retention import ByValue, Dense, Interval, Lean, Retention
from kvbraid.cache.statistics import Starts, Statistics
from kvbraid.cache.step import (
    Allocation,
    BlockInfo,
    Checkpoint,
    Cursor,
    KeptState,
    Match,
    Need,
    NoFit,
    Work,
)
from kvbraid.cache.tables import Place, Places, Refusal, RequestTables, ResumePoint, Why
from kvbraid.models import PrefillCost

__all__ = [
    "Allocation",
    "BlockInfo",
    "BlockPool",
    "ByValue",
    "CacheConfig",
    "CacheDebug",
    "CacheManager",
    "Checkpoint",
    "Cursor",
    "Dense",
    "Events",
    "GroupOptions",
    "Interval",
    "KeptState",
    "Lean",
    "Leaning",
    "Match",
    "Need",
    "NoFit",
    "Place",
    "Places",
    "PrefillCost",
    "Recovery",
    "Refusal",
    "RequestTables",
    "ResumePoint",
    "Retention",
    "Saved",
    "Starts",
    "Statistics",
    "Why",
    "Work",
]
