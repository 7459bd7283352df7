"""When requests come: at a rate whatever becomes of them, or one after the other from each user.

A form of arrivals plans the first requests on a clock, and is told of each answer.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from kvbraid.reading import POSITIVE, Rule, check
from kvbraid.sim.routing.clock import Clock
from kvbraid.sim.routing.workloads import Ask

AtTime: TypeAlias = Callable[[int, float], None]
"""Sends the request of this number at this time, or notes that it was answered then."""

RATE: Final = Rule(lambda value: 0 < value < float("inf"), "a finite number above 0")
PAUSE: Final = Rule(lambda value: 0 <= value < float("inf"), "seconds, at least 0")


class Arrivals(Protocol):
    """A form of arrivals."""

    def begin(self, asks: Sequence[Ask], send: AtTime, clock: Clock, seed: int) -> AtTime:
        """Plan the first requests; return what is to be called at each answer."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """So many requests a second, as a Poisson process, in the order of the workload.

    Raises:
        InvalidValueError: The rate is not above 0.
    """

    rate: float

    def __post_init__(self) -> None:
        check("rate", self.rate, RATE)

    def begin(self, asks: Sequence[Ask], send: AtTime, clock: Clock, seed: int) -> AtTime:
        """Plan every request."""
        chance = random.Random(f"arrivals {seed}")  # noqa: S311 - it guards nothing
        now = 0.0
        for number, ask in enumerate(asks):
            gap = chance.expovariate(self.rate)
            now += 0.0 if ask.is_together else gap
            clock.at(now, partial(send, number))
        return lambda number, now: None  # Nobody waits for an answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """So many users at once, who take sessions in the order in which these begin.

    The next request of a session comes `think_s` seconds after the answer, and so does the first
    request of the user's next session.

    Raises:
        InvalidValueError: There is no user, or they think for less than no time.
    """

    users: int
    think_s: float = 10.0

    def __post_init__(self) -> None:
        check("users", self.users, POSITIVE)
        check("think_s", self.think_s, PAUSE)

    def begin(self, asks: Sequence[Ask], send: AtTime, clock: Clock, seed: int) -> AtTime:
        """Plan the first request of each user, spread over the time that they think."""
        chance = random.Random(f"arrivals {seed}")  # noqa: S311 - it guards nothing
        users = _Users(self.think_s, asks, send, clock)
        for _ in range(self.users):
            users.take(chance.random() * self.think_s)
        return users.answered


class _Users:
    def __init__(self, think_s: float, asks: Sequence[Ask], send: AtTime, clock: Clock) -> None:
        self._think_s, self._asks, self._send, self._clock = think_s, asks, send, clock
        sessions: dict[int, deque[int]] = {}
        for number, ask in enumerate(asks):
            sessions.setdefault(ask.session, deque()).append(number)
        self._sessions = sessions
        self._untaken = deque(sessions)

    def take(self, at: float) -> None:
        """Begin the next session."""
        if self._untaken:
            self._go_on(self._untaken.popleft(), at)

    def _go_on(self, session: int, at: float) -> None:
        self._clock.at(at, partial(self._send, self._sessions[session].popleft()))

    def answered(self, number: int, now: float) -> None:
        session = self._asks[number].session
        if self._sessions[session]:
            self._go_on(session, now + self._think_s)
        else:
            self.take(now + self._think_s)
