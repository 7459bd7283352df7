"""A clock that nothing waits for: what is to happen, in the order of its time.

Of two things at the same time, the one that was planned first happens first. So a run can be
repeated to the last digit.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

Act: TypeAlias = Callable[[float], None]
"""Something that happens; it is told the time."""


class Clock:
    """Times are in seconds from the start."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Act]] = []
        self._numbers = count()

    def at(self, time: float, act: Act) -> None:
        """Plan something."""
        heapq.heappush(self._due, (time, next(self._numbers), act))

    def run(self) -> None:
        """Let everything happen that is planned, and what is planned meanwhile."""
        while self._due:
            now, _, act = heapq.heappop(self._due)
            act(now)
