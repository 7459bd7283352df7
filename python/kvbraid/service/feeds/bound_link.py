"""A link at an address that engines connect to; several pods may share it.

ZeroMQ attaches a descriptor to each message, which identifies its connection. If pods share the
address, the topic of a message names its pod.
"""

from collections.abc import Iterable

import zmq

from kvbraid.ids import PodId
from kvbraid.service.feeds.endpoints import topic_names
from kvbraid.service.feeds.link import Link
from kvbraid.service.feeds.meter import Meter
from kvbraid.service.feeds.rank_feed import RankFeed
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment


class BoundLink(Link):
    """An address that engines connect to; several pods may share it."""

    def __init__(self, environment: ZmqEnvironment, endpoint: str) -> None:
        super().__init__(environment, endpoint)
        self._feeds: dict[PodId, RankFeed] = {}
        self._peers: dict[RankFeed, int] = {}  # The connection through which a feed was heard.
        self._paused: dict[RankFeed, float] = {}  # Feeds that failed, until when.
        self._unheard: list[int] = []  # Connections through which nothing has come yet.
        self._leaving: list[int] = []  # Broken, with last messages that may be unread.

    def add(self, feed: RankFeed) -> None:
        """Let one more pod share the address."""
        self._feeds[feed.pod] = feed
        self._usual_topic = None  # The owner of a topic may have changed.
        self._greet()

    def discard(self, feed: RankFeed) -> bool:
        """Remove a pod; return whether others remain."""
        del self._feeds[feed.pod]
        self._peers.pop(feed, None)
        self._paused.pop(feed, None)
        self._usual_topic = None
        return bool(self._feeds)

    def feeds(self) -> Iterable[RankFeed]:
        """Return the feeds of all pods that share the address."""
        return tuple(self._feeds.values())

    def attend(self, now: float) -> None:
        """Also let feeds that failed begin again."""
        super().attend(now)
        for feed in [feed for feed, until in self._paused.items() if now >= until]:
            del self._paused[feed]
            self._greet()

    def start_again(self, feed: RankFeed, now: float, pause_s: float) -> None:
        """Keep the address, which others may share; the feed hears nothing for a while."""
        self._paused[feed] = now + pause_s
        peer = self._peers.pop(feed, None)
        if peer is not None:
            self._unheard.append(peer)

    def close(self) -> None:
        """Close the sockets; every connection is gone with them."""
        self._peers.clear()
        self._unheard.clear()
        self._leaving.clear()
        super().close()

    def _locate(self, now: float) -> str | None:
        return self.endpoint

    def _attach(self, opened: zmq.Socket[bytes], address: str) -> None:
        opened.bind(address)
        self.endpoint = opened.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _notice(self, event: int, fd: int, now: float) -> None:
        if event == zmq.EVENT_ACCEPTED:
            if fd in self._leaving:  # The descriptor is used again.
                self._drained()
            self._unheard.append(fd)
            self._greet()
        elif event == zmq.EVENT_DISCONNECTED:
            self._leaving.append(fd)

    def _drained(self) -> None:
        while self._leaving:
            fd = self._leaving.pop()
            if fd in self._unheard:
                self._unheard.remove(fd)
            for feed in [feed for feed, peer in self._peers.items() if peer == fd]:
                self._hang_up(feed)
            self._greet()

    def _greet(self) -> None:
        """Note that a pod with its own address is connected before its first message."""
        if len(self._feeds) == 1 and self._unheard:
            (feed,) = self._feeds.values()
            if feed not in self._peers and feed not in self._paused:
                self._peers[feed] = self._unheard.pop()
                self._greet_feed(feed)

    def _hang_up(self, feed: RankFeed) -> None:
        del self._peers[feed]
        self._part_from(feed)

    def _owner(self, topic: bytes) -> RankFeed | None:
        if len(self._feeds) == 1:
            return next(iter(self._feeds.values()))
        names = topic_names(topic)
        return None if names is None else self._feeds.get(PodId(names[0]))

    def _count(self, num_bytes: int) -> None:
        """Do nothing: every message says through which connection it came."""

    def _meters_of(self, frame: zmq.Frame) -> Iterable[Meter]:
        meter = self._meters.get(int(frame.get(zmq.SRCFD)))
        return () if meter is None else (meter,)

    def _hand_over(self, feed: RankFeed, seq: int, frame: zmq.Frame) -> None:
        peer = int(frame.get(zmq.SRCFD))
        meter = self._meters.get(peer)
        if meter is not None:
            meter.taken += len(frame)
        if self._peers.get(feed) != peer:
            if feed in self._paused:
                feed.refuse("feed_pausing")
                return
            self._end_run()
            if feed in self._peers:
                self._hang_up(feed)
            if peer in self._unheard:
                self._unheard.remove(peer)
            self._peers[feed] = peer
            self._greet_feed(feed)
        super()._hand_over(feed, seq, frame)
