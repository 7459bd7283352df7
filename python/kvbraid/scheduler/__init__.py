"""A small but complete scheduler over `kvbraid.cache`: the example for engine builders.

Continuous batching, chunked prefill, preemption, asynchronous and synchronous loads, drafts, one
or two steps in flight, and recovery from loads that failed. It counts steps; it reads no clock.
"""

from kvbraid.scheduler.loads import NO_TIERS, LoadTiers, NoTiers, Offer, Query
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.step import (
    Finish,
    Load,
    LoadReport,
    Output,
    PromptTokens,
    Scheduled,
    Step,
    StepResult,
    Target,
)

__all__ = [
    "NO_TIERS",
    "Finish",
    "Load",
    "LoadReport",
    "LoadTiers",
    "NoTiers",
    "Offer",
    "Output",
    "PromptTokens",
    "Query",
    "Scheduled",
    "SchedulerOptions",
    "Step",
    "StepResult",
    "Target",
]
