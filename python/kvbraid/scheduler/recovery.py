"""What reports on loads change: loads arrive, failures are decided on, and plans are applied.

The decision is `kvbraid.recovery`'s. Here it is applied: to the cache in one step, then to the
tiers, and to what the scheduler knows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvbraid.ids import BlockId
from kvbraid.recovery.assess import first_read
from kvbraid.recovery.decide import decide
from kvbraid.recovery.failures import Failures
from kvbraid.recovery.plan import Action, RecoveryPlan, RequestPlan
from kvbraid.recovery.policy import Policy
from kvbraid.recovery.transfers import LoadReport
from kvbraid.scheduler.book import Book
from kvbraid.scheduler.requests import Request
from kvbraid.scheduler.step import Finish, Output
from kvbraid.spec import SpecKind

_ERRORS: Final = {Action.FAIL: "load_failed", Action.TAINTED_OUTPUT: "tainted_output"}


def judge(book: Book, reports: Sequence[LoadReport]) -> RecoveryPlan | None:
    """Take reports: free what was held for loads that are over, recover from what failed, and let
    requests go on whose loads have arrived. Returns what was decided."""
    for report in reports:
        for number in book.transfers.note(report):
            if number in book.quarantine:
                book.cache.pool.free(book.quarantine.ended(number, report.rank))
    settled, failures = book.transfers.settle()
    plan = _recover(book, failures) if failures or failures.causes else None
    tainted = frozenset(plan.tainted if plan else ())
    for load in settled:
        request = book.requests.get(load.request)
        own = request if request is not None and request.load is load else None
        if tainted.isdisjoint(target.block_id for target in load.targets):
            book.cooldowns.succeeded(load.tier)
            if own is not None and own.is_loading:
                _arrived(book, own)
        else:
            book.cooldowns.failed(load.tier, book.num_steps)
            if request is not None and book.retries.failed(request.number, book.num_steps):
                _ask_again(book, request)
    return plan


def _arrived(book: Book, request: Request) -> None:
    """All of an asynchronous load is good: its blocks become findable, and the request goes on.

    If the load brought the last token, that one is computed all the same. Where it cannot be,
    because its window or state was not loaded, the request starts over with what is findable now.
    """
    end = request.num_computed
    book.cache.commit(request.number, end)
    request.is_loading = request.delays_commit = False
    if end < request.num_tokens:
        return
    if not _holds_all_before(book, request, end - 1):
        request.may_load = False
        book.preempt(request)
        return
    book.cache.roll_back(request.number, end - 1)
    request.rewind(end - 1)


def _holds_all_before(book: Book, request: Request, token: int) -> bool:
    """Whether the request's own blocks have all that computing this token reads."""
    groups = book.cache.config.topology.groups
    tables = book.cache.blocks(request.number)
    return all(
        spec.kind is not SpecKind.MAMBA
        and 0 not in table[first_read(spec, token) // spec.block_size :]
        for spec, table in zip(groups, tables, strict=True)
    )


def _ask_again(book: Book, request: Request) -> None:
    """A request that may ask the tiers again has to start over, if it computes in place."""
    if book.options.policy is Policy.RETRY and request.number in book.running:
        book.preempt(request)


def _recover(book: Book, failures: Failures) -> RecoveryPlan:
    """Decide, and apply the decision."""
    for waiter in book.owners.waiters():  # They hold what is not whole yet: no plan speaks of it.
        book.preempt(book.requests[waiter])
    writers = book.transfers.writers
    plan = decide(
        book.cache,
        [request.as_run() for request in book.running.values()] + [e.run for e in book.ended],
        failures,
        busy=writers.keys(),
        policy=book.options.policy,
        max_refusals=book.options.max_refusals,
    )
    tables = {n: book.tables(book.requests[n]) for n in plan.recovery.preempt}
    hold = [block for block in plan.recovery.hold if block not in book.quarantine.blocks]
    book.cache.recover(replace(plan.recovery, hold=hold))
    for number in sorted({writers[block] for block in hold}):
        blocks = [block for block in hold if writers[block] == number]
        book.quarantine.add(number, blocks, book.transfers.pending(number))
    if plan.tainted:
        book.tiers.forget_blocks(plan.tainted)
        for request in book.waiting:  # Their runs have ended, but a step may have read garbage.
            request.in_flight.clear()
    for record in plan.drop:
        book.tiers.drop(record)
    for record in plan.back_off:
        book.tiers.back_off(record)
    for one in plan.requests.values():
        _apply(book, one, tables.get(one.request, ()))
    book.owners.take(plan, book.cache.tables)
    return plan


def _apply(book: Book, plan: RequestPlan, tables: Sequence[Sequence[BlockId]]) -> None:
    request = book.requests[plan.request]
    if plan.action.ends:
        error = _ERRORS[plan.action]
        book.end(request, Output(request.number, (), Finish.ERROR, error), is_held=True)
        return
    if plan.action is Action.START_OVER:
        book.preempted(request, tables)
    request.counts.recovered(plan.resume, plan.recompute)
    request.run += 1
    request.in_flight.clear()
    if plan.action is Action.REWIND:
        request.rewind(plan.resume)
