"""An engine on kvbraid's scheduler: a host tier loads two prompts, and one load fails in part.

Of the failed load, what comes before the failed block is kept. The model is a formula of a token's
position, so the same tokens come out.
"""

from kvbraid.cache import CacheConfig, CacheManager
from kvbraid.loads import Failures
from kvbraid.scheduler import LoadReport, Offer, Query, Scheduler, SchedulerOptions, StepResult
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
CHUNKED = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=48)
NOTHING = Failures()


class HostTier:
    """An example's tier: it offers the whole blocks of every prompt, and stores nothing."""

    def lookup(self, query: Query) -> Offer | None:
        """Offer what a prompt lacks."""
        count = (len(query.tokens) - 1 - query.num_hit_tokens) // 16 * 16
        return Offer(num_tokens=count, tier="host", is_async=True) if count > 0 else None

    def forget_blocks(self, block_ids: object) -> Failures:
        """Show which blocks hold garbage: a tier with stores would cancel and retract them."""
        print("no longer stored: blocks", block_ids)
        return Failures()  # Nothing is copied from blocks.

    def drop(self, record: object) -> None:
        """Nothing is recorded."""

    def back_off(self, record: object) -> None:
        """Nothing is recorded."""


cache = CacheManager(CacheConfig(topology=Topology(groups=(FULL, CHUNKED)), num_blocks=40))
scheduler = Scheduler(cache, SchedulerOptions(max_step_tokens=64), HostTier())
first = scheduler.add(range(100), max_new_tokens=3)
scheduler.add(range(200, 240), max_new_tokens=2)
failed = Failures(places={first: {0: [3]}})  # Block 3 of the full group did not arrive.

while scheduler.num_requests:
    step = scheduler.schedule()
    assert step is not None, "every load is reported with its step, so nobody waits for one"
    reports = []
    for load in step.loads:
        failures = failed if load.request == first else NOTHING
        reports.append(LoadReport(rank=0, ended=[load.number], failures=failures))
    tokens = {part.request: [1_000 + part.start] for part in step.scheduled if part.samples}
    for output in scheduler.update(step, StepResult(tokens=tokens, reports=reports)):
        print(output.request, output.tokens, output.finish or "", output.prompt or "")
