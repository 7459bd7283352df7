"""A subscription to one address: its SUB socket, what its connection does, whose messages come.

Two kinds, because a broken connection must never be confused with the next one, behind which
there may be a restarted engine:

* a ConnectedLink opens a new socket after each disconnection, and what the old one had not
  handed over yet is left to replay;
* a BoundLink, to which engines connect, tells connections apart by the descriptor that ZeroMQ
  attaches to each message. Only here may several pods share an address, and only then does the
  topic name the pod.

A malformed message is counted and never followed. One that is shorter than three frames may take
the next one with it: the sequence then shows a gap, like any other loss.
"""

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvbraid.errors import ServiceError
from kvbraid.ids import PodId
from kvbraid.service.endpoints import topic_names
from kvbraid.service.feed import MAX_MESSAGE_BYTES, MAX_SEQ, RankFeed
from kvbraid.service.reactor import SLICE, Reactor

# As plain integers: an operation on ZeroMQ's enumerations costs more than the call itself.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_POLLIN: Final = int(zmq.POLLIN)
_RECEIVE_HWM: Final = 100_000  # Beyond, ZeroMQ drops and the sequence shows it: no engine waits.
_HEARTBEAT_MS: Final = 2_000  # Answered by the engine's ZeroMQ thread, not by the engine.
_HEARTBEAT_TIMEOUT_MS: Final = 8_000
_STABLE_S: Final = 5.0  # A connection that lasted this long ends the back-off.
_MIN_DELAY_S: Final = 0.05
_MAX_TOPICS: Final = 1_024
_monitor_numbers: Final = itertools.count()


class Link(ABC):
    """What both kinds share: the sockets and reading three frames quickly."""

    def __init__(self, reactor: Reactor, endpoint: str, *, retry_max_s: float) -> None:
        self.endpoint = endpoint
        self.strays: Counter[str] = Counter()  # Messages that concern no pod, by reason.
        self._reactor = reactor
        self._retry_max_s = retry_max_s
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._usual_topic: bytes | None = None
        self._usual_feed: RankFeed | None = None
        self._is_usual_wrong = False

    @abstractmethod
    def feeds(self) -> Iterable[RankFeed]:
        """Return the feeds on this link."""

    @abstractmethod
    def discard(self, feed: RankFeed) -> bool:
        """Remove a feed; return whether others remain."""

    @abstractmethod
    def attend(self, now: float) -> None:
        """Do what only time calls for; called several times a second."""

    @abstractmethod
    def _attach(self, opened: zmq.Socket[bytes]) -> None:
        """Connect or bind."""

    @abstractmethod
    def _notice(self, event: int, fd: int, now: float) -> None:
        """Take notice of what a connection did."""

    @abstractmethod
    def _owner(self, topic: bytes) -> RankFeed | None:
        """Return whose message it is."""

    @abstractmethod
    def _drained(self) -> None:
        """Take notice that every message that had arrived is read."""

    def _hand_over(self, feed: RankFeed, seq: int, frame: zmq.Frame) -> None:
        """Give a well-formed message to its feed."""
        feed.take(seq, frame.bytes)

    def open(self) -> None:
        """Open the sockets.

        Raises:
            ServiceError: The address cannot be bound or connected to.
        """
        opened: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        opened.set(zmq.LINGER, 0)
        opened.set(zmq.RCVHWM, _RECEIVE_HWM)
        opened.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        opened.set(zmq.RECONNECT_IVL, 100)
        opened.set(zmq.RECONNECT_IVL_MAX, int(self._retry_max_s * 1000))
        opened.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        opened.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        opened.subscribe(b"")
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        address = f"inproc://kvbraid-link-{next(_monitor_numbers)}"
        monitor = opened.get_monitor_socket(events, address)
        try:
            self._attach(opened)
        except zmq.ZMQError as error:
            opened.disable_monitor()
            monitor.close(linger=0)
            opened.close()
            raise ServiceError(
                f"cannot follow {self.endpoint!r}: {error}; check the address, and that no other "
                "process has bound it"
            ) from error
        self._socket, self._monitor = opened, monitor
        self._reactor.watch(monitor, self)
        self._reactor.watch(opened, self)

    def close(self) -> None:
        """Close the sockets; what was not read yet is dropped."""
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._reactor.close_socket(self._monitor)
            self._reactor.close_socket(self._socket)
            self._socket = self._monitor = None
        self._reactor.forget(self)

    def read(self, now: float) -> bool:
        """Take a slice of messages; see Reader."""
        self._read_monitor(now)
        if self._socket is None:
            return False
        recv = self._socket.recv
        for _ in range(SLICE):
            try:
                topic = recv(_NOBLOCK)
            except zmq.Again:
                self._drained()
                return False
            if topic != self._usual_topic:
                self._read_unusual(topic, now)
                continue
            feed = self._usual_feed
            try:
                number, frame = recv(_NOBLOCK), recv(_NOBLOCK, False)
            except zmq.Again:
                self._refuse(feed, "bad_frames")
                return False
            if frame.more or len(number) != 8:
                self._skip_rest(frame.more)
                self._refuse(feed, "bad_frames")
            else:
                self._take(feed, number, frame, now)
        return True

    def _read_unusual(self, topic: bytes, now: float) -> None:
        """Read the rest of a message whose topic is new here, frame by frame."""
        assert self._socket is not None
        frames: list[zmq.Frame] = []
        while self._socket.rcvmore:
            frames.append(self._socket.recv(_NOBLOCK, False))
        feed = self._owner(topic)
        if len(frames) != 2 or len(frames[0].bytes) != 8:
            self._refuse(feed, "bad_frames")
            return
        self._usual_topic, self._usual_feed = topic, feed
        self._is_usual_wrong = feed is not None and feed.contradicts(topic)
        if feed is not None:
            feed.topic = topic
        self._take(feed, frames[0].bytes, frames[1], now)

    def _take(self, feed: RankFeed | None, number: bytes, frame: zmq.Frame, now: float) -> None:
        seq = int.from_bytes(number, "big")
        if feed is None:
            self._refuse(feed, "unknown_topic")
        elif seq > MAX_SEQ:
            self._refuse(feed, "bad_seq")
        else:
            if self._is_usual_wrong:
                self._refuse(feed, "topic_mismatch")
            feed.heard_at = now
            self._hand_over(feed, seq, frame)

    def _skip_rest(self, has_more: bool) -> None:
        """Go on to where the next message begins."""
        assert self._socket is not None
        while has_more:
            has_more = self._socket.recv(_NOBLOCK, False).more

    def _refuse(self, feed: RankFeed | None, reason: str) -> None:
        if feed is None:
            self.strays[reason] += 1
        else:
            feed.refuse(reason)

    def _read_monitor(self, now: float) -> None:
        """Take notice of connections before reading what came through them."""
        while self._monitor is not None and int(self._monitor.get(zmq.EVENTS)) & _POLLIN:
            event = recv_monitor_message(self._monitor)
            self._notice(int(event["event"]), int(event["value"]), now)


class ConnectedLink(Link):
    """A connection to the one engine rank that binds the address."""

    def __init__(self, reactor: Reactor, feed: RankFeed, *, retry_max_s: float) -> None:
        super().__init__(reactor, feed.endpoint, retry_max_s=retry_max_s)
        self._feed = feed
        self._connected_at: float | None = None
        self._delay_s = _MIN_DELAY_S
        self._reopen_at = 0.0

    def feeds(self) -> Iterable[RankFeed]:
        """Return the one feed."""
        return (self._feed,)

    def discard(self, feed: RankFeed) -> bool:
        """Remove the one feed."""
        return False

    def attend(self, now: float) -> None:
        """Open a new socket once the delay after a disconnection is over."""
        if self._socket is None and now >= self._reopen_at:
            self.open()

    def _attach(self, opened: zmq.Socket[bytes]) -> None:
        opened.connect(self.endpoint)
        if self.endpoint.startswith("inproc:"):  # Without a connection to monitor: always there.
            self._feed.connected()

    def _notice(self, event: int, fd: int, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected_at = now
            self._feed.heard_at = now
            self._feed.connected()
        elif event == zmq.EVENT_DISCONNECTED and self._connected_at is not None:
            is_stable = now - self._connected_at >= _STABLE_S
            self._delay_s = (
                _MIN_DELAY_S if is_stable else min(2 * self._delay_s, self._retry_max_s)
            )
            self._reopen_at = now + self._delay_s
            self._connected_at = None
            self.close()
            self._feed.disconnected()

    def _owner(self, topic: bytes) -> RankFeed | None:
        return self._feed

    def _drained(self) -> None:
        pass


class BoundLink(Link):
    """An address that engines connect to; several pods may share it."""

    def __init__(self, reactor: Reactor, endpoint: str, *, retry_max_s: float) -> None:
        super().__init__(reactor, endpoint, retry_max_s=retry_max_s)
        self._feeds: dict[PodId, RankFeed] = {}
        self._peers: dict[RankFeed, int] = {}  # Which connection a feed was heard on.
        self._unheard: list[int] = []  # Connections through which nothing has come yet.
        self._leaving: list[int] = []  # Broken ones whose last messages may still be unread.

    def add(self, feed: RankFeed) -> None:
        """Let one more pod share the address."""
        self._feeds[feed.pod] = feed
        self._usual_topic = None  # Who owns a topic may have changed.
        self._greet()

    def discard(self, feed: RankFeed) -> bool:
        """Remove a pod; return whether others remain."""
        del self._feeds[feed.pod]
        self._peers.pop(feed, None)
        self._usual_topic = None
        return bool(self._feeds)

    def feeds(self) -> Iterable[RankFeed]:
        """Return the feeds of all pods that share the address."""
        return tuple(self._feeds.values())

    def attend(self, now: float) -> None:
        """Nothing: a bound socket stays open."""

    def _attach(self, opened: zmq.Socket[bytes]) -> None:
        opened.bind(self.endpoint)
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
        """A pod that has the address for itself is connected before its first message."""
        if len(self._feeds) == 1 and self._unheard:
            (feed,) = self._feeds.values()
            if feed not in self._peers:
                self._peers[feed] = self._unheard.pop()
                feed.connected()

    def _hang_up(self, feed: RankFeed) -> None:
        del self._peers[feed]
        feed.disconnected()

    def _owner(self, topic: bytes) -> RankFeed | None:
        if len(self._feeds) == 1:
            return next(iter(self._feeds.values()))
        names = topic_names(topic)
        return None if names is None else self._feeds.get(PodId(names[0]))

    def _hand_over(self, feed: RankFeed, seq: int, frame: zmq.Frame) -> None:
        peer = int(frame.get(zmq.SRCFD))
        if self._peers.get(feed) != peer:
            if feed in self._peers:
                self._hang_up(feed)
            if peer in self._unheard:
                self._unheard.remove(peer)
            self._peers[feed] = peer
            feed.connected()
        super()._hand_over(feed, seq, frame)
