"""A small but complete scheduler over `kvbraid.cache`: the example for engine builders.

Continuous batching, chunked prefill, preemption, asynchronous and synchronous loads, drafts, one
or two steps in flight, and recovery from loads that failed. It counts steps; it reads no clock.

In reading order:

    options        how it is set up
    step           what passes between it and its engine
    scheduler      the face: requests come, steps are scheduled, results are taken
    request_table  who waits, and who has blocks
    planning       what one step computes
    recovery       what reports on loads mean for requests
"""

from kvbraid.loads import NO_TIERS, Load, LoadReport, LoadTiers, Offer, Query, Target
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.scheduler import Scheduler
from kvbraid.scheduler.step import Finish, Output, Scheduled, Step, StepResult

__all__ = [
    "NO_TIERS",
    "Finish",
    "Load",
    "LoadReport",
    "LoadTiers",
    "Offer",
    "Output",
    "Query",
    "Scheduled",
    "Scheduler",
    "SchedulerOptions",
    "Step",
    "StepResult",
    "Target",
]
