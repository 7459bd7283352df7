"""Ends of requests that HAProxy has sent: it tells of each in a datagram, a line of its log.

A line is `STATUS NAME SERVER STATE`: what the question about the request was answered with, its
name, who was asked last, and in two letters how it ended. A line that is lost leaves a booking
that ends by time. Invariant: a datagram is counted whatever it says, and ends a booking at most.
"""

import asyncio
import socket
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.gateway.counts import GatewayCounts
from kvbraid.service.picking import Picking
from kvbraid.service.requests import ReportBody

_CHOSEN: Final = b"chosen"
"""The server of deploy/haproxy that is the chosen pod; the others came after it had failed."""

_BEFORE_AN_ANSWER: Final = b"RQCHT"
"""The second letter of a state, if no byte of an answer had come."""


def read_end(line: bytes) -> ReportBody | None:
    """Return what a line reports; None if kvbraid had chosen no pod for its request.

    Raises:
        ValueError: It is no such line.
    """
    status, name, server, state = line.split()
    if status != b"200":
        return None
    is_served = server == _CHOSEN and state[1:2] not in _BEFORE_AN_ANSWER
    return ReportBody(pick=name.decode("ascii"), event="end" if is_served else "failed")


class Ends(asyncio.DatagramProtocol):
    """Reports each end that it hears of."""

    def __init__(self, picking: Picking, counts: GatewayCounts) -> None:
        self._picking = picking
        self._counts = counts

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Report what a datagram tells."""
        del addr
        try:
            report = read_end(data)
        except ValueError:
            self._counts.ends["unreadable"] += 1
            return
        self._counts.ends["not_chosen" if report is None else "reported"] += 1
        if report is not None:
            self._picking.report(report)


async def hear(address: str, picking: Picking, counts: GatewayCounts) -> asyncio.DatagramTransport:
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
    hearing, _ = await loop.create_datagram_endpoint(lambda: Ends(picking, counts), sock=bound)
    return hearing
