"""How many ranks this process can follow: sockets of ZeroMQ and descriptors of the system.

Checked when a pod is registered, so that no limit is met for the first time while an engine
reconnects. Counts by what a rank takes at most; opens nothing but ZeroMQ's context.
"""

import resource
from typing import Final

import zmq

from kvbraid.service.errors import RefusalError

DESCRIPTORS_PER_RANK: Final = 8
"""A subscription and its monitor take 4 (two ends each), a replay under way another 4."""

_RESERVE: Final = 128
"""Descriptors for files, the event loop and the like."""

_CONNECTIONS: Final = 1024
"""Descriptors for HTTP connections (limits.connections), or a quarter of all if less."""


def new_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Return a context of its own that has room for as many sockets as ZeroMQ allows at all."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, int(context.get(zmq.SOCKET_LIMIT)))
    return context


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may allow itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_ranks() -> int:
    """Return how many ranks the descriptors of this process suffice for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 30
    left = soft - min(_CONNECTIONS, soft // 4) - _RESERVE
    return max(0, left // DESCRIPTORS_PER_RANK)


def check_capacity(num_ranks: int) -> None:
    """Check that this process can follow so many ranks.

    Raises:
        RefusalError: `too_many_pods`; it says how many it can follow and what to raise.
    """
    possible = max_ranks()
    if num_ranks > possible:
        message = (
            f"{num_ranks} pod ranks would be followed; this process may open enough files for "
            f"{possible}, {DESCRIPTORS_PER_RANK} each"
        )
        remedy = "remove a pod, or raise the limit of open files (ulimit -n)"
        raise RefusalError("too_many_pods", message, remedy=remedy)
