"""The face of the policies: requests come, ranks are chosen, and reports come back.

Invariant: a request is booked and promised before its decision is returned, and has at most one
booking however often it is asked about. What nobody reports is released by time and counted.
Times are those of the caller's clock, in seconds. Thread-safe: one decision at a time.
"""

import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from kvbraid.errors import FullError, NoRankError, UnknownError, shortened
from kvbraid.fleet import Columns, Request
from kvbraid.ids import PodId, Tier
from kvbraid.policy.asking import Promisable, Promising
from kvbraid.policy.bookings import Booking, Bookings, Loads
from kvbraid.policy.costs import CostRule
from kvbraid.policy.decision import Decision
from kvbraid.policy.engine_load import EngineLoad, EngineLoads, Readings, add_others
from kvbraid.policy.fitting import Fit, Measured
from kvbraid.policy.in_use import DEFAULT_SECONDS, InUse, RecentLoad
from kvbraid.policy.replica_loads import NOTHING, RankLoads, ReplicaLoads, add_replicas, booked
from kvbraid.policy.seconds import Seconds
from kvbraid.policy.standing import Filtered, Said, Standing, Standings, filtered
from kvbraid.policy.view import FleetView, RankId, RankNames, RoutingPolicy
from kvbraid.reading import POSITIVE, check

_ALL_TIERS: Final = tuple(tier.value for tier in Tier)
_LEAST_URGENT: Final = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """How requests in flight count. Times are in seconds.

    With `in_flight` a request counts as cached where it was sent, until the rank's events tell of
    it: until `grace_s` after its first token at the longest, or `remember_s` where the rank has no
    events. `first_tokens` says that first tokens are reported; without them a prefill ends when it
    was expected to. A booking without a report is released after `hold_s`, and above
    `most_bookings` the oldest is.

    A rank whose next first token is `stuck_s` late is left out while there are others. What an
    engine says of its load counts for `load_age_s`, and what another replica has booked for
    `replica_age_s`. `arrivals` is over how many requests load is averaged; `sparse_windows` is
    that of `FleetIndex.promise`: None keeps windows as each pod's engine does by default.
    With `with_seen`, decisions say what was ever there of a prompt (`FleetIndex.seen`).
    For models in `fit`, coefficients are only what is expected until enough requests have shown
    what prefills take.
    """

    in_flight: bool = True
    first_tokens: bool = True
    grace_s: float = 2.0
    remember_s: float = 120.0
    hold_s: float = 600.0
    stuck_s: float = 30.0
    load_age_s: float = 5.0
    replica_age_s: float = 1.0
    most_bookings: int = 65_536
    arrivals: int = 100
    sparse_windows: bool | None = None
    with_seen: bool = False
    fit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what no router can work with."""
        check("most_bookings", self.most_bookings, POSITIVE)
        check("arrivals", self.arrivals, POSITIVE)


class _Before(NamedTuple):
    """What stands before each rank of an answer; `others` have sent that part of its wait.

    `known` are the requests in flight of which this router or an engine knows. They are those of
    `loads` unless other replicas have booked some.
    """

    loads: Loads
    others: list[float]
    readings: Readings
    known: list[int]


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
        self._fits: dict[str, Fit] = {}
        self._set_fits()
        self._chance = chance or Random()  # noqa: S311 - it spreads load, and guards nothing
        self._note = note
        self._standings = Standings()
        self._bookings = Bookings()
        self._engines = EngineLoads(self._options.load_age_s)
        self._replicas = ReplicaLoads(self._options.replica_age_s)
        self._loads: defaultdict[str, RecentLoad] = defaultdict(RecentLoad)  # By model.
        self._ending: list[tuple[float, int]] = []  # Promises, by the time at which they end.
        self._counts: Counter[str] = Counter()
        self._choosing = Lock()  # Of one choice at a time; it is taken before the other one.
        self._lock = Lock()  # Of what is kept here; no answer is waited for meanwhile.

    def route_by(
        self,
        policy: RoutingPolicy | None = None,
        *,
        seconds: Mapping[str, Seconds],
        options: RouterOptions,
    ) -> None:
        """Choose otherwise from the next request on; without a policy, by the one there is.

        What is booked stays booked. A fit goes on where the coefficients that were given are the
        same; where they are not, it begins anew.
        """
        with self._lock:
            self.policy = policy or self.policy
            if options.load_age_s != self._options.load_age_s:
                self._engines = EngineLoads(options.load_age_s)
            self._replicas.age_s = options.replica_age_s
            self._seconds, self._options = dict(seconds), options
            self._set_fits()

    def _set_fits(self) -> None:
        given = {m: self._seconds.get(m, DEFAULT_SECONDS) for m in self._options.fit}
        self._fits = {
            model: old if (old := self._fits.get(model)) and old.given == seconds else Fit(seconds)
            for model, seconds in given.items()
        }

    # ---- what a rank is like ---------------------------------------------------------------

    def set_standing(self, whom: RankId | PodId, standing: Standing) -> None:
        """Note what is said about a rank, or about the ranks of a pod of which nothing is said."""
        with self._lock:
            self._standings.note(whom, standing)

    def forget(self, whom: RankId | PodId) -> None:
        """Forget what was said about it. Bookings stay until their requests end."""
        with self._lock:
            self._standings.forget(whom)

    def note_load(self, rank: RankId, load: EngineLoad, *, now: float) -> None:
        """Note what a rank's engine says of its load. Requests that no replica has sent count."""
        with self._lock:
            own = self._bookings.loads([rank], now)
            self._engines.note(
                rank,
                load,
                running=own.running[0],
                waiting=own.waiting[0],
                replicas=self._replicas.sums([rank], now).get(0, NOTHING),
                now=now,
            )

    def engine_loads(self, *, now: float) -> dict[RankId, EngineLoad]:
        """Return what engines have said of their load within `load_age_s`."""
        with self._lock:
            return {rank: reading.load for rank, reading in self._engines.fresh(now)}

    # ---- other replicas --------------------------------------------------------------------

    def booked(self, *, now: float) -> RankLoads:
        """Return what is booked here, for other replicas; ranks without bookings are left out."""
        with self._lock:
            self._release(now)
            ranks = self._bookings.ranks()
            return booked(ranks, self._bookings.loads(ranks, now, _LEAST_URGENT))

    def merge(self, replica: str, loads: RankLoads, *, now: float) -> bool:
        """Take what another replica has booked, in place of what it said before.

        It counts for `replica_age_s`. Values are not checked.

        Returns:
            Whether it counts at all; only so many replicas do.
        """
        with self._lock:
            return self._replicas.merge(replica, loads, now)

    def promised_s(self, decision: Decision) -> float:
        """Return how long other replicas should count a request of this one as on its way.

        They do not hear of its first token, so that may take twice as long as expected.
        """
        return 2 * decision.first_token_s + self._grace_s(decision)

    def promise(self, rank: RankId, request: Request, *, lasts_s: float, now: float) -> bool:
        """Count a request as on its way that another replica has sent to a rank.

        It counts until the rank's events tell of it, or for `lasts_s`.

        Returns:
            Whether it counts: what is in flight may not, or there is no such rank.

        Raises:
            UnknownError, InvalidValueError: As `FleetIndex.score`.
        """
        if not self._options.in_flight:
            return False
        scores = self._index.score(request)
        columns = scores.columns()
        row = next((row for row, each in enumerate(columns.ranks) if each == rank), None)
        if row is None:
            return False
        with self._lock:
            promise = self._promise(rank, scores, columns.present_soon[row])
            if promise is not None:
                heapq.heappush(self._ending, (now + lasts_s, promise))
        return promise is not None

    def replica_ages_s(self, *, now: float) -> dict[str, float]:
        """Return how long ago each replica was heard whose bookings count."""
        with self._lock:
            return self._replicas.ages_s(now)

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
        with self._choosing:
            with self._lock:
                self._release(now)
                if self._drop(name, now):
                    self._counts["asked_again"] += 1
                if self._seconds_of(request).per_loaded_token and request.tiers is None:
                    request = replace(request, tiers=_ALL_TIERS)
            # Shards may be waited for here; no report of another request has to wait, too.
            scores = self._index.score(request, with_seen=self._options.with_seen)
            columns = scores.columns()
            with self._lock:
                before = self._before(columns.ranks, request, now, priority)
                said = self._said(columns, before, now)
                chosen = self._candidates(columns, said, request, candidates)
                if "full" in chosen.lifted and not may_overfill:
                    # Another replica may be wrong or lie, so by its word nobody is refused.
                    said = said._replace(running=before.known)
                    chosen = self._candidates(columns, said, request, candidates)
                    if "full" in chosen.lifted:
                        raise FullError(f"every rank of {shortened(request.model)} is full")
                view = self._view(columns, request, before, said, now)
                if num_tokens and not len(request.token_ids):
                    view = msgspec.structs.replace(view, tokens=num_tokens)
                if len(chosen.rows) < len(view):
                    view = view.of(chosen.rows)
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
                    fitted=fit.now if (fit := self._fits.get(request.model)) is not None else None,
                )
                self._book(decision, scores, now, priority)
                return decision

    def _before(
        self, ranks: Sequence[RankId], request: Request, now: float, priority: int
    ) -> _Before:
        loads = self._bookings.loads(ranks, now, priority)
        readings, sums = self._engines.of(ranks, now), self._replicas.sums(ranks, now)
        known = loads.running
        if sums:
            known = list(known)
            for row, reading in readings.items():
                known[row] += reading.foreign
        each_s = self._loads[request.model].prefill_s
        if readings and not each_s:
            each_s = self._seconds_of(request).prefill(max(len(request.token_ids), 1), 0)
        others = add_others(loads, readings, each_s)
        add_replicas(loads, sums, others)
        return _Before(loads, others, readings, known)

    def _candidates(
        self, columns: Columns, said: Said, request: Request, given: RankNames | None
    ) -> Filtered:
        rows = list(range(len(columns.ranks)))
        if given is not None:
            rows = [row for row in rows if columns.ranks[row] in given]
            if not rows:
                raise NoRankError(
                    f"none of the {len(given)} candidates serves {shortened(request.model)}"
                )
        chosen = filtered(rows, said, request.lora)
        if not chosen.rows:
            reasons = ", ".join(f"{count} {name}" for name, count in chosen.left_out.items())
            raise NoRankError(f"no rank of {shortened(request.model)} may be chosen: {reasons}")
        return chosen

    def _said(self, columns: Columns, before: _Before, now: float) -> Said:
        ranks = columns.ranks
        stuck = self._bookings.stuck(now, self._options.stuck_s)
        return Said(
            standings=self._standings.of(ranks),
            states=columns.states,
            running=before.loads.running,
            stuck={row for row, rank in enumerate(ranks) if rank in stuck} if stuck else set(),
            readings=before.readings,
        )

    def _view(
        self, columns: Columns, request: Request, before: _Before, said: Said, now: float
    ) -> FleetView:
        """Return the view of all ranks; this is an arrival."""
        in_flight = self._options.in_flight
        loads, others = before.loads, before.others
        seconds, load = self._seconds_of(request), self._loads[request.model]
        num = len(columns.ranks)
        load.arrive(now, (num - loads.waiting.count(0)) / num, self._options.arrivals)
        usage = [0.0] * num
        for row, standing in said.standings.items():
            usage[row] = standing.usage
        for row, reading in before.readings.items():
            usage[row] = reading.load.usage
        return FleetView(
            request=request,
            tokens=max(len(request.token_ids), 1),
            ranks=columns.ranks,
            resumable=_listed(columns.expected_soon if in_flight else columns.expected),
            present=_listed(columns.present_soon if in_flight else columns.present),
            loaded=self._loaded(request, columns) if seconds.per_loaded_token else [0] * num,
            wait=loads.wait,
            others=others,
            running=loads.running,
            running_tokens=loads.running_tokens,
            waiting=loads.waiting,
            waiting_tokens=loads.waiting_tokens,
            usage=usage,
            busy=load.share_busy,
            rate=load.rate(num),
            seconds=seconds,
            chance=self._chance,
        )

    def _seconds_of(self, request: Request) -> Seconds:
        fit = self._fits.get(request.model)
        if fit is not None:
            return fit.now.seconds
        return self._seconds.get(request.model, DEFAULT_SECONDS)

    def _loaded(self, request: Request, columns: Columns) -> list[int]:
        """Return how many of each rank's tokens are on slower tiers than the GPU alone."""
        near = self._index.score(replace(request, tiers=(Tier.GPU.value,))).columns()
        on_gpu = dict(zip(near.ranks, near.expected, strict=True))
        both = zip(columns.ranks, columns.expected, strict=True)
        return [max(expected - on_gpu.get(rank, 0), 0) for rank, expected in both]

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
            seconds=decision.prefill_s,
            tokens=view.tokens,
            computes=view.tokens - resumable,
            lower=decision.lower,
            upper=decision.upper,
            at=now,
            priority=priority,
            grace_s=self._grace_s(decision),
            note=self._note(decision) if self._note is not None else None,
            measured=self._measured(decision, now),
        )
        if options.in_flight:
            junction = decision.columns.present_soon[decision.row]
            booking.promise = self._promise(decision.rank, scores, junction)
        self._bookings.add(decision.name, booking)
        self._loads[view.request.model].book(booking.seconds)

    def _grace_s(self, decision: Decision) -> float:
        options = self._options
        return options.grace_s if decision.knowledge == "events" else options.remember_s

    def _measured(self, decision: Decision, now: float) -> Measured | None:
        """Return what follows a request whose prefill tells what prefills take."""
        view, place = decision.view, decision.place
        fit = self._fits.get(view.request.model)
        is_alone = not view.waiting[place] and not view.loaded[place]
        if fit is None or not is_alone or not len(view.request.token_ids):
            return None
        return Measured(fit, view.tokens, view.running[place], now)

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

    def end(self, name: str, *, now: float, cached_tokens: int | None = None) -> bool:
        """Note that a request has ended well; return whether it was booked.

        `cached_tokens` is what its engine reused of this very prompt, if that is known.
        """
        with self._lock:
            booking = self._bookings.end(name, now)
            if booking is None:
                self._counts["unknown_reports"] += 1
                return False
            self._end_promise(booking, now + booking.grace_s)
            if booking.measured is not None:
                self._counts[booking.measured.end(cached_tokens, now)] += 1
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

    def in_use(self) -> dict[str, InUse]:
        """Return what counts for each model that was asked for, or has coefficients of its own."""
        with self._lock:
            return {
                model: InUse(
                    given=self._seconds.get(model),
                    fit=fit.now if (fit := self._fits.get(model)) is not None else None,
                    num_kept=0 if fit is None else fit.num_kept,
                    busy=self._loads[model].share_busy if model in self._loads else 0.0,
                )
                for model in sorted({*self._loads, *self._seconds, *self._fits})
            }

    def counts(self) -> dict[str, int]:
        """Return how often each thing has happened that is counted."""
        return dict(self._counts)

    @property
    def is_choosing(self) -> bool:
        """Whether a thread is choosing or reporting now, for which others have to wait."""
        return self._choosing.locked() or self._lock.locked()

    def num_booked(self) -> int:
        """Return how many requests are in flight."""
        return len(self._bookings)

    def running(self, rank: RankId) -> int:
        """Return how many requests are in flight at a rank."""
        return self._bookings.running(rank)

    def waiting(self, rank: RankId) -> int:
        """Return how many of these have no first token yet."""
        return self._bookings.waiting(rank)

    def booking(self, name: str) -> Booking | None:
        """Return what a request has booked; None if it has no booking."""
        return self._bookings.get(name)

    def check_integrity(self) -> None:
        """Assert that bookings and promises agree. For tests: it walks everything."""
        self._bookings.check_integrity()
        self._replicas.check_integrity()
        for fit in self._fits.values():
            fit.check_integrity()
        promises = [b.promise for _, b in self._bookings if b.promise is not None]
        assert len(set(promises)) == len(promises)
        assert self._index.num_promised() <= len(promises) + len(self._ending)


def _listed(column: Sequence[int]) -> list[int]:
    return column.tolist() if isinstance(column, memoryview) else list(column)


def _affinity(session: str, rank: RankId) -> bytes:
    """Return a number that is the same in every replica: the largest wins (rendezvous hashing)."""
    text = f"{session}\0{rank[0]}\0{rank[1]}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
