"""Whether the addresses of a pod can be bound, tried before anything depends on it.

A socket with its own context binds each address and releases it again. An address that this
process has already bound is shared. A port that the replaced pod holds becomes free with the pod,
so only its host is tried, on any port. Nothing is connected to, only the caller waits, and a pod's
feed is never touched here.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from typing import Final

import zmq

from kvbraid.errors import shortened
from kvbraid.service.errors import RefusalError

_FREE_WITHIN_S: Final = 2.0
_TRY_EVERY_S: Final = 0.002


def check_bindable(
    addresses: Sequence[str], *, held: Collection[str], leaving: Sequence[str]
) -> None:
    """Bind each address and release it again.

    Args:
        addresses: One per rank of the pod that is bound here.
        held: What this process has bound; such an address is shared, not bound again.
        leaving: Those among them whose ports may become free.

    Raises:
        RefusalError: `invalid_endpoint`, for the first that cannot be bound.
    """
    ports = {_port(address) for address in leaving}
    tried = [
        (address, f"{address.rpartition(':')[0]}:*" if _port(address) in ports else address)
        for address in addresses
        if address not in held
    ]
    if not tried:
        return
    # Terminating the context waits until every port is free again.
    with zmq.Context() as context, closing(context.socket(zmq.SUB)) as socket:
        socket.linger = 0
        for address, variant in tried:
            _bind(socket, address, variant)


def wait_until_free(addresses: Collection[str]) -> None:
    """Return once the addresses that ZeroMQ was told to release are free, or after 2 seconds."""
    until = time.monotonic() + _FREE_WITHIN_S
    while addresses:
        try:
            return check_bindable(list(addresses), held=(), leaving=())
        except RefusalError:
            if time.monotonic() >= until:
                return None
            time.sleep(_TRY_EVERY_S)
    return None


def _bind(socket: "zmq.Socket[bytes]", address: str, variant: str) -> None:
    try:
        socket.bind(variant)
    except zmq.ZMQError as error:
        message = f"{shortened(address)} cannot be bound: {zmq.strerror(error.errno or 0)}"
        remedy = "give a free port and an address of this host, or let the engine bind"
        raise RefusalError("invalid_endpoint", message, remedy=remedy) from None


def _port(address: str) -> str:
    return address.rpartition(":")[2] if address.startswith("tcp:") else address
