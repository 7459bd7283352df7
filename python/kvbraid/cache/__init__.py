"""One engine's block cache over any mix of groups: what to reuse, hand out and keep."""

from kvbraid.cache.config import CacheConfig, GroupOptions
from kvbraid.cache.events import Events
from kvbraid.cache.manager import CacheManager
from kvbraid.cache.retention import ByValue, Dense, Interval, Retention
from kvbraid.cache.step import Allocation, BlockInfo, Checkpoint, Match, Need

__all__ = [
    "Allocation",
    "BlockInfo",
    "ByValue",
    "CacheConfig",
    "CacheManager",
    "Checkpoint",
    "Dense",
    "Events",
    "GroupOptions",
    "Interval",
    "Match",
    "Need",
    "Retention",
]
