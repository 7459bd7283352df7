"""Ends of requests that HAProxy has sent: it tells of each in a datagram, a line of its log.

A line is `STATUS NAME SERVER STATE`: what the question about the request was answered with, its
name, who was asked last, and in two letters how it ended. A line that is lost leaves a booking
that ends by time. Invariant: a datagram is counted whatever it says, and ends a booking at most.
It says something of a pod only if it names a booking there.
"""

import asyncio
import socket
from typing import Final, NamedTuple

from kvbraid.errors import InvalidValueError
from kvbraid.gateway.counts import PASSED_OVER, GatewayCounts
from kvbraid.gateway.fleet import Fleet
from kvbraid.service.picking import Picking
from kvbraid.service.requests import PickEvent, ReportBody

_CHOSEN: Final = b"chosen"
"""The server of deploy/haproxy that is the chosen pod."""

_FALLBACK: Final = b"gateway"
"""How the names of its servers begin that get what the chosen pod does not take."""

_BEFORE_AN_ANSWER: Final = b"RQCHT"
"""The second letter of a state, if no byte of an answer had come."""


class End(NamedTuple):
    """The end of a request for which a pod was chosen, which served it or was passed over."""

    name: str
    is_served: bool
    is_passed_over: bool


def read_end(line: bytes) -> End | None:
    """Return what a line reports; None if kvbraid had chosen no pod for its request.

    Raises:
        ValueError: It is no such line.
    """
    status, name, server, state = line.split()
    if status != b"200":
        return None
    return End(
        name.decode("ascii"),
        is_served=server == _CHOSEN and state[1:2] not in _BEFORE_AN_ANSWER,
        is_passed_over=server.startswith(_FALLBACK),
    )


class Ends(asyncio.DatagramProtocol):
    """Reports each end that it hears of, and which pods took no request."""

    def __init__(self, picking: Picking, fleet: Fleet, counts: GatewayCounts) -> None:
        self._picking = picking
        self._fleet = fleet
        self._counts = counts

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Report what a datagram tells."""
        del addr
        try:
            end = read_end(data)
        except ValueError:
            self._counts.ends["unreadable"] += 1
            return
        self._counts.ends["not_chosen" if end is None else "reported"] += 1
        if end is not None:
            self._note(end)

    def _note(self, end: End) -> None:
        rank = self._picking.rank(end.name)
        if rank is not None and end.is_served:
            self._fleet.note_answer(rank[0])
        elif rank is not None and end.is_passed_over:
            self._counts.failures[PASSED_OVER] += 1
            now = asyncio.get_running_loop().time()
            self._fleet.note_failure(rank[0], "HAProxy went on to kvbraid", now=now)
        event: PickEvent = "end" if end.is_served else "failed"
        self._picking.report(ReportBody(pick=end.name, event=event))


async def hear(
    address: str, picking: Picking, fleet: Fleet, counts: GatewayCounts
) -> asyncio.DatagramTransport:
    """Listen at HOST:PORT until what is returned is closed.

    Raises:
        InvalidValueError: The address cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.bind((host.strip("[]"), int(port)))
    except (OSError, OverflowError) as error:
        bound.close()
        told = f"cannot listen at gateway.ends = {address}: {error}; choose another"
        raise InvalidValueError(told) from None
    loop = asyncio.get_running_loop()
    hearing, _ = await loop.create_datagram_endpoint(
        lambda: Ends(picking, fleet, counts), sock=bound
    )
    return hearing
