"""One engine's block cache over any mix of groups: it reuses, hands out and keeps blocks.

In reading order:

    config        how a cache is set up, with `retention` policies and `parallel` ranks
    step          what requests ask for in a step, and what they get
    manager       the face: what an engine calls, step by step
    chunk         where a chunk of a prompt should end
    failed_loads  what becomes of the cache when loads failed; `tables` are those of requests
    pool          calls on single blocks, for connectors; `tiers` are those for stores and loads
    events        what the cache recorded, for publishers
    statistics    counts; `policy_choice` is what is evicted first, and what others would save
    debug         a view for tests and people
    counts        the checks of arguments that all of these share
"""

from kvbraid.cache.config import CacheConfig, GroupOptions
from kvbraid.cache.debug import CacheDebug
from kvbraid.cache.events import Events
from kvbraid.cache.failed_loads import Recovery
from kvbraid.cache.manager import CacheManager
from kvbraid.cache.policy_choice import PolicyChoice, Saved
from kvbraid.cache.pool import BlockPool
from kvbraid.cache.retention import ByValue, Dense, EvictionPolicy, Interval, Retention
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
from kvbraid.cache.tables import Places, Refusal, RequestTables, ResumePoint, TableEntry, Why
from kvbraid.cache.tiers import CacheTiers, Fill, Findable, TierMatch
from kvbraid.models import PrefillCost

__all__ = [
    "Allocation",
    "BlockInfo",
    "BlockPool",
    "ByValue",
    "CacheConfig",
    "CacheDebug",
    "CacheManager",
    "CacheTiers",
    "Checkpoint",
    "Cursor",
    "Dense",
    "Events",
    "EvictionPolicy",
    "Fill",
    "Findable",
    "GroupOptions",
    "Interval",
    "KeptState",
    "Match",
    "Need",
    "NoFit",
    "Places",
    "PolicyChoice",
    "PrefillCost",
    "Recovery",
    "Refusal",
    "RequestTables",
    "ResumePoint",
    "Retention",
    "Saved",
    "Starts",
    "Statistics",
    "TableEntry",
    "TierMatch",
    "Why",
    "Work",
]
