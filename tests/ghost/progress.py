"""That no request needs more steps than its faults explain: a livelock, seen long before the end.

Invariant: without faults and others, a request needs a certain number of steps. A recovery takes
back what it has done, at most all of it, so each may cost it as many steps again. Each has a cause
of its own: one of the failed loads that the request may begin, which are one and `retries` more,
or a fault of somebody else whose garbage it shared.

What a request waits for others does not count: parts that were cut because others had the rest of
the step, and all that it did in runs that ended because others got its blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvbraid.cache.chunk import Position
from kvbraid.loads import Failures
from kvbraid.recovery import Policy, Run
from kvbraid.recovery.ledger.live import LiveRun
from kvbraid.recovery.ledger.state import AppliedPlan
from kvbraid.scheduler import Load, Scheduled, Step
from kvbraid.scheduler.scheduler import Scheduler

from tests.ghost.checks import BadOutcomeError
from tests.ghost.truth import Life


@dataclass(slots=True)
class Efforts:
    """What one request has done, in steps; `alone` is what it would need without faults.

    `recent` is what it has done since the last recovery, up to the run `run`. `early_loads` began
    before an earlier load of the request was over, so nobody knew yet that this one had failed.
    """

    alone: int
    run: int = 0
    recent: int = 0
    taken_back: int = 0
    own_failures: int = 0
    early_loads: int = 0
    others_failures: int = 0


class Progress:
    """The steps of all requests of one engine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._table = scheduler.inspect()
        options = self._table.options
        self._budget = options.max_step_tokens
        self._retries = options.retries if options.policy is Policy.RETRY else 0
        # A late report may come when the next load has begun, and means both.
        self._may_fail_twice = bool(options.late_steps)
        self._efforts: dict[int, Efforts] = {}
        self._before: dict[int, tuple[int, bool]] = {}
        self._recovered: set[int] = set()
        self._told: list[Load] = []
        self._began_in: dict[int, int] = {}
        self._recover = scheduler.ledgers.recover
        scheduler.ledgers.recover = self._overhear  # type: ignore[method-assign]

    def _overhear(
        self, runs: Sequence[Run], failures: Failures, running: Mapping[int, LiveRun]
    ) -> AppliedPlan:
        applied = self._recover(runs, failures, running)
        self._recovered.update(applied.plan.requests)
        return applied

    def arrive(self, request: int, life: Life) -> None:
        """Learn what a request needs: the steps of its prompt without any hit, one for each output
        after the first, the one in which an asynchronous load begins, and, with a state group, one
        that ends at a junction."""
        steps, start, end = 1 + (self._table.rules.block_size > 0), 0, life.num_prompt_tokens
        while start < end:
            wanted = Position(
                start=start, num_prompt_tokens=end, num_tokens=end, budget=end - start
            )
            start += self._chunk(wanted, self._budget)
            steps += 1
        self._efforts[request] = Efforts(steps + len(life.outputs) - 1)

    def _chunk(self, wanted: Position, room: int) -> int:
        return self._table.rules.plan(replace(wanted, budget=min(wanted.budget, room)))

    def take(self, step: Step) -> None:
        """Count a step for each request for which others have left as much room as it can use."""
        requests, room = self._table.requests, self._budget
        for part in step.scheduled:
            if not self._is_cut(part, room):
                self._count(part.request, part.run)
            room -= part.num_tokens
        for load in step.loads:
            under_way = [each.request for each in self._table.ledgers.transfers.loads]
            self._efforts[load.request].early_loads += under_way.count(load.request) > 1
            self._began_in[load.number] = requests[load.request].run
            if load.is_async:
                self._count(load.request, requests[load.request].run)

    def _is_cut(self, part: Scheduled, room: int) -> bool:
        request = self._table.requests[part.request]
        if room == self._budget or part.start >= request.num_tokens:
            return False
        wanted = Position(
            start=part.start,
            num_prompt_tokens=len(request.prompt),
            num_tokens=request.num_tokens,
            budget=request.num_tokens - part.start,
            junction=request.junction,
        )
        return self._chunk(wanted, room) < self._chunk(wanted, self._budget)

    def _count(self, request: int, run: int) -> None:
        own = self._at(request, run)
        own.recent += 1
        most = (1 + own.own_failures + own.others_failures) * own.alone
        if own.taken_back + own.recent > most:
            msg = f"livelock: request {request} has needed more than {most} steps: {own}"
            raise BadOutcomeError(msg)

    def before_reports(self) -> None:
        """Note the runs before reports are taken."""
        owners, running = self._table.ledgers.owners, self._table.running
        self._before = {n: (r.run, owners.is_waiting(n)) for n, r in running.items()}
        self._recovered.clear()

    def after_reports(self, told: Sequence[Load]) -> None:
        """Note what reports have taken back; these loads are said to have failed. A load is judged
        at once, or when its last rank has spoken. A run that ended before takes its load along."""
        under_way = self._table.ledgers.transfers.loads
        judged = [load for load in self._told if load not in under_way]
        failed = {load.request for load in [*told, *judged] if self._is_of_this_run(load)}
        self._told = [load for load in [*self._told, *told] if load in under_way]
        for number, (run, is_waiting) in self._before.items():
            request = self._table.requests.get(number)
            if request is None or request.run == run:
                continue
            own = self._at(number, run)
            if number in self._recovered or number in failed:  # Of one token, nothing is lost.
                self._takes_back(number, own, is_own=failed == {number})
            elif is_waiting:
                continue
            own.run = request.run

    def _is_of_this_run(self, load: Load) -> bool:
        run, _ = self._before.get(load.request, (None, False))
        return run == self._began_in[load.number]

    def _takes_back(self, request: int, own: Efforts, *, is_own: bool) -> None:
        own.taken_back, own.recent = own.taken_back + own.recent, 0
        own.own_failures += is_own
        own.others_failures += not is_own
        most = (1 + self._retries + own.early_loads) << self._may_fail_twice
        if own.own_failures > most:
            raise BadOutcomeError(
                f"livelock: {own.own_failures} loads of request {request} have failed, which may "
                f"ask {self._retries} times again"
            )

    def _at(self, request: int, run: int) -> Efforts:
        own = self._efforts[request]
        if run != own.run:  # The blocks of the run before went to others.
            own.run, own.recent = run, 0
        return own
