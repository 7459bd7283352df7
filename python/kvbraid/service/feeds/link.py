"""A subscription to one address: its SUB socket, its connections, and whose messages come.

There are two kinds, because a broken connection must never be confused with the next one, which
may belong to a restarted engine: `connected_link` connects to one engine; engines connect to a
`bound_link`. This module has what both share: the sockets, and reading three frames quickly.

A malformed message is counted and dropped. A message of fewer than three frames may take the next
one with it; the sequence then shows a gap, like any other loss. A connection that brings more than
is read is cut, which is such a gap too. So is one that brings a message of very many frames; its
rest is read in portions. Sockets that cannot be opened are tried again; any other failure affects
only the link's own feeds.
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import zmq

from kvbraid.errors import ServiceError
from kvbraid.service.feeds.backoff import Backoff
from kvbraid.service.feeds.heap import give_back_soon
from kvbraid.service.feeds.meter import Meter
from kvbraid.service.feeds.rank_feed import GATHERED, MAX_SEQ, RankFeed
from kvbraid.service.feeds.reactor import SLICE, SLICE_BYTES
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment, next_event, open_monitor
from kvbraid.service.journal import Rank

# As plain integers: an operation on ZeroMQ's enumerations costs more than the call itself.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_RECEIVE_HWM: Final = 1_000  # Further messages wait at the engine, which never waits itself.
_HEARTBEAT_MS: Final = 2_000  # Answered by the engine's ZeroMQ thread, not by the engine.
_HEARTBEAT_TIMEOUT_MS: Final = 8_000
_STABLE_S: Final = 5.0  # A connection that lasted this long ends the back-off.
_MAX_TOPIC_BYTES: Final = 4_096  # Room for any pod id and model name.
_MOST_FRAMES: Final = 64  # Beyond three of one message: these are read at once,
_SKIPPED: Final = 4_096  # and these in each later turn.
_EVENTS: Final = int(
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
)


class Link(ABC):
    """The common part of both kinds of link."""

    def __init__(self, environment: ZmqEnvironment, endpoint: str) -> None:
        self.endpoint = endpoint
        self.strays: Counter[str] = Counter()  # Messages that concern no pod, by reason.
        self._environment = environment
        self._reactor = environment.reactor
        self._backoff = Backoff(environment.retry_max_s, calm_s=_STABLE_S)
        self._reopen_at = 0.0
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._meters: dict[int, Meter] = {}  # By descriptor.
        self._is_drained = True
        self._is_amid = False  # A message of very many frames is not read to its end yet.
        self._num_bytes = 0  # Taken in this turn.
        self._run: list[bytes] = []  # Read, of consecutive numbers, and not yet taken by:
        self._run_feed: RankFeed | None = None
        self._run_first = 0
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
    def start_again(self, feed: RankFeed, now: float, pause_s: float) -> None:
        """Give a feed that failed a new connection, after a pause."""

    @abstractmethod
    def _locate(self, now: float) -> str | None:
        """Return the address to attach to; None: not known yet, and `_reopen_at` is set."""

    @abstractmethod
    def _attach(self, opened: zmq.Socket[bytes], address: str) -> None:
        """Connect or bind."""

    @abstractmethod
    def _notice(self, event: int, fd: int, now: float) -> None:
        """Note what a connection did."""

    @abstractmethod
    def _owner(self, topic: bytes) -> RankFeed | None:
        """Return the feed that the message belongs to."""

    @abstractmethod
    def _drained(self) -> None:
        """Note that every message that had arrived is read."""

    @abstractmethod
    def _count(self, num_bytes: int) -> None:
        """Count what a turn has handed over, if it is not counted message by message."""

    def _greet_feed(self, feed: RankFeed) -> None:
        """Tell a feed that its connection stands."""
        self._environment.journal.note("connected", Rank(feed.pod, feed.rank), self.endpoint)
        feed.connected()

    def _part_from(self, feed: RankFeed) -> None:
        """Tell a feed that its connection is gone."""
        self._environment.journal.note("disconnected", Rank(feed.pod, feed.rank), self.endpoint)
        feed.disconnected()

    def _hand_over(self, feed: RankFeed, seq: int, frame: zmq.Frame) -> None:
        """Give a well-formed message to its feed, together with the next ones."""
        run = self._run
        is_next = feed is self._run_feed and seq == self._run_first + len(run)
        if not is_next or len(run) == GATHERED:
            self._end_run()
            run, self._run_feed, self._run_first = self._run, feed, seq
        run.append(frame.bytes)

    def _end_run(self) -> None:
        """Pass what was gathered to its feed, before the feed is told anything else."""
        run, feed = self._run, self._run_feed
        self._run, self._run_feed = [], None
        if run and feed is not None:
            feed.take(self._run_first, run)

    @property
    def _is_open(self) -> bool:
        return self._socket is not None

    def attend(self, now: float) -> None:
        """Do what only time calls for; called several times a second. May raise as `open`."""
        if not self._is_open and now >= self._reopen_at:
            self.open(now)
        for meter in self._meters.values():
            if self._environment.brings_too_much(meter, is_drained=self._is_drained):
                self._cut(meter)
                for feed in self.feeds():
                    feed.refuse("queue_overflow")

    def _cut(self, meter: Meter) -> None:
        meter.cut()
        give_back_soon()

    def open(self, now: float) -> None:
        """Open the sockets, or first look up the name and open them later.

        Raises:
            ServiceError: The address cannot be bound or connected to, or its name has none.
        """
        self._reopen_at = now
        address = self._locate(now)
        if address is None:
            return
        try:
            self._open_sockets(address)
        except (zmq.ZMQError, OSError) as error:
            self.close()
            raise ServiceError(
                f"cannot follow {self.endpoint!r}: {error}; check the address, and that no other "
                "process has bound it"
            ) from error

    def _open_sockets(self, address: str) -> None:
        opened = self._socket = self._environment.open_socket(zmq.SUB, address)
        opened.set(zmq.RCVHWM, _RECEIVE_HWM)
        opened.set(zmq.RECONNECT_IVL, 100)
        opened.set(zmq.RECONNECT_IVL_MAX, int(self._environment.retry_max_s * 1000))
        opened.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        opened.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        opened.subscribe(b"")
        self._monitor = open_monitor(opened, _EVENTS)
        self._attach(opened, address)
        self._reactor.watch(self._monitor, self)
        self._reactor.watch(opened, self)

    def close(self) -> None:
        """Close the sockets; messages that were not read yet are dropped."""
        if self._socket is not None:
            self._socket.disable_monitor()
            if self._monitor is not None:
                self._reactor.close_socket(self._monitor)
            self._reactor.close_socket(self._socket)
            self._socket = self._monitor = None
        self._meters.clear()
        self._run, self._run_feed = [], None
        self._is_amid = False
        self._reactor.forget(self)

    def on_error(self, error: BaseException) -> None:
        """Start again with all feeds; see Reader."""
        now = time.monotonic()
        self.close()
        self._reopen_at = now + self._backoff.pause_s(now)
        for feed in self.feeds():
            feed.fail(error)

    def read(self, now: float) -> bool:
        """Take a slice of messages; see Reader."""
        self._read_monitor(now)
        self._is_drained = False
        if self._socket is None:
            return False
        if any(feed.is_behind for feed in self.feeds()):
            return True
        self._num_bytes = 0
        if self._is_amid:
            self._skip_rest(_SKIPPED)
        self._is_drained = self._read_slice(self._socket.recv, now)
        self._end_run()
        self._count(self._num_bytes)
        if self._is_drained:
            self._drained()
        return not self._is_drained

    def _read_slice(self, recv: Callable[..., Any], now: float) -> bool:
        """Read messages until the slice is full; return whether none was left before that."""
        for _ in range(SLICE):
            if self._is_amid:
                break
            try:
                topic = recv(_NOBLOCK)
            except zmq.Again:
                return True
            if topic != self._usual_topic:
                self._read_unusual(topic, now)
                continue
            feed = self._usual_feed
            try:
                number, frame = recv(_NOBLOCK), recv(_NOBLOCK, False)
            except zmq.Again:
                self._refuse(feed, "bad_frames")
                return True
            if frame.more or len(number) != 8:
                self._refuse(feed, "bad_frames")
                if frame.more:
                    self._skip_rest(_MOST_FRAMES)
                continue
            self._take(feed, number, frame, now)
            if self._num_bytes > SLICE_BYTES:
                break
        return False

    def _read_unusual(self, topic: bytes, now: float) -> None:
        """Read the rest of a message whose topic is new here, frame by frame."""
        assert self._socket is not None
        frames: list[zmq.Frame] = []
        while self._socket.rcvmore and len(frames) < 2:
            frames.append(self._socket.recv(_NOBLOCK, False))
        has_more = bool(self._socket.rcvmore)
        if has_more:
            self._skip_rest(_MOST_FRAMES)
        is_wrong = has_more or len(frames) != 2 or len(frames[0].bytes) != 8
        if is_wrong or len(topic) > _MAX_TOPIC_BYTES:
            self._refuse(self._owner(topic[:_MAX_TOPIC_BYTES]), "bad_frames")
            return
        feed = self._owner(topic)
        self._usual_topic, self._usual_feed = topic, feed
        self._is_usual_wrong = feed is not None and feed.contradicts(topic)
        if feed is not None:
            feed.topic = topic
        self._take(feed, frames[0].bytes, frames[1], now)

    def _take(self, feed: RankFeed | None, number: bytes, frame: zmq.Frame, now: float) -> None:
        """Give a whole message to its feed."""
        seq = int.from_bytes(number, "big")
        self._num_bytes += len(frame)
        if feed is None:
            self._refuse(feed, "unknown_topic")
        elif seq > MAX_SEQ:
            self._refuse(feed, "bad_seq")
        else:
            if self._is_usual_wrong:
                self._refuse(feed, "topic_mismatch")
            feed.heard_at = now
            self._hand_over(feed, seq, frame)

    def _skip_rest(self, most: int) -> None:
        """Go on to where the next message begins, by at most `most` frames in this turn."""
        assert self._socket is not None
        for _ in range(most):
            frame = self._socket.recv(_NOBLOCK, False)
            if not frame.more:
                self._is_amid = False
                return
        if not self._is_amid:
            frame = self._socket.recv(_NOBLOCK, False)
            self._is_amid = frame.more
            for meter in self._meters_of(frame):
                self._cut(meter)

    def _meters_of(self, frame: zmq.Frame) -> Iterable[Meter]:
        """Return the connection that brought a frame, if it is measured."""
        del frame  # There is one connection.
        return self._meters.values()

    def _refuse(self, feed: RankFeed | None, reason: str) -> None:
        if feed is None:
            self.strays[reason] += 1
            told = f"a message at {self.endpoint}, counted in kvbraid_stray_messages_total"
            self._environment.journal.note("stray", Rank(""), told, detail=reason)
        else:
            feed.refuse(reason)

    def _read_monitor(self, now: float) -> None:
        """Note what connections did, before reading what came through them."""
        while self._monitor is not None and (event := next_event(self._monitor)) is not None:
            kind, fd = event
            if kind in (zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED):
                meter = Meter.of(fd)
                if meter is not None:
                    self._meters[fd] = meter
            elif kind == zmq.EVENT_DISCONNECTED:
                self._meters.pop(fd, None)
            self._notice(kind, fd, now)
