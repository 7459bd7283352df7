"""What this process has room for: ZeroMQ sockets, and descriptors, of which HTTP has a share.

This is checked when a pod is registered; otherwise a limit could be met for the first time while
an engine reconnects. A rank counts with the most that it can need. Only ZeroMQ's context is opened
here.
"""

import resource
from typing import Final

import zmq

from kvbraid.service.errors import RefusalError

DESCRIPTORS_PER_RANK: Final = 8
"""A subscription and its monitor take 4 (two ends each); a replay takes another 4."""

SHARE_OF_CONNECTIONS: Final = 4
"""One descriptor in this many is for HTTP; the others are for feeds, which cannot wait."""

_RESERVE: Final = 128
"""Descriptors for files, the event loop and the like."""


def new_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Return a new context with room for as many sockets as ZeroMQ allows."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, int(context.get(zmq.SOCKET_LIMIT)))
    return context


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections() -> int:
    """Return how many HTTP connections may be open without taking the feeds' descriptors."""
    return max(1, _descriptors() // SHARE_OF_CONNECTIONS)


def max_ranks() -> int:
    """Return for how many ranks the descriptors of this process suffice."""
    left = _descriptors() - max_connections() - _RESERVE
    return max(0, left // DESCRIPTORS_PER_RANK)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def check_capacity(num_ranks: int) -> None:
    """Check that this process can follow `num_ranks` ranks.

    Raises:
        RefusalError: `too_many_pods`; the message says how many ranks it can follow, and the
            remedy says which limit to raise.
    """
    possible = max_ranks()
    if num_ranks > possible:
        message = (
            f"{num_ranks} pod ranks would be followed; this process may open enough files for "
            f"{possible}, {DESCRIPTORS_PER_RANK} each"
        )
        remedy = "remove a pod, or raise the limit of open files (ulimit -n)"
        raise RefusalError("too_many_pods", message, remedy=remedy)
