"""A link to the one engine rank that binds an address.

A new socket is opened after each disconnection. Messages that the old one had not handed over yet
are replayed, so none of them can be taken for a message of the next connection.
"""

from collections.abc import Iterable

import zmq

from kvbraid.errors import ServiceError
from kvbraid.service.feeds.link import Link
from kvbraid.service.feeds.names import FRESH_S
from kvbraid.service.feeds.rank_feed import RankFeed
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment


class ConnectedLink(Link):
    """A connection to the one engine rank that binds the address."""

    def __init__(self, environment: ZmqEnvironment, feed: RankFeed) -> None:
        super().__init__(environment, feed.endpoint)
        self._feed = feed
        self._connected_at: float | None = None
        self._address = ""  # Where the socket that is open now connects to.
        self._look_again_at = 0.0

    def feeds(self) -> Iterable[RankFeed]:
        """Return the one feed."""
        return (self._feed,)

    def discard(self, feed: RankFeed) -> bool:
        """Remove the one feed."""
        return False

    def attend(self, now: float) -> None:
        """Also follow a name to another address while there is no connection."""
        super().attend(now)
        if self._is_open and self._connected_at is None and now >= self._look_again_at:
            address = self._locate(now)
            if address is not None:
                self._look_again_at = now + FRESH_S
                if address != self._address:
                    self.close()
                    self.open(now)

    def start_again(self, feed: RankFeed, now: float, pause_s: float) -> None:
        """Close, and open a new socket after the pause."""
        self.close()
        self._reopen_at = now + pause_s

    def close(self) -> None:
        """Close the sockets; the next connection starts from nothing."""
        self._connected_at = None
        super().close()

    def _locate(self, now: float) -> str | None:
        try:
            return self._environment.names.locate(self.endpoint, now)
        except ServiceError:
            self._reopen_at = self._look_again_at = now + self._backoff.pause_s(now)
            self._feed.refuse("unknown_host")
            return None

    def _attach(self, opened: zmq.Socket[bytes], address: str) -> None:
        opened.connect(address)
        self._address = address
        if address.startswith("inproc:"):  # There is no connection to monitor: it always exists.
            self._greet_feed(self._feed)

    def _notice(self, event: int, fd: int, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected_at = now
            self._feed.heard_at = now
            self._greet_feed(self._feed)
        elif event == zmq.EVENT_DISCONNECTED and self._connected_at is not None:
            self.close()
            self._reopen_at = now + self._backoff.pause_s(now)
            self._part_from(self._feed)

    def _count(self, num_bytes: int) -> None:
        for meter in self._meters.values():
            meter.taken += num_bytes

    def _owner(self, topic: bytes) -> RankFeed | None:
        return self._feed

    def _drained(self) -> None:
        pass
