"""One replay: a question to an engine's ROUTER, and its answers in either framing.

A fresh DEALER per question, so that answers to an older one can never be taken for this one's.
It reads no faster than the feed applies, and gives up when no further batch comes in time.
"""

from typing import Final

import zmq

from kvbraid.service.feed import MAX_MESSAGE_BYTES, MAX_SEQ, RankFeed
from kvbraid.service.reactor import SLICE, Reactor

_END_MARKER: Final = b"\xff" * 8
_RECEIVE_HWM: Final = (
    20_000  # Twice an engine's usual buffer: it never drops answers for our sake.
)


class Replay:
    """The answers to one question, read by the reactor until the end marker or a time-out."""

    def __init__(self, reactor: Reactor, feed: RankFeed, start: int, now: float) -> None:
        assert feed.replay_endpoint is not None
        self._reactor = reactor
        self._feed = feed
        self._start = start
        self._highest = -1
        self.heard_at = now  # When the last new answer came.
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.set(zmq.RCVHWM, _RECEIVE_HWM)
        self._socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.connect(feed.replay_endpoint)
        self._socket.send_multipart([b"", start.to_bytes(8, "big")])
        reactor.watch(self._socket, self)

    def read(self, now: float) -> bool:
        """Take a slice of answers; see Reader."""
        for _ in range(SLICE):
            if self._socket.closed:  # An answer told of a restart: another replay is under way.
                return False
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._take(frames, now)
        return True

    def fail(self) -> None:
        """Give up: no further answer came in time."""
        self._feed.stop_replay()
        self._feed.carry_out(self._feed.tracker.replay_failed())

    def close(self) -> None:
        """Drop the question; its answers reach nobody. Called by who started it."""
        self._reactor.close_socket(self._socket)
        self._reactor.forget(self)

    def _take(self, frames: list[bytes], now: float) -> None:
        """Take one answer: ["", topic, seq, payload] or ["", seq, payload]."""
        if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != 8:
            self._feed.refuse("bad_replay_frames")
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
        if seq > self._highest:  # Else a loop of answers could keep the replay alive for ever.
            self._highest = seq
            self.heard_at = now
        self._feed.carry_out(self._feed.tracker.replayed(seq, frames[-1]))
