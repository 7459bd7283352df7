"""State kept between load reports; applies a decision to the cache and the tiers.

Invariant: a report is judged once all ranks have spoken of a load; a plan is applied as a whole or
not at all; and a block that a rank may still write is held until that rank reports the end. What a
plan means for an engine's own requests is left to the engine.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvbraid.cache import CacheManager, Need, Work
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, Load, LoadReport, Offer, Quarantine, Tiers
from kvbraid.reading import POSITIVE, check_fields, whole
from kvbraid.recovery.decision.copies import with_copies
from kvbraid.recovery.decision.decide import decide
from kvbraid.recovery.decision.plan import Action, RecoveryPlan
from kvbraid.recovery.decision.policy import Cooldowns, Policy, RetryBudget
from kvbraid.recovery.decision.run import Run
from kvbraid.recovery.decision.snapshot import snapshot_of
from kvbraid.recovery.document.document import State
from kvbraid.recovery.ledger.live import LiveRun
from kvbraid.recovery.ledger.loading import BlockTables
from kvbraid.recovery.ledger.owners import Ownership
from kvbraid.recovery.ledger.released_blocks import Meant
from kvbraid.recovery.ledger.runs import Runs
from kvbraid.recovery.ledger.transfers import Transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """How an engine recovers.

    Attributes:
        policy: What happens to requests that a failed load affects.
        num_ranks: How many ranks load, and report on each load.
        retries: How often a request may ask the tiers again after loads for it failed, if the
            policy is `retry`; otherwise it never does.
        deadline_steps: For how many steps after its first failure; None: without limit.
        cooldown_failures: After how many failures in a row a tier is not asked for a while.
        cooldown_steps: For how many steps.
        max_refusals: How many refused boundaries a plan explains for each request.
        late_steps: For how many steps after the end of a load its failure may still be reported.

    Raises:
        InvalidValueError: There is no rank. What else is out of range is refused by the ledgers.
    """

    policy: Policy = Policy.RECOMPUTE
    num_ranks: int = 1
    retries: int = 1
    deadline_steps: int | None = None
    cooldown_failures: int = 3
    cooldown_steps: int = 1_000
    max_refusals: int = 0
    late_steps: int = 0

    def __post_init__(self) -> None:
        check_fields(self, {"num_ranks": POSITIVE, "late_steps": whole()}, prefix="")


class AppliedPlan(NamedTuple):
    """A plan that was applied, and the tables that requests with steps in flight had before."""

    plan: RecoveryPlan
    tables: Mapping[int, BlockTables]


class RecoveryState(Runs):
    """The ledgers of one cache, and its tiers.

    Attributes:
        actions: What happened to affected requests, counted.
        num_refused_offers: How many offers of tiers no request could use.
        num_unused_tokens: How many tokens were loaded, or were being loaded, for requests that
            gave their blocks back before they computed anything from them.
    """

    def __init__(
        self,
        cache: CacheManager,
        tiers: Tiers,
        options: RecoveryOptions,
        dump: Callable[[State], object] | None = None,
    ) -> None:
        super().__init__(cache, options.late_steps)
        self._tiers: Final = tiers
        self._options: Final = options
        self._dump: Final = dump
        self.transfers: Final = Transfers(options.num_ranks)
        self.quarantine: Final = Quarantine()
        self.owners: Final = Ownership([group.block_size for group in self._groups])
        retries = options.retries if options.policy is Policy.RETRY else 0
        self.retries: Final = RetryBudget(retries=retries, deadline=options.deadline_steps)
        self.cooldowns: Final = Cooldowns(
            failures=options.cooldown_failures, duration=options.cooldown_steps
        )
        self.actions: Final[Counter[Action]] = Counter()
        self.num_refused_offers = 0
        self.num_unused_tokens = 0
        self._lost: set[tuple[int, int, int]] = set()  # Garbage that was read: request and place.

    # A step is scheduled.

    def allocate(self, need: Need) -> bool:
        """Allocate for one request; return whether it fits."""
        done = self._cache.allocate([need])
        if done.num_fit and self.released.is_watching:
            self.released.hand_out(done.block_ids)
        return bool(done.num_fit)

    def refuse(self, offer: Offer, now: int) -> None:
        """Count an offer that no request can use, as a failure of its tier."""
        self.num_refused_offers += 1
        self.cooldowns.failed(offer.tier, now)

    def begin(self, request: int, run: LiveRun, offer: Offer) -> Load:
        """Begin a load into the blocks that a run has just got for it."""
        load = self.transfers.begin(request, run.num_local, offer, self.loaded(request, run))
        self.note_load(run, load)
        return load

    def processed(self, step: int, running: Mapping[int, LiveRun]) -> None:
        """Note that a step was processed."""
        self.released.processed(step)
        if self.released.is_long:
            self.catch_up(running)

    def take_work(self, *, caller_frees: bool) -> Work:
        """Take the cache's work for a step.

        What a load fills is not zeroed, although a recovery may have listed it before its request
        gave it back.
        """
        work, writers = self._cache.take_work(caller_frees=caller_frees), self.transfers.writers
        self.note_copies(work.copies)
        return work._replace(blocks_to_zero=[b for b in work.blocks_to_zero if b not in writers])

    # Ranks report.

    def take(
        self, reports: Sequence[LoadReport], running: Mapping[int, LiveRun]
    ) -> tuple[list[Load], Failures]:
        """Take reports, and free what was held for loads that are over; return as `settle`."""
        self._lost = set()
        self.released.loads.close()
        meant = Meant()
        if any(report.failures for report in reports):
            self.catch_up(running)
            meant = self.released.meant()
        for report in reports:
            for number in self.transfers.note(report, meant):
                if not self.transfers.pending(number):
                    self.released.loads.end(number)
                if number in self.quarantine:
                    self._cache.pool.free(self.quarantine.ended(number, report.rank))
        return self.transfers.settle(meant)

    def recover(
        self, runs: Sequence[Run], failures: Failures, running: Mapping[int, LiveRun]
    ) -> AppliedPlan:
        """Decide, and apply the decision to the cache, the tiers and the ledgers.

        `runs` are the `running` ones, and others that have given their blocks back. Nobody may
        wait for blocks of others: whoever does is preempted before.
        """
        self.catch_up(running)
        runs, past = self.with_past(runs)
        writers = self.transfers.writers

        def decided(failures: Failures) -> RecoveryPlan:
            failures = _without_hits(runs, failures)
            if self._dump is not None:
                state = State(
                    snapshot=snapshot_of(self._cache, runs),
                    runs=runs,
                    failures=failures,
                    busy=writers.keys(),
                    policy=self._options.policy,
                    former=past.former,
                )
                self._dump(state)
            return decide(
                self._cache,
                runs,
                failures,
                busy=writers.keys(),
                policy=self._options.policy,
                max_refusals=self._options.max_refusals,
                former=past.former,
            )

        def garbage(plan: RecoveryPlan) -> set[BlockId]:
            return plan.garbage(past.former, self._cache.config.num_blocks)

        plan = with_copies(decided, failures, garbage, self._forget)
        had = {
            run.request: _without(self._cache.blocks(run.request), plan.tainted)
            for run in runs
            if run.request in plan.requests and not run.has_ended
        }
        hold = [block for block in plan.recovery.hold if block not in self.quarantine.blocks]
        self._tell(plan)
        self._cache.recover(replace(plan.recovery, hold=hold))
        for number in sorted({writers[block] for block in hold}):
            blocks = [block for block in hold if writers[block] == number]
            self.quarantine.add(number, blocks, self.transfers.pending(number))
        self.owners.take(plan, self._cache.tables)
        bad = {*plan.tainted, *plan.lost}
        gone = [(run.request, each) for run in runs for each in run.given_back]
        self._lost = {(r, each.group, each.position) for r, each in gone if each.block_id in bad}
        self.released.judged(plan)
        self.actions.update(each.action for each in plan.requests.values())
        return AppliedPlan(plan, had)

    def _forget(self, garbage: Collection[BlockId]) -> Failures:
        copied = self._tiers.forget_blocks(garbage)
        if not copied:
            return copied
        # A load of these may not have settled yet.
        meant = self.released.meant()
        self.transfers.note(LoadReport(rank=0, failures=copied), meant)
        return self.transfers.settle(meant)[1]

    def _tell(self, plan: RecoveryPlan) -> None:
        for record in plan.drop:
            self._tiers.drop(record)
        for record in plan.back_off:
            self._tiers.back_off(record)

    def failed_late(self, loads: Iterable[Load], plan: RecoveryPlan) -> list[Load]:
        """Return which loads have failed after all, although they may have been judged as good."""
        affected = [load for load in loads if load.request in plan.requests]
        return [load for load in affected if not self._is_good(load, plan)]

    def judge(self, load: Load, plan: RecoveryPlan, now: int) -> bool:
        """Note how a settled load went; return whether it is good."""
        is_good = self._is_good(load, plan)
        if is_good:
            self.cooldowns.succeeded(load.tier)
        else:
            self.cooldowns.failed(load.tier, now)
        return is_good

    def _is_good(self, load: Load, plan: RecoveryPlan) -> bool:
        places = {(load.request, target.group, target.position) for target in load.targets}
        blocks = {target.block_id for target in load.targets}
        return blocks.isdisjoint(plan.tainted) and places.isdisjoint(self._lost)

    # A request gives its blocks back.

    def hold(self, load: Load | None) -> None:
        """Hold what a rank may still write, because the load's request gives its blocks back."""
        pending = self.transfers.pending(load.number) if load is not None else frozenset()
        if load is not None and pending:
            held = self.quarantine.blocks
            blocks = [target.block_id for target in load.targets if target.block_id not in held]
            self._cache.pool.hold(blocks)
            self.quarantine.add(load.number, blocks, pending)

    def leave(
        self, run: Run, tables: BlockTables, last_step: int | None, load: Load | None
    ) -> list[int]:
        """Note the end of a run that had these tables, of which its `load` filled some blocks;
        `last_step` is its last one in flight.

        Returns requests that wait for a block that nobody else would write now: they have to give
        their blocks back.
        """
        if run.num_loaded_tokens and run.num_computed_tokens <= run.start:
            self.num_unused_tokens += run.num_loaded_tokens
        self.released.end(run, tables, last_step, load.number if load else None)
        return sorted({*self.owners.leaves(run.request).owners.values()})

    def check_integrity(
        self, loads: Mapping[int, Load | None], outside: Sequence[BlockId] = ()
    ) -> None:
        """Panic unless the ledgers and the cache agree.

        `loads` has the load, if any, of each request that has blocks; `outside` are blocks that
        the caller holds, besides those in quarantine.
        """
        self._cache.debug.check_integrity([*self.quarantine.blocks, *outside])
        self.owners.check_integrity()
        self.quarantine.check_integrity()
        for load in self.transfers.loads:
            is_held = load.number in self.quarantine or not load.targets
            is_owned = loads.get(load.request) is load
            assert is_held or is_owned, f"load {load.number} writes blocks that nobody holds"


def _without_hits(runs: Sequence[Run], failures: Failures) -> Failures:
    """Leave out what was recovered: a run that has gone back to before its load is named again,
    and these places are a hit now."""
    load = {run.request for run in runs if run.num_loaded_tokens}
    others = {run.request for run in runs} - load
    return replace(
        failures,
        places={r: places for r, places in failures.places.items() if r not in others},
        requests=[r for r in failures.requests if r not in others],
    )


def _without(tables: BlockTables, block_ids: Collection[BlockId]) -> BlockTables:
    bad = {*block_ids}
    return [[BlockId(0) if b in bad else b for b in table] for table in tables]
