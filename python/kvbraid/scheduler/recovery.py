"""What reports on loads mean for requests: loads arrive, and plans of recovery are carried out."""

from collections.abc import Mapping, Sequence
from typing import Final

from kvbraid.loads import Failures, LoadReport
from kvbraid.recovery import Action, RecoveryPlan
from kvbraid.recovery.ledger.loading import BlockTables
from kvbraid.scheduler.request_table import RequestTable, ScheduledRequest
from kvbraid.scheduler.step import Finish, Output

_ERRORS: Final = {Action.FAIL: "load_failed", Action.TAINTED_OUTPUT: "tainted_output"}


def take_reports(table: RequestTable, reports: Sequence[LoadReport]) -> None:
    """Recover from what failed, and let requests go on whose loads have arrived."""
    ledgers, now = table.ledgers, table.num_steps
    settled, failures = ledgers.take(reports, table.running)
    loads = [run.load for run in table.running.values() if run.load and run.num_loaded]
    plan = _recover(table, failures) if failures or failures.causes else RecoveryPlan()
    settled += [load for load in ledgers.failed_late(loads, plan) if load not in settled]
    for load in settled:
        request, is_good = table.requests.get(load.request), ledgers.judge(load, plan, now)
        if request is None or request.load is not load:
            continue
        may_ask = not is_good and ledgers.retries.failed(request.number, now)
        if request.number not in table.running:
            continue
        is_loading = request.is_loading  # Still: it needs nothing that failed, so no plan has it.
        if may_ask or (is_loading and ledgers.transfers.pending(load.number)):
            table.preempt(request)  # It asks when it starts over, if it may.
        elif is_loading:
            _arrived(table, request, is_good=is_good)


def _arrived(table: RequestTable, request: ScheduledRequest, *, is_good: bool) -> None:
    """What an asynchronous load had to bring is good: it becomes findable, the request goes on.

    The last token is computed even if it was loaded; what it reads was loaded, too.
    """
    number, end, unit = request.number, request.num_computed, table.rules.alignment
    # If not all is good, the block of the last token alone is bad.
    good = end if is_good else end - 1
    # A state right before the last token is found by nobody: the next step would keep a copy of
    # it, which no table has and a late failure would not reach. A block of attention is found
    # when it is whole.
    is_whole = is_good and end == request.num_tokens
    table.cache.commit(number, end if is_whole else good // unit * unit)
    request.is_loading = request.delays_commit = False
    if end == request.num_tokens:
        table.cache.roll_back(number, end - 1)
        table.ledgers.rewind(number, request, request.num_tokens, end - 1)


def _recover(table: RequestTable, failures: Failures) -> RecoveryPlan:
    waiters = [table.requests[number] for number in table.ledgers.owners.waiters()]
    # Their own loads may be what has failed.
    idle = [table.run_of(waiter) for waiter in waiters if not waiter.in_flight]
    over = [run._replace(ended_tables=table.cache.blocks(run.request)) for run in idle]
    if table.ledgers.released.is_open:
        over = []  # Preempted, these runs are remembered.
    for waiter in waiters:
        if waiter.number in table.running:  # A waiter that owns blocks takes its heirs along.
            table.preempt(waiter)
    runs = [*map(table.run_of, table.running.values()), *over]
    plan, tables = table.ledgers.recover(runs, failures, table.running)
    if plan.tainted or plan.lost:
        for request in table.waiting:  # Their runs have ended, but their steps may have read it.
            request.in_flight.clear()
    _carry_out(table, plan, tables)
    for number in plan.told:
        if number in table.requests:
            output = Output(number, finish=Finish.ERROR, error=_ERRORS[Action.TAINTED_OUTPUT])
            table.end(table.requests[number], output)
    return plan


def _carry_out(table: RequestTable, plan: RecoveryPlan, tables: Mapping[int, BlockTables]) -> None:
    for number, what in plan.requests.items():
        request = table.requests[number]
        if what.action.ends:
            output = Output(number, finish=Finish.ERROR, error=_ERRORS[what.action])
            table.end(request, output, is_held=True)
            continue
        if what.action is Action.START_OVER:
            table.preempted(request, tables.get(number, ()))
        else:
            table.ledgers.rewind(number, request, request.num_tokens, what.resume)
        request.counts.recovered(what.resume, what.recompute)
        request.in_flight.clear()
