"""A small but complete scheduler over `kvbraid.cache`: the example for engine builders.

Continuous batching, chunked prefill, preemption, asynchronous and synchronous loads, drafts, one
or two steps in flight, and recovery from loads that failed. It counts steps; it reads no clock.
"""

from kvbraid.recovery.counts import Counts
from kvbraid.recovery.transfers import Load, LoadReport, Target
from kvbraid.scheduler.loads import NO_TIERS, LoadTiers, NoTiers, Offer, Query
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.scheduler import Scheduler
from kvbraid.scheduler.sequential import OneByOne
from kvbraid.scheduler.step import (
    Finish,
    Output,
    Scheduled,
    Step,
    StepResult,
)

__all__ = [
    "NO_TIERS",
    "Counts",
    "Finish",
    "Load",
    "LoadReport",
    "LoadTiers",
    "NoTiers",
    "Offer",
    "OneByOne",
    "Output",
    "Query",
    "Scheduled",
    "Scheduler",
    "SchedulerOptions",
    "Step",
    "StepResult",
    "Target",
]
