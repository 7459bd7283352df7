"""One replay: a question to an engine's ROUTER, and its answers in either framing.

Each question has a new DEALER, so answers to an older question can never be taken for answers to
this one. A replay reads no faster than the feed applies, and gives up when no further batch comes
in time. An engine that sends more than is read is cut off; the next replay continues from there.
"""

from typing import Final

import zmq

from kvbraid.errors import ServiceError
from kvbraid.service.feeds.heap import give_back_soon
from kvbraid.service.feeds.meter import Meter
from kvbraid.service.feeds.rank_feed import MAX_SEQ, RankFeed
from kvbraid.service.feeds.reactor import SLICE, SLICE_BYTES
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment, next_event, open_monitor

_END_MARKER: Final = b"\xff" * 8
_MOST_FRAMES: Final = 64  # Of an answer; a well-formed one has 3 or 4.
_RECEIVE_HWM: Final = (
    20_000  # Twice an engine's usual buffer: it never drops answers for our sake.
)


class Replay:
    """The answers to one question, read by the reactor until the end marker or a time-out.

    Attributes:
        heard_at: When the last new answer came, or the question is to be asked.
    """

    def __init__(
        self, environment: ZmqEnvironment, feed: RankFeed, start: int, asks_at: float
    ) -> None:
        self.heard_at = self._asks_at = asks_at
        self._environment = environment
        self._feed = feed
        self._start = start
        self._highest = -1
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._meter: Meter | None = None
        self._is_drained = False

    def attend(self, now: float) -> None:
        """Ask when it is time and the address is known; limit what comes to what is read.

        Raises:
            ZMQError: No socket could be opened.
        """
        if self._socket is None:
            if now >= self._asks_at:
                self._ask(now)
            return
        while self._monitor is not None and (event := next_event(self._monitor)) is not None:
            self._meter = Meter.of(event[1])
        if self._meter is not None and self._environment.brings_too_much(
            self._meter, is_drained=self._is_drained
        ):
            self._feed.refuse("queue_overflow")
            self._give_up()

    def read(self, now: float) -> bool:
        """Take a slice of answers; see Reader."""
        self._is_drained = False
        if self._feed.is_behind:
            return True
        num_bytes = 0
        for _ in range(SLICE):
            # An answer may have shown a restart: then another replay must begin.
            if self._socket is None or num_bytes > SLICE_BYTES:
                break
            try:
                frames = self._receive(self._socket)
            except zmq.Again:
                self._is_drained = True
                break
            num_bytes += sum(map(len, frames))
            self._take(frames, now)
        if self._meter is not None:
            self._meter.taken += num_bytes
        return self._socket is not None and not self._is_drained

    @staticmethod
    def _receive(opened: "zmq.Socket[bytes]") -> list[bytes]:
        """Return the next answer; of one with too many frames the first ones."""
        frames = [opened.recv(zmq.NOBLOCK)]
        while len(frames) <= _MOST_FRAMES and opened.rcvmore:
            frames.append(opened.recv(zmq.NOBLOCK))
        return frames

    def on_error(self, error: BaseException) -> None:
        """Leave it to the feed; see Reader."""
        self._feed.on_error(error)

    def _give_up(self) -> None:
        self.fail()
        give_back_soon()

    def fail(self) -> None:
        """Give up: no further answer came in time."""
        self._feed.stop_replay()
        self._feed.carry_out(self._feed.tracker.replay_failed())

    def close(self) -> None:
        """Drop the question; its answers are lost. The feed's owner calls this."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.disable_monitor()
            if self._monitor is not None:
                self._monitor.close(linger=0)
            self._environment.reactor.close_socket(opened)
        self._environment.reactor.forget(self)

    def _ask(self, now: float) -> None:
        endpoint = self._feed.replay_endpoint
        assert endpoint is not None
        try:
            address = self._environment.names.locate(endpoint, now)
        except ServiceError:
            self._feed.refuse("unknown_host")  # Looked up again until the replay is late.
            return
        if address is None:
            return
        opened = self._socket = self._environment.open_socket(zmq.DEALER, address)
        opened.set(zmq.RCVHWM, _RECEIVE_HWM)
        self._monitor = open_monitor(opened, zmq.EVENT_CONNECTED)
        opened.connect(address)
        opened.send_multipart([b"", self._start.to_bytes(8, "big")])
        self._environment.reactor.watch(opened, self)

    def _take(self, frames: list[bytes], now: float) -> None:
        """Take one answer: ["", topic, seq, payload] or ["", seq, payload]."""
        if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != 8:
            self._feed.refuse("bad_replay_frames")
            if len(frames) > _MOST_FRAMES:  # The rest of it is dropped with the connection.
                self._give_up()
            return
        if frames[-2] == _END_MARKER:
            self._feed.stop_replay()
            self._feed.heard_at = now
            self._feed.carry_out(self._feed.tracker.replay_ended())
            return
        seq = int.from_bytes(frames[-2], "big")
        if not self._start <= seq <= MAX_SEQ:
            self._feed.refuse("bad_replay_seq")
            return
        if seq > self._highest:  # Otherwise a loop of answers could go on for ever.
            self._highest = seq
            self.heard_at = now
        self._feed.carry_out(self._feed.tracker.replayed(seq, frames[-1]))
