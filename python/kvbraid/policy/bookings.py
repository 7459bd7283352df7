"""What each rank was sent and has not done yet: booked when it is chosen, released by reports.

Invariant: a request has at most one booking, and the sums of a rank are those of its bookings.
A rank is taken to prefill one request after the other, in the order of their bookings. So its wait
is what they take together, less what has passed for the one in front. Times are in seconds, of any
clock that does not go back; if one does, nothing has passed.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbraid.policy.fitting import Measured
from kvbraid.policy.view import RankId


@dataclass(slots=True)
class Booking:
    """One request at one rank: what its prefill takes, and how far it has come.

    `computes` are the tokens of the prompt that the rank has to compute; `lower` and `upper` bound
    what it could reuse when it was chosen. `started` says that its first token has been reported.
    `priority` is vLLM's: the smaller is the more urgent. `promise` is what the index was promised,
    which may outlive the first token by `grace_s`. `note` is what the router's caller keeps here,
    and `measured` what a fit will learn from it.
    """

    rank: RankId
    seconds: float
    tokens: int
    computes: int
    at: float
    lower: int = 0
    upper: int = 0
    priority: int = 0
    grace_s: float = 0.0
    promise: int | None = None
    started: bool = False
    note: object = None
    measured: Measured | None = None


@dataclass(slots=True)
class _Line:
    """What stands before one rank: its bookings without a first token, in order, and sums.

    Each decision asks every rank for its sums and for the booking in `front`, so both are kept.
    """

    waiting: OrderedDict[str, Booking] = field(default_factory=OrderedDict)
    front: Booking | None = None
    seconds: float = 0.0
    computes: int = 0
    tokens: int = 0
    running: int = 0
    since: float = 0.0  # When the request in front came there.
    urgent: bool = False  # Whether bookings may differ in priority.

    def add(self, name: str, booking: Booking) -> None:
        if self.front is None:
            self.front, self.since, self.urgent = booking, booking.at, False
        else:
            self.urgent |= booking.priority != self.front.priority
        self.waiting[name] = booking
        self.seconds += booking.seconds
        self.computes += booking.computes
        self.tokens += booking.tokens
        self.running += 1

    def start(self, name: str, now: float) -> None:
        booking = self.waiting.pop(name, None)
        if booking is None:
            return
        if booking is self.front:
            self.front = next(iter(self.waiting.values()), None)
        self.since = max(self.since, now)  # A first token shows that the rank is at the next one.
        self.seconds = self.seconds - booking.seconds if self.waiting else 0.0
        self.computes -= booking.computes

    def end(self, name: str, booking: Booking, now: float) -> None:
        self.start(name, now)
        self.tokens -= booking.tokens
        self.running -= 1

    def wait(self, now: float, priority: int) -> float:
        front = self.front
        if front is None:
            return 0.0
        done, most = now - self.since, front.seconds  # Comparisons: `min` and `max` take longer.
        done = 0.0 if done < 0.0 else most if done > most else done
        if not self.urgent and front.priority <= priority:
            left = self.seconds - done
            return left if left > 0.0 else 0.0
        before = sum((b.seconds for b in self.waiting.values() if b.priority <= priority), 0.0)
        return before - done if front.priority <= priority else before


class Loads(NamedTuple):
    """Columns of a `FleetView`: what stands before each of its ranks."""

    wait: list[float]
    running: list[int]
    running_tokens: list[int]
    waiting: list[int]
    waiting_tokens: list[int]


class Bookings:
    """The bookings of a fleet, by the name of their request."""

    def __init__(self) -> None:
        self._bookings: OrderedDict[str, Booking] = OrderedDict()
        self._lines: defaultdict[RankId, _Line] = defaultdict(_Line)

    def __len__(self) -> int:
        return len(self._bookings)

    def __contains__(self, name: object) -> bool:
        return name in self._bookings

    def __iter__(self) -> Iterator[tuple[str, Booking]]:
        """Iterate over the bookings, oldest first."""
        return iter(self._bookings.items())

    def get(self, name: str) -> Booking | None:
        """Return a request's booking, if it has one."""
        return self._bookings.get(name)

    def add(self, name: str, booking: Booking) -> None:
        """Book a request that has no booking."""
        assert name not in self._bookings, f"request {name!r} is booked already"
        self._bookings[name] = booking
        self._lines[booking.rank].add(name, booking)

    def start(self, name: str, now: float) -> Booking | None:
        """Note a request's first token; None if the request has no booking."""
        booking = self._bookings.get(name)
        if booking is not None and not booking.started:
            booking.started = True
            if booking.measured is not None:
                booking.measured.first_token = now
            self._lines[booking.rank].start(name, now)
        return booking

    def start_predicted(self, now: float) -> None:
        """Take each first token as reported that was to be expected until now."""
        for line in self._lines.values():
            while line.waiting:
                name, front = next(iter(line.waiting.items()))
                if now < line.since + front.seconds:
                    break
                front.started = True
                line.start(name, line.since + front.seconds)

    def end(self, name: str, now: float) -> Booking | None:
        """Release a request; None if it has no booking."""
        booking = self._bookings.pop(name, None)
        if booking is not None:
            line = self._lines[booking.rank]
            line.end(name, booking, now)
            if not line.running:
                del self._lines[booking.rank]
        return booking

    def ranks(self) -> list[RankId]:
        """Return the ranks that have bookings."""
        return list(self._lines)

    def loads(self, ranks: Sequence[RankId], now: float, priority: int = 0) -> "Loads":
        """Return what stands before each of the ranks, in their order."""
        num = len(ranks)
        loads = Loads([0.0] * num, [0] * num, [0] * num, [0] * num, [0] * num)
        wait, running, running_tokens, waiting, waiting_tokens = loads
        for row, line in enumerate(map(self._lines.get, ranks)):
            if line is not None:
                running[row], running_tokens[row] = line.running, line.tokens
                if line.front is not None:
                    wait[row] = line.wait(now, priority)
                    waiting[row], waiting_tokens[row] = len(line.waiting), line.computes
        return loads

    def running(self, rank: RankId) -> int:
        """Return the number of requests in flight at a rank."""
        line = self._lines.get(rank)
        return line.running if line else 0

    def waiting(self, rank: RankId) -> int:
        """Return the number of these without a first token."""
        line = self._lines.get(rank)
        return len(line.waiting) if line else 0

    def stuck(self, now: float, late_s: float) -> set[RankId]:
        """Return the ranks whose next first token is later than it should be by more than this."""
        return {
            rank
            for rank, line in self._lines.items()
            if line.front and now - line.since > line.front.seconds + late_s
        }

    def check_integrity(self) -> None:
        """Assert that every sum is that of its bookings. For tests: it walks everything."""
        ranks = {booking.rank for booking in self._bookings.values()}
        assert ranks == set(self._lines), (ranks, set(self._lines))
        for rank, line in self._lines.items():
            mine = {n: b for n, b in self._bookings.items() if b.rank == rank}
            waiting = {n: b for n, b in mine.items() if not b.started}
            assert list(line.waiting.items()) == list(waiting.items())
            assert line.front is next(iter(waiting.values()), None)
            assert (line.running, line.tokens) == (len(mine), sum(b.tokens for b in mine.values()))
            assert line.computes == sum(b.computes for b in waiting.values())
            assert abs(line.seconds - sum(b.seconds for b in waiting.values())) < SUM_ERROR
            priorities = {b.priority for b in waiting.values()}
            assert line.urgent or len(priorities) <= 1


SUM_ERROR = 1e-6
"""By how many seconds the sum of a line may differ from the sum of its bookings."""
