"""What all connections share: their number, the bytes of their bodies, what was refused.

Invariant: a client that sends nothing or half a request, or that never reads its answer, costs a
descriptor for a documented time at most, and is evicted earlier if others need its place. A
request that is being answered is never cut off here. This must be used on the event loop.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from kvbraid.service.capacity import max_connections
from kvbraid.service.config import Limits
from kvbraid.service.errors import RefusalError

MOST_LEAVING: Final = 64
"""Refused clients that may read their answer at a time. They take no place of others."""

_SHARE_EVICTED: Final = 16  # One in 16 is evicted at once: one search makes much room.


class Waiter(Protocol):
    """A connection, as the limits see it."""

    def waiting_since(self) -> float | None:
        """When the wait for the client began; None while it is answered."""

    def evict(self) -> None:
        """Close at once."""

    def expire(self, now: float) -> None:
        """Close if a time limit is over."""


class ConnectionLimits:
    """The limits of the HTTP side as numbers, and what is counted against them.

    Attributes:
        refused: Counts by reason of what was refused or given up before any route saw it.
        held_bytes: Bytes of all request bodies that are arriving or being answered.
        num_leaving: Connections that are refused, but still open so that clients read why.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.max_connections = limits.connections
        self._room = limits.connections  # For so many there are descriptors.
        self.refused: Counter[str] = Counter()
        self.held_bytes = 0
        self.num_leaving = 0

    def leave_descriptors(self) -> None:
        """Keep most of the process's descriptors free of HTTP connections."""
        self._room = max_connections()
        self.change(self.limits)

    def change(self, limits: Limits) -> None:
        """Have other limits from now on; those who wait longer or have sent more are met next."""
        self.limits = limits
        self.max_connections = min(limits.connections, self._room)

    def admit(self, connections: Collection[Waiter]) -> bool:
        """Whether a new connection, already counted, may stay; others may be evicted for it."""
        if len(connections) - self.num_leaving <= self.max_connections:
            return True
        waiting = (
            (since, number, each)
            for number, each in enumerate(connections)
            if (since := each.waiting_since()) is not None
        )
        leaving = heapq.nsmallest(1 + self.max_connections // _SHARE_EVICTED, waiting)
        for _, _, each in leaving:
            self.refused["evicted"] += 1
            each.evict()
        return bool(leaving)

    def sweep(self, connections: Iterable[Waiter], now: float) -> None:
        """Close connections that have kept us waiting too long."""
        for each in list(connections):
            each.expire(now)

    def hold(self, num_bytes: int) -> None:
        """Count bytes of a body that has to be kept.

        Raises:
            RefusalError: `overloaded`; nothing was counted.
        """
        if self.held_bytes + num_bytes > self.limits.bodies_bytes:
            message = (
                f"request bodies hold {self.held_bytes} bytes; limit {self.limits.bodies_bytes}"
            )
            raise RefusalError("overloaded", message)
        self.held_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        """Stop counting bytes that were held."""
        self.held_bytes -= num_bytes
