"""Requests that wait because every pod that may get them is full.

Invariant: among requests that may go to the same pods, the most urgent is sent first, and of
equals the one that came first. Whoever leaves, for whatever reason, holds no place, and wakes the
others. What waits is bounded in number, bytes and time. A wake is a hint: the request asks the
router anew, and keeps its place if others were faster.
"""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from kvbraid.errors import FullError
from kvbraid.gateway.exchange import WokenError
from kvbraid.ids import PodId
from kvbraid.service.errors import RefusalError
from kvbraid.service.forwarding import ForwardingOptions

_T = TypeVar("_T")

QueueEnd: TypeAlias = Literal["sent", "no_place", "too_long", "left"]
"""How a wait can end: `no_place` never began, and `left` has no client any more, or no pod."""


class QueueGuest(Protocol):
    """Who waits: an `Exchange`."""

    async def wait(self, what: Literal["turn"], coming: Awaitable[_T], /) -> _T:
        """Wait for something that comes; WokenError if that takes too long."""
        ...


class Line(NamedTuple):
    """Requests that may go to the same pods: those of a model, but some."""

    model: str
    but: frozenset[PodId]


@dataclass(order=True, slots=True)
class _Place:
    priority: int
    number: int
    num_bytes: int = field(compare=False)
    turn: "asyncio.Future[None]" = field(compare=False)

    def call(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)


class RequestQueue:
    """The requests of one gateway that wait. `outcomes` counts how waits ended."""

    def __init__(self, options: ForwardingOptions) -> None:
        self._options: Final = options
        self._lines: dict[Line, list[_Place]] = {}
        self._numbers = count()
        self._num_bytes = 0
        self.outcomes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def num_bytes(self) -> int:
        """The bytes of all requests that wait."""
        return self._num_bytes

    async def send(
        self,
        guest: QueueGuest,
        line: Line,
        choose: Callable[[], Awaitable[_T]],
        *,
        priority: int,
        num_bytes: int,
    ) -> _T:
        """Choose at once, or when it is the request's turn and a pod has room.

        Raises:
            RefusalError: `too_many_requests`: the queue is full, or it took too long.
        """
        others = self._lines.get(line)
        if not others or priority < others[0].priority:
            try:
                return await choose()
            except FullError:
                pass
        place = self._enter(line, priority, num_bytes)
        outcome: QueueEnd = "left"
        try:
            chosen = await self._wait(guest, place, choose)
            outcome = "sent"
            return chosen
        except (WokenError, TimeoutError):
            outcome = "too_long"
            told = f"every pod was full for {self._options.queued_s:g} s"
            raise RefusalError("too_many_requests", told) from None
        finally:
            self.outcomes[outcome] += 1
            self._leave(line, place)

    async def _wait(
        self, guest: QueueGuest, place: _Place, choose: Callable[[], Awaitable[_T]]
    ) -> _T:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._options.queued_s  # Each wait begins anew, but not its limit.
        while True:
            await guest.wait("turn", place.turn)
            place.turn = loop.create_future()
            try:
                return await choose()
            except FullError:
                if loop.time() > ends:
                    raise TimeoutError from None

    def freed(self, model: str, pod: PodId) -> None:
        """A pod may have room: wake the most urgent request that may go there."""
        heads = (
            places[0]
            for line, places in self._lines.items()
            if line.model == model and pod not in line.but
        )
        head = min(heads, default=None)
        if head is not None:
            head.call()

    def look(self) -> None:
        """Wake the first request of each line: pods can get room without anybody telling."""
        for places in self._lines.values():
            places[0].call()

    def _enter(self, line: Line, priority: int, num_bytes: int) -> _Place:
        options = self._options
        if len(self) >= options.queued or self._num_bytes + num_bytes > options.queued_bytes:
            self.outcomes["no_place"] += 1
            told = f"every pod is full, and {len(self)} requests with {self._num_bytes} bytes wait"
            raise RefusalError("too_many_requests", told)
        turn = asyncio.get_running_loop().create_future()
        place = _Place(priority, next(self._numbers), num_bytes, turn)
        places = self._lines.setdefault(line, [])
        insort(places, place)
        self._num_bytes += num_bytes
        places[0].call()  # It asks for all of them whether there is a pod at all.
        return place

    def _leave(self, line: Line, place: _Place) -> None:
        places = self._lines[line]
        places.remove(place)
        self._num_bytes -= place.num_bytes
        if not places:
            del self._lines[line]
        self.look()  # What it was woken for, and did not take, may be for anybody.

    def check_integrity(self) -> None:
        """Assert that lines are in order and sums are right. For tests: it walks everything."""
        every = [place for places in self._lines.values() for place in places]
        assert all(self._lines.values())
        assert all(places == sorted(places) for places in self._lines.values())
        assert len({place.number for place in every}) == len(every) == len(self)
        assert self._num_bytes == sum(place.num_bytes for place in every)
        assert len(every) <= self._options.queued
        assert self._num_bytes <= self._options.queued_bytes
