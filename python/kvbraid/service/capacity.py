"""What this process has room for: sockets of ZeroMQ, and descriptors, of which HTTP has a share.

Checked when a pod is registered, so that no limit is met for the first time while an engine
reconnects. Counts by what a rank takes at most; opens nothing but ZeroMQ's context.
"""

import resource
from typing import Final

import zmq

from kvbraid.service.errors import RefusalError

DESCRIPTORS_PER_RANK: Final = 8
"""A subscription and its monitor take 4 (two ends each), a replay under way another 4."""

SHARE_OF_CONNECTIONS: Final = 4
"""One descriptor in so many is for HTTP connections; feeds, which cannot wait, have the others."""

_RESERVE: Final = 128
"""Descriptors for files, the event loop and the like."""


def new_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Return a context of its own that has room for as many sockets as ZeroMQ allows at all."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, int(context.get(zmq.SOCKET_LIMIT)))
    return context


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may allow itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections() -> int:
    """Return how many HTTP connections leave the feeds their descriptors."""
    return max(1, _descriptors() // SHARE_OF_CONNECTIONS)


def max_ranks() -> int:
    """Return how many ranks the descriptors of this process suffice for."""
    left = _descriptors() - max_connections() - _RESERVE
    return max(0, left // DESCRIPTORS_PER_RANK)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


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
