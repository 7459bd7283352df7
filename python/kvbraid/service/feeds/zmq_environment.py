"""What all links and replays of one subscriber share: a context, a reactor, names, a journal.

The context is the subscriber's own, so nothing else shares its limits and its I/O thread. ZeroMQ
gets only addresses: names are looked up elsewhere (names.py).
"""

import itertools
from dataclasses import dataclass
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvbraid.service.feeds.meter import Meter
from kvbraid.service.feeds.names import Names
from kvbraid.service.feeds.rank_feed import MAX_MESSAGE_BYTES
from kvbraid.service.feeds.reactor import Reactor
from kvbraid.service.journal import Journal

_BESIDE_BYTES: Final = 1 << 20
"""Room besides the payload of one message: its other frames, heartbeats, later bytes."""

_POLLIN: Final = int(zmq.POLLIN)
_monitor_numbers: Final = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqEnvironment:
    """One per running subscriber.

    `retry_max_s` is the longest pause between two attempts to connect; `queue_limit_bytes` is the
    number of bytes of one connection that may wait to be read.
    """

    context: "zmq.Context[zmq.Socket[bytes]]"
    reactor: Reactor
    names: Names
    retry_max_s: float
    queue_limit_bytes: int
    journal: Journal

    def open_socket(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        """Open a socket: inproc sockets reach each other only within one context."""
        is_inside = endpoint.startswith("inproc:")
        opened = (zmq.Context.instance() if is_inside else self.context).socket(kind)
        opened.set(zmq.LINGER, 0)
        opened.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        return opened

    def brings_too_much(self, meter: Meter, *, is_drained: bool) -> bool:
        """Whether a connection must be cut.

        `is_drained`: no whole message waits to be read, so all waiting bytes are of one message.
        """
        most = MAX_MESSAGE_BYTES + _BESIDE_BYTES if is_drained else self.queue_limit_bytes
        return meter.unread(is_drained=is_drained) > min(most, self.queue_limit_bytes)

    def close(self) -> None:
        """Close every socket that was opened here, and the reactor."""
        self.reactor.close()
        self.context.destroy(linger=0)


def open_monitor(watched: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Open the socket that tells what the connections of another one do."""
    return watched.get_monitor_socket(events, f"inproc://kvbraid-monitor-{next(_monitor_numbers)}")


def next_event(monitor: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """Return what a connection did, and its descriptor; None when nothing is left to tell."""
    if not int(monitor.get(zmq.EVENTS)) & _POLLIN:
        return None
    event = recv_monitor_message(monitor)
    return int(event["event"]), int(event["value"])
