"""What reports on loads change: loads arrive, failures are decided on, and plans are applied.

The decision is `kvbraid.recovery`'s; here it reaches the requests.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kvbraid.recovery.apply import apply
from kvbraid.recovery.assess import first_read, snapshot_of
from kvbraid.recovery.decide import decide
from kvbraid.recovery.document import State
from kvbraid.recovery.failures import Failures
from kvbraid.recovery.plan import Action, RecoveryPlan
from kvbraid.recovery.transfers import LoadReport
from kvbraid.scheduler.book import Book
from kvbraid.scheduler.requests import Request
from kvbraid.scheduler.step import Finish, Output
from kvbraid.spec import SpecKind

Dump = Callable[[State], object]
_ERRORS: Final = {Action.FAIL: "load_failed", Action.TAINTED_OUTPUT: "tainted_output"}


def judge(book: Book, reports: Sequence[LoadReport], dump: Dump | None) -> None:
    """Take reports: free what was held for loads that are over, recover from what failed, and let
    requests go on whose loads have arrived."""
    for report in reports:
        for number in book.transfers.note(report):
            if number in book.quarantine:
                book.cache.pool.free(book.quarantine.ended(number, report.rank))
    settled, failures = book.transfers.settle()
    plan = _recover(book, failures, dump) if failures or failures.causes else RecoveryPlan()
    tainted = frozenset(plan.tainted)
    for load in settled:
        request = book.requests.get(load.request)
        if tainted.isdisjoint(target.block_id for target in load.targets):
            book.cooldowns.succeeded(load.tier)
            if request is not None and request.load is load and request.is_loading:
                _arrived(book, request)
            continue
        book.cooldowns.failed(load.tier, book.num_steps)
        may_retry = request is not None and book.retries.failed(request.number, book.num_steps)
        if request is not None and may_retry and request.number in book.running:
            book.preempt(request)  # It asks again when it starts over.


def _arrived(book: Book, request: Request) -> None:
    """All of an asynchronous load is good: its blocks become findable, and the request goes on.

    If the load brought the last token, that one is computed all the same. If its window or state
    was not loaded, the request starts over with what is findable now.
    """
    end = request.num_computed
    book.cache.commit(request.number, end)
    request.is_loading = request.delays_commit = False
    if end < request.num_tokens:
        return
    if _holds_what_is_read(book, request, end - 1):
        book.cache.roll_back(request.number, end - 1)
        request.rewind(end - 1)
    else:
        request.may_load = False
        book.preempt(request)


def _holds_what_is_read(book: Book, request: Request, token: int) -> bool:
    groups, tables = book.cache.config.topology.groups, book.cache.blocks(request.number)
    return all(
        spec.kind is not SpecKind.MAMBA
        and 0 not in table[first_read(spec, token) // spec.block_size :]
        for spec, table in zip(groups, tables, strict=True)
    )


def _recover(book: Book, failures: Failures, dump: Dump | None) -> RecoveryPlan:
    """Decide, and apply the decision."""
    for waiter in book.owners.waiters():  # They hold blocks that are not whole yet.
        book.preempt(book.requests[waiter])
    cache, options, runs = book.cache, book.options, book.runs()
    busy = book.transfers.writers.keys()
    if dump is not None:
        snapshot = snapshot_of(cache, runs)
        state = State(
            snapshot=snapshot, runs=runs, failures=failures, busy=busy, policy=options.policy
        )
        dump(state)
    plan = decide(
        cache, runs, failures, busy=busy, policy=options.policy, max_refusals=options.max_refusals
    )
    tables = {number: book.tables(book.requests[number]) for number in plan.requests}
    apply(plan, cache, book.tiers, book.quarantine, book.transfers)
    if plan.tainted:
        for request in book.waiting:  # Their runs have ended, but their steps may have read it.
            request.in_flight.clear()
    for number, what in plan.requests.items():
        request = book.requests[number]
        book.actions[what.action] += 1
        if what.action.ends:
            output = Output(number, finish=Finish.ERROR, error=_ERRORS[what.action])
            book.end(request, output, is_held=True)
            continue
        if what.action is Action.START_OVER:
            book.preempted(request, tables[number])
        else:
            request.rewind(what.resume)
        request.counts.recovered(what.resume, what.recompute)
        request.run += 1
        request.in_flight.clear()
    book.owners.take(plan, cache.tables)
    return plan
