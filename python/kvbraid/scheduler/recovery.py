"""What reports on loads mean for requests: loads arrive, and plans of recovery are carried out."""

from collections.abc import Mapping, Sequence
from typing import Final

from kvbraid.recovery.failures import Failures
from kvbraid.recovery.loading import Tables
from kvbraid.recovery.plan import Action, RecoveryPlan
from kvbraid.recovery.transfers import LoadReport
from kvbraid.scheduler.book import Book, Request
from kvbraid.scheduler.step import Finish, Output

_ERRORS: Final = {Action.FAIL: "load_failed", Action.TAINTED_OUTPUT: "tainted_output"}


def take_reports(book: Book, reports: Sequence[LoadReport]) -> None:
    """Recover from what failed, and let requests go on whose loads have arrived."""
    ledgers, now = book.ledgers, book.num_steps
    settled, failures = ledgers.take(reports, book.running)
    loads = [run.load for run in book.running.values() if run.load and run.num_loaded]
    plan = _recover(book, failures) if failures or failures.causes else RecoveryPlan()
    settled += [load for load in ledgers.failed_late(loads, plan) if load not in settled]
    for load in settled:
        request, is_good = book.requests.get(load.request), ledgers.judge(load, plan, now)
        if request is None or request.load is not load:
            continue
        may_ask = not is_good and ledgers.retries.failed(request.number, now)
        if request.number not in book.running:
            continue
        is_loading = request.is_loading  # Still: it needs nothing that failed, so no plan has it.
        if may_ask or (is_loading and ledgers.transfers.pending(load.number)):
            book.preempt(request)  # It asks when it starts over, if it may.
        elif is_loading:
            _arrived(book, request, is_good=is_good)


def _arrived(book: Book, request: Request, *, is_good: bool) -> None:
    """What an asynchronous load had to bring is good: it becomes findable, the request goes on.

    The last token is computed even if it was loaded; what it reads was loaded, too.
    """
    number, end, unit = request.number, request.num_computed, book.rules.alignment
    # If not all is good, the block of the last token alone is bad.
    good = end if is_good else end - 1
    # A state right before the last token is found by nobody: the next step would keep a copy of
    # it, which no table has and a late failure would not reach. A block of attention is found
    # when it is whole.
    is_whole = is_good and end == request.num_tokens
    book.cache.commit(number, end if is_whole else good // unit * unit)
    request.is_loading = request.delays_commit = False
    if end == request.num_tokens:
        book.cache.roll_back(number, end - 1)
        book.ledgers.rewind(number, request, request.num_tokens, end - 1)


def _recover(book: Book, failures: Failures) -> RecoveryPlan:
    waiters = [book.requests[number] for number in book.ledgers.owners.waiters()]
    # Their own loads may be what has failed.
    idle = [book.run_of(waiter) for waiter in waiters if not waiter.in_flight]
    over = [run._replace(ended_tables=book.cache.blocks(run.request)) for run in idle]
    if book.ledgers.departed.is_open:
        over = []  # Preempted, these runs are remembered.
    for waiter in waiters:
        if waiter.number in book.running:  # A waiter that owns blocks takes its heirs along.
            book.preempt(waiter)
    runs = [*map(book.run_of, book.running.values()), *over]
    plan, tables = book.ledgers.recover(runs, failures, book.running)
    if plan.tainted or plan.lost:
        for request in book.waiting:  # Their runs have ended, but their steps may have read it.
            request.in_flight.clear()
    _carry_out(book, plan, tables)
    for number in plan.told:
        if number in book.requests:
            output = Output(number, finish=Finish.ERROR, error=_ERRORS[Action.TAINTED_OUTPUT])
            book.end(book.requests[number], output)
    return plan


def _carry_out(book: Book, plan: RecoveryPlan, tables: Mapping[int, Tables]) -> None:
    for number, what in plan.requests.items():
        request = book.requests[number]
        if what.action.ends:
            output = Output(number, finish=Finish.ERROR, error=_ERRORS[what.action])
            book.end(request, output, is_held=True)
            continue
        if what.action is Action.START_OVER:
            book.preempted(request, tables.get(number, ()))
        else:
            book.ledgers.rewind(number, request, request.num_tokens, what.resume)
        request.counts.recovered(what.resume, what.recompute)
        request.in_flight.clear()
