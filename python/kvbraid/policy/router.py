"""The face of the policies: requests come, ranks are chosen, and reports come back.

Invariant: a request is booked and promised before its decision is returned, and has at most one
booking however often it is asked about. What nobody reports is released by time and counted.
Times are those of the caller's clock, in seconds. Thread-safe: one decision at a time.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random
from threading import Lock
from typing import Final

from kvbraid.errors import FullError, NoRankError, UnknownError, shortened
from kvbraid.fleet import Columns, Request
from kvbraid.ids import PodId, PodState, Tier
from kvbraid.policy.asking import Promisable, Promising
from kvbraid.policy.bookings import Booking, Bookings
from kvbraid.policy.costs import CostRule
from kvbraid.policy.decision import Decision
from kvbraid.policy.engine_load import EngineLoad, EngineLoads
from kvbraid.policy.seconds import Seconds
from kvbraid.policy.standing import Candidate, Filtered, Standing, filtered
from kvbraid.policy.view import FleetView, RankId, RankNames, RoutingPolicy
from kvbraid.reading import POSITIVE, check

BUSIEST: Final = 0.95
"""The largest share of busy ranks that counts: the price of work is 1/(1 - share)."""

LONGEST_GAP_S: Final = 60.0
"""A longer pause between two requests counts as one of this length: a night is no arrival rate."""

_ALL_TIERS: Final = tuple(tier.value for tier in Tier)
_UNSAID: Final = Standing()
_DEFAULT_SECONDS: Final = Seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """How requests in flight count. Times are in seconds.

    With `in_flight` a request counts as cached where it was sent, until the rank's events tell of
    it: until `grace_s` after its first token at the longest, or `remember_s` where the rank has no
    events. `first_tokens` says that first tokens are reported; without them a prefill ends when it
    was expected to. A booking without a report is released after `hold_s`, and above
    `most_bookings` the oldest is.

    A rank whose next first token is `stuck_s` late is left out while there are others. What an
    engine says of its load counts for `load_age_s`. `arrivals`
    is over how many requests load is averaged; `sparse_windows` is that of `FleetIndex.promise`.
    With `with_seen`, decisions say what was ever there of a prompt (`FleetIndex.seen`).
    """

    in_flight: bool = True
    first_tokens: bool = True
    grace_s: float = 2.0
    remember_s: float = 120.0
    hold_s: float = 600.0
    stuck_s: float = 30.0
    load_age_s: float = 5.0
    most_bookings: int = 65_536
    arrivals: int = 100
    sparse_windows: bool = False
    with_seen: bool = False

    def __post_init__(self) -> None:
        """Refuse what no router can work with."""
        check("most_bookings", self.most_bookings, POSITIVE)
        check("arrivals", self.arrivals, POSITIVE)


@dataclass(slots=True)
class _Load:
    """The load of one model's ranks, and what a prefill takes, averaged over the last arrivals."""

    busy: float = 0.0
    gap_s: float = 0.0
    prefill_s: float = 0.0
    last: float | None = None
    count: int = 0

    def arrive(self, now: float, busy: float, most: int) -> None:
        self.count = min(self.count + 1, most)
        self.busy += (busy - self.busy) / self.count
        if self.last is not None:
            gap = min(max(now - self.last, 0.0), LONGEST_GAP_S)
            self.gap_s += (gap - self.gap_s) / max(self.count - 1, 1)
        self.last = now if self.last is None else max(now, self.last)

    def book(self, seconds: float) -> None:
        self.prefill_s += (seconds - self.prefill_s) / max(self.count, 1)


class Router:
    """Chooses a rank for each request, and follows what it has chosen.

    `seconds` has the coefficients of each model; a model that is left out has the defaults of
    `Seconds`, and its decisions say so. The router changes nothing of the index but its promises.
    `note` makes what a decision's booking keeps for the caller; it is called before the request is
    promised, and must not call the router.
    """

    def __init__(
        self,
        index: Promising,
        policy: RoutingPolicy | None = None,
        *,
        seconds: Mapping[str, Seconds] | None = None,
        options: RouterOptions | None = None,
        chance: Random | None = None,
        note: Callable[[Decision], object] | None = None,
    ) -> None:
        self._index = index
        self.policy = policy or CostRule()
        self._seconds = dict(seconds or {})
        self._options = options or RouterOptions()
        self._chance = chance or Random()  # noqa: S311 - it spreads load, and guards nothing
        self._note = note
        self._standing: dict[RankId | PodId, Standing] = {}
        self._bookings = Bookings()
        self._engines = EngineLoads(self._options.load_age_s)
        self._loads: dict[str, _Load] = {}
        self._ending: list[tuple[float, int]] = []  # Promises, by the time at which they end.
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    # ---- what a rank is like ---------------------------------------------------------------

    def set_standing(self, whom: RankId | PodId, standing: Standing) -> None:
        """Note what is said about a rank, or about the ranks of a pod of which nothing is said."""
        self._standing[whom] = standing

    def forget(self, whom: RankId | PodId) -> None:
        """Forget what was said about it. Bookings stay until their requests end."""
        self._standing.pop(whom, None)

    def note_load(self, rank: RankId, load: EngineLoad, *, now: float) -> None:
        """Note what a rank's engine says of its load. Requests that are not from here count."""
        with self._lock:
            own = self._bookings.loads([rank], now)
            self._engines.note(rank, load, running=own.running[0], waiting=own.waiting[0], now=now)

    def engine_loads(self, *, now: float) -> dict[RankId, EngineLoad]:
        """Return what engines have said of their load within `load_age_s`."""
        with self._lock:
            return {rank: reading.load for rank, reading in self._engines.fresh(now)}

    def _standing_of(self, rank: RankId, now: float) -> Standing:
        """Payloads may name ranks that nobody has configured: these stand as their pod does."""
        standing = self._standing.get(rank) or self._standing.get(rank[0], _UNSAID)
        reading = self._engines.get(rank, now)
        if reading is None or reading.load.loras is None:
            return standing
        return replace(standing, loras=reading.load.loras)

    def _usage_of(self, rank: RankId, now: float) -> float:
        reading = self._engines.get(rank, now)
        return self._standing_of(rank, now).usage if reading is None else reading.load.usage

    # ---- choosing --------------------------------------------------------------------------

    def pick(  # noqa: PLR0913 - each is said of a request by its name
        self,
        name: str,
        request: Request,
        *,
        now: float,
        candidates: RankNames | None = None,
        session: str | None = None,
        priority: int = 0,
        num_tokens: int = 0,
        may_overfill: bool = True,
    ) -> Decision:
        """Choose a rank for a request; book and promise it there.

        `name` is the request's own: asked again about it, the router decides anew, and the new
        booking replaces the old one. `candidates` are the ranks to choose from; None: all of the
        model. Requests of one `session` go to the same rank among near-equal ones. Of `priority`
        as in vLLM: requests of a larger number do not delay this one. Tokens on slower tiers count
        as resumable if `Seconds` says what loading takes, or if the request names its tiers. If
        the ids of a prompt are not known, its request has none, and `num_tokens` is how many there
        probably are: they count as load. If every rank is full, the request still gets one, unless
        `may_overfill` is false.

        Raises:
            UnknownError: No pod serves the model.
            FullError: Every rank is full.
            NoRankError: None of its ranks is a candidate, or may be sent a request.
            InvalidValueError: As in `FleetIndex.score`.
        """
        with self._lock:
            self._release(now)
            if self._drop(name, now):
                self._counts["asked_again"] += 1
            seconds = self._seconds.get(request.model, _DEFAULT_SECONDS)
            if seconds.per_loaded_token and request.tiers is None:
                request = replace(request, tiers=_ALL_TIERS)
            scores = self._index.score(request, with_seen=self._options.with_seen)
            columns = scores.columns()
            chosen = self._candidates(columns, request, now, candidates)
            if "full" in chosen.lifted and not may_overfill:
                raise FullError(f"every rank of {shortened(request.model)} is full")
            view = self._view(columns, chosen.rows, request, now, priority)
            if num_tokens and not len(request.token_ids):
                view = replace(view, tokens=num_tokens)
            costs = self.policy.costs(view)
            place = self._place(costs, view, session)
            row = chosen.rows[place]
            decision = Decision(
                name=name,
                policy=self.policy,
                view=view,
                costs=costs,
                place=place,
                columns=columns,
                row=row,
                seen=scores.seen,
                lower=columns.lower[row],
                upper=columns.upper[row],
                state=columns.states[row],
                lifted=chosen.lifted,
                left_out=chosen.left_out,
                seconds_given=request.model in self._seconds,
            )
            self._book(decision, scores, now, priority)
            return decision

    def _candidates(
        self, columns: Columns, request: Request, now: float, given: RankNames | None
    ) -> Filtered:
        rows = list(range(len(columns.ranks)))
        if given is not None:
            rows = [row for row in rows if columns.ranks[row] in given]
            if not rows:
                raise NoRankError(
                    f"none of the {len(given)} candidates serves {shortened(request.model)}"
                )
        said = self._said(columns, rows, request, now)
        chosen = filtered(rows, said, request.lora) if said else Filtered(rows, (), {})
        if not chosen.rows:
            reasons = ", ".join(f"{count} {name}" for name, count in chosen.left_out.items())
            raise NoRankError(f"no rank of {shortened(request.model)} may be chosen: {reasons}")
        return chosen

    def _said(
        self, columns: Columns, rows: list[int], request: Request, now: float
    ) -> dict[int, Candidate]:
        """Return the rows of which there is anything to say."""
        ranks, states, standing = columns.ranks, columns.states, self._standing
        stuck = self._bookings.stuck(now, self._options.stuck_s)
        is_of_adapter = request.lora is not None  # Engines say which ones they have room for.
        if not standing and not stuck and PodState.STALE not in states and not is_of_adapter:
            return {}
        return {
            row: Candidate(
                standing=self._standing_of(ranks[row], now),
                state=states[row],
                running=self._bookings.running(ranks[row])
                + self._engines.running(ranks[row], now),
                is_stuck=ranks[row] in stuck,
            )
            for row in rows
            if is_of_adapter
            or not standing.keys().isdisjoint((ranks[row], ranks[row][0]))
            or states[row] is PodState.STALE
            or ranks[row] in stuck
        }

    def _view(
        self, columns: Columns, rows: list[int], request: Request, now: float, priority: int
    ) -> FleetView:
        is_whole, in_flight = len(rows) == len(columns.ranks), self._options.in_flight
        ranks = columns.ranks if is_whole else [columns.ranks[row] for row in rows]
        load = self._loads.setdefault(request.model, _Load())
        seconds = self._seconds.get(request.model, _DEFAULT_SECONDS)
        each_s = load.prefill_s or seconds.prefill(max(len(request.token_ids), 1), 0)
        every = self._bookings.loads(columns.ranks, now, priority)
        others = self._engines.add_to(every, columns.ranks, now, each_s)
        loads = every if is_whole else every.of(rows)
        num = len(columns.ranks)
        busy = (num - every.waiting.count(0)) / num
        load.arrive(now, busy, self._options.arrivals)
        loaded = [0] * len(rows)
        if seconds.per_loaded_token:
            loaded = self._loaded(request, columns, rows)
        usage = [0.0] * len(rows)
        if self._standing or self._engines:
            usage = [self._usage_of(rank, now) for rank in ranks]
        return FleetView(
            request=request,
            tokens=max(len(request.token_ids), 1),
            ranks=ranks,
            resumable=_at(columns.expected_soon if in_flight else columns.expected, rows),
            present=_at(columns.present_soon if in_flight else columns.present, rows),
            loaded=loaded,
            wait=loads.wait,
            others=[others[row] for row in rows],
            running=loads.running,
            running_tokens=loads.running_tokens,
            waiting=loads.waiting,
            waiting_tokens=loads.waiting_tokens,
            usage=usage,
            busy=min(load.busy, BUSIEST),
            rate=1 / (load.gap_s * num) if load.gap_s else 0.0,
            seconds=seconds,
            chance=self._chance,
        )

    def _loaded(self, request: Request, columns: Columns, rows: list[int]) -> list[int]:
        """Return how many of each candidate's tokens are on slower tiers than the GPU alone."""
        near = self._index.score(replace(request, tiers=(Tier.GPU.value,))).columns()
        on_gpu = dict(zip(near.ranks, near.expected, strict=True))
        expected, ranks = columns.expected, columns.ranks
        return [max(expected[row] - on_gpu.get(ranks[row], 0), 0) for row in rows]

    def _place(self, costs: list[float], view: FleetView, session: str | None) -> int:
        least, slack = min(costs), self.policy.slack
        most = least * (1 + slack) if slack else least
        near = [place for place, cost in enumerate(costs) if cost <= most]
        if session is None or len(near) == 1:
            return self._chance.choice(near)
        return max(near, key=lambda place: _affinity(session, view.ranks[place]))

    def _book(self, decision: Decision, scores: Promisable, now: float, priority: int) -> None:
        self._counts["picked"] += 1
        view, options, resumable = decision.view, self._options, decision.resumable
        if len(self._bookings) >= options.most_bookings:
            oldest, _ = next(iter(self._bookings))
            self._drop(oldest, now)
            self._counts["bookings_over_limit"] += 1
        booking = Booking(
            rank=decision.rank,
            seconds=view.seconds.prefill(view.tokens, resumable),
            tokens=view.tokens,
            computes=view.tokens - resumable,
            lower=decision.lower,
            upper=decision.upper,
            at=now,
            priority=priority,
            grace_s=options.grace_s if decision.knowledge == "events" else options.remember_s,
            note=self._note(decision) if self._note is not None else None,
        )
        if options.in_flight:
            junction = decision.columns.present_soon[decision.row]
            booking.promise = self._promise(decision.rank, scores, junction)
        self._bookings.add(decision.name, booking)
        self._loads[view.request.model].book(booking.seconds)

    def _promise(self, rank: RankId, scores: Promisable, junction: int) -> int | None:
        pod, dp_rank = rank
        sparse = self._options.sparse_windows
        try:
            return scores.promise(pod, dp_rank=dp_rank, junction=junction, sparse_windows=sparse)
        except UnknownError:  # The pod was removed meanwhile: its data plane will say so.
            self._counts["removed_meanwhile"] += 1
            return None

    # ---- what comes back -------------------------------------------------------------------

    def first_token(self, name: str, *, now: float) -> bool:
        """Note a request's first token; return whether the request is booked."""
        with self._lock:
            booking = self._bookings.start(name, now)
            if booking is None:
                self._counts["unknown_reports"] += 1
                return False
            self._end_promise(booking, now + booking.grace_s)
            return True

    def end(self, name: str, *, now: float) -> bool:
        """Note that a request has ended well; return whether it was booked."""
        with self._lock:
            booking = self._bookings.end(name, now)
            if booking is None:
                self._counts["unknown_reports"] += 1
                return False
            self._end_promise(booking, now + booking.grace_s)
            return True

    def fail(self, name: str, *, now: float) -> bool:
        """Note that a request failed and left nothing; return whether it was booked."""
        with self._lock:
            if not self._drop(name, now):
                self._counts["unknown_reports"] += 1
                return False
            self._counts["failed"] += 1
            return True

    def release(self, *, now: float) -> None:
        """Release what nobody has reported in time. Each pick does so, too."""
        with self._lock:
            self._release(now)

    def _release(self, now: float) -> None:
        if not self._options.first_tokens:
            self._bookings.start_predicted(now)
        while self._bookings:
            name, oldest = next(iter(self._bookings))
            if now - oldest.at < self._options.hold_s:
                break
            self._drop(name, now)
            self._counts["released_by_time"] += 1
        while self._ending and (
            self._ending[0][0] <= now or len(self._ending) > self._options.most_bookings
        ):
            self._index.withdraw(heapq.heappop(self._ending)[1])

    def _drop(self, name: str, now: float) -> bool:
        """Release a request and what it promised at once; say whether it was booked."""
        booking = self._bookings.end(name, now)
        if booking is None:
            return False
        if booking.promise is not None:
            self._index.withdraw(booking.promise)
        return True

    def _end_promise(self, booking: Booking, at: float) -> None:
        if booking.promise is not None:
            heapq.heappush(self._ending, (at, booking.promise))
            booking.promise = None

    # ---- what a user can see ---------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how often each thing has happened that is counted."""
        return dict(self._counts)

    @property
    def is_choosing(self) -> bool:
        """Whether a thread is choosing or reporting now, for which others have to wait."""
        return self._lock.locked()

    def num_booked(self) -> int:
        """Return how many requests are in flight."""
        return len(self._bookings)

    def running(self, rank: RankId) -> int:
        """Return how many requests are in flight at a rank."""
        return self._bookings.running(rank)

    def booking(self, name: str) -> Booking | None:
        """Return what a request has booked; None if it has no booking."""
        return self._bookings.get(name)

    def check_integrity(self) -> None:
        """Assert that bookings and promises agree. For tests: it walks everything."""
        self._bookings.check_integrity()
        promises = [b.promise for _, b in self._bookings if b.promise is not None]
        assert len(set(promises)) == len(promises)
        assert self._index.num_promised() <= len(promises) + len(self._ending)


def _at(column: Sequence[int], rows: list[int]) -> list[int]:
    values = memoryview(column).tolist() if isinstance(column, memoryview) else list(column)
    return values if len(rows) == len(values) else [values[row] for row in rows]


def _affinity(session: str, rank: RankId) -> bytes:
    """Return a number that is the same in every replica: the largest wins (rendezvous hashing)."""
    text = f"{session}\0{rank[0]}\0{rank[1]}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
