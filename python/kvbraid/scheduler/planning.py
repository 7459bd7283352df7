"""What one step computes: who goes on, who starts, who has to give blocks back.

Invariant: one that runs goes before one that starts, and requests start in the order in which they
arrived. If blocks are short, whoever waits for blocks of others gives its own back, then whoever
started last; nobody starts in such a step. Nobody who is in the step loses blocks.
"""

from typing import Final

from kvbraid.cache import Need
from kvbraid.cache.chunk import Position
from kvbraid.loads import NO_TIERS, Load, Offer, Query
from kvbraid.recovery.ledger.loading import can_end_before, useful_end
from kvbraid.scheduler.request_table import RequestTable, ScheduledRequest
from kvbraid.scheduler.step import Finish, Output, Scheduled

_NOTHING: Final = Offer(num_tokens=0, tier="none", is_async=False)


class StepPlan:
    """A step as it fills."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._budget = table.options.max_step_tokens
        self.scheduled: list[Scheduled] = []
        self.loads: list[Load] = []

    def fill(self) -> None:
        """Give requests their blocks and their tokens; refuse offers that no request can use."""
        table, num_waiting = self._table, len(self._table.waiting)
        for request in list(table.running.values()):
            is_idle = request.is_loading or table.ledgers.owners.is_waiting(request.number)
            if request.number in table.running and not is_idle:
                self._go_on(request)
        if len(table.waiting) > num_waiting:
            return
        while table.waiting and self._budget and len(table.running) < table.options.max_running:
            if not self._start(table.waiting[0]):
                return

    def _go_on(self, request: ScheduledRequest) -> None:
        part = self._next_part(request, request.num_computed)
        if part is None:
            return
        need = Need(
            request=request.number,
            num_new_tokens=part.num_tokens,
            num_in_flight_tokens=request.num_in_flight,
            delay_commit=request.delays_commit,
        )
        while not self._table.ledgers.allocate(need):
            victim = self._victim()
            if victim is None:
                self._give_up(request)
                return
            self._table.preempt(victim)
            if victim is request:
                return
        self._add(request, part)

    def _victim(self) -> ScheduledRequest | None:
        """The last one that could run has no victim, not even itself: it waits."""
        running, waiters = self._table.running, self._table.ledgers.owners.waiters()
        candidates = [request for request in running.values() if not request.is_loading]
        if waiters:
            return running[waiters[0]]
        return candidates[-1] if len(candidates) > 1 else None

    def _give_up(self, request: ScheduledRequest) -> bool:
        """End a request if nothing will ever make room for it; return whether it ended."""
        table = self._table
        others = table.running.keys() - {request.number}
        is_lent = table.ledgers.transfers.loads or table.cache.pool.num_held
        if others or table.steps or is_lent or self.scheduled:
            return False
        table.end(request, Output(request.number, finish=Finish.ERROR, error="out_of_blocks"))
        return True

    def _next_part(self, request: ScheduledRequest, start: int) -> Scheduled | None:
        """Plan a request's tokens; None if there are none, or too few are left of the step."""
        table, wanted = self._table, min(request.num_expected, request.num_to_compute) - start
        if wanted <= 0 or not self._budget:
            return None
        drafts = 0
        if wanted == 1 and request.number in table.running and start >= request.num_known:
            drafts = min(table.options.num_lookahead_tokens, request.num_to_compute - start - 1)
        position = Position(
            start=start,
            num_prompt_tokens=len(request.prompt),
            num_tokens=request.num_tokens,
            budget=min(self._budget, wanted + drafts),
            junction=request.junction,
        )
        count = table.rules.plan(position)
        samples = count >= wanted and request.num_expected < request.max_tokens
        drafts = max(0, count - wanted)
        part = Scheduled(request.number, request.run, start, count, drafts, samples)
        return part if count else None

    def _add(self, request: ScheduledRequest, part: Scheduled) -> None:
        request.in_flight[self._table.num_steps] = part
        request.num_computed = part.start + part.num_tokens
        self.scheduled.append(part)
        self._budget -= part.num_tokens
        self._table.ledgers.follow(request.number, request)

    def _start(self, request: ScheduledRequest) -> bool:
        """Give a request its first blocks; return whether the next one may start, too."""
        table, number, unit = self._table, request.number, self._table.rules.alignment
        if table.ledgers.released.is_in_flight(number):
            return False  # A step in flight, or a report on it, may still change what it knows.
        match = table.cache.match(number)
        hit = match.num_tokens // unit * unit
        offer = self._ask(request, hit)
        if hit + offer.num_tokens <= match.num_tokens:
            hit, offer = match.num_tokens, _NOTHING
        request.junction = match.junction
        part = None if offer.is_async else self._next_part(request, hit + offer.num_tokens)
        if part is None and not offer.is_async:
            return False
        is_late = table.options.findable == "computed"
        need = Need(
            request=number,
            num_new_tokens=part.num_tokens if part else 0,
            num_hit_tokens=hit,
            junction=match.junction,
            num_external_tokens=offer.num_tokens,
            delay_commit=offer.is_async or (offer is not _NOTHING and is_late),
            loading_groups=tuple(range(len(table.groups))) if offer.num_tokens else (),
            is_waiting=bool(table.running),
        )
        if not table.ledgers.allocate(need):
            return self._give_up(request)
        table.waiting.remove(request)
        table.running[number] = request
        request.begin(request.num_tokens, hit, offer.num_tokens)
        request.delays_commit = need.delay_commit
        table.ledgers.note_hit(number, request)
        if offer.num_tokens:
            self.loads.append(table.ledgers.begin(number, request, offer))
        if part is not None:
            self._add(request, part)
        return True

    def _ask(self, request: ScheduledRequest, hit: int) -> Offer:
        """Ask the tiers for what comes after the hit."""
        table, ledgers = self._table, self._table.ledgers
        may_ask = ledgers.retries.allows(request.number, table.num_steps)
        if table.tiers is NO_TIERS or not may_ask:
            return _NOTHING
        tokens, refused = [*request.prompt, *request.outputs], ledgers.cooldowns.cooling
        query = Query(request.number, tokens, request.extra, hit, refused(table.num_steps))
        offer = table.tiers.lookup(query) or _NOTHING
        end, count, unit = hit + offer.num_tokens, len(tokens), table.rules.alignment
        last = count - (not offer.is_async)
        is_before_last = offer.is_async and end == count - 1 and can_end_before(table.groups, end)
        is_inside = end % unit and end < count and not is_before_last
        if end > last or is_inside or offer.tier in query.refused:
            ledgers.refuse(offer, table.num_steps)
            return _NOTHING
        if end < count:
            return offer
        end = useful_end(table.groups, count, unit, offer.state_ends)
        return offer._replace(num_tokens=end - hit) if end > hit else _NOTHING
