"""The tiers of `kvbraid.transfer.offload` as `kvbraid.scheduler` asks them.

Invariant: an offer is one asynchronous load over both stages, record to host slot to device block.
It begins where the request's hit ends, and ends at a boundary at which the scheduler lets a
request go on.
"""

from collections.abc import Collection, Sequence
from typing import Final

from kvbraid.cache import KeptState
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, Load, LoadReport, Offer, Query, Record
from kvbraid.transfer.offload import Found, OffloadManager


class TieredLoads:
    """The `LoadTiers` of a scheduler. Its engine tells it each step:

    step = scheduler.schedule()
    tiers.scheduled(step.number, step.loads, step.work.kept_states)     # (None) without a step
    ...                                     # `manager.take_jobs` for the ranks; the step runs.
    manager.step_ended(step.number)         # Then `manager.finished`.
    scheduler.update(step, StepResult(reports=tiers.take_reports()))
    """

    def __init__(self, manager: OffloadManager, alignment: int) -> None:
        self.manager: Final = manager
        self._alignment: Final = alignment

    # What the scheduler asks.

    def lookup(self, query: Query) -> Offer | None:
        """Return what host memory and records have, as one asynchronous load."""
        found = self.manager.lookup(
            query.request,
            query.tokens,
            extra=query.extra,
            refused=query.refused,
            may_wait=False,
            whole_blocks=True,
        )
        if not isinstance(found, Found) or found.match.num_tokens != query.num_hit_tokens:
            return None
        if found.num_tokens % self._alignment:
            return None  # With bounded replay, loads end inside blocks.
        return Offer(
            num_tokens=found.num_external_tokens,
            tier=found.tier,
            is_async=True,
            records=found.records,
        )

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        """Retract what was copied from blocks: `OffloadManager.forget_blocks`."""
        return self.manager.forget_blocks(block_ids)

    def drop(self, record: Record) -> None:
        """Drop a record: `OffloadManager.drop`."""
        self.manager.drop(record)

    def back_off(self, record: Record) -> None:
        """Leave a tier alone for a while: `OffloadManager.back_off`."""
        self.manager.back_off(record)

    # What the engine tells.

    def scheduled(
        self,
        step: int | None,
        loads: Sequence[Load] = (),
        kept_states: Sequence[KeptState] = (),
    ) -> None:
        """Learn what a step has taken of the offers; other loads are of other tiers."""
        if step is not None:
            for load in loads:
                self.manager.begin_load(load.number, step, load.targets, load.request)
        self.manager.end_schedule(step, kept_states)

    def take_reports(self) -> list[LoadReport]:
        """Return what ranks say of loads: give it to `Scheduler.update` or `report`."""
        return self.manager.take_reports()
