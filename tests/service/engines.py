"""Stand-ins for engines: one that loses messages, and one that sends any frames at all."""

import socket
import time
from typing import Literal

import zmq
from kvbraid.errors import ServiceError
from kvbraid.service.closing import Closing
from kvbraid.service.feeds.publisher import Publisher

from tests.service.recording_sink import TIMEOUT_S

LOOPBACK = "tcp://127.0.0.1:0"


def open_socket(kind: int) -> zmq.Socket[bytes]:
    opened: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    opened.set(zmq.LINGER, 0)
    opened.set(zmq.RCVTIMEO, int(TIMEOUT_S * 1000))
    return opened


def seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


class LossyPublisher(Publisher):
    """Can lose a message on its way; it stays in the replay buffer unless told otherwise."""

    def lose(self, payload: bytes, *, is_buffered: bool = True) -> int:
        with self._lock:
            seq = self._next_seq
            self._next_seq += 1
            if is_buffered:
                self._buffer.append((seq, payload))
            return seq


def open_publisher(
    endpoint: str = LOOPBACK,
    *,
    replay_endpoint: str | None = None,
    topic: str = "",
    buffer_batches: int = 10_000,
    replay_framing: Literal["topic", "bare"] = "topic",
) -> LossyPublisher:
    """A publisher that binds; a port that its last owner is just leaving is waited for."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return LossyPublisher(
                endpoint,
                bind=True,
                replay_endpoint=replay_endpoint,
                topic=topic,
                buffer_batches=buffer_batches,
                replay_framing=replay_framing,
            )
        except ServiceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def consecutive_ports(count: int) -> int:
    """The first of some ports in a row that are free now."""
    for base in range(20_000, 60_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, opened in enumerate(sockets):
                opened.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        finally:
            for opened in sockets:
                opened.close()
        return base
    raise AssertionError("no free ports")


class RawEngine(Closing):
    """A PUB and a ROUTER whose every frame the test decides."""

    def __init__(self) -> None:
        self.pub = open_socket(zmq.XPUB)
        self.router = open_socket(zmq.ROUTER)
        for opened in (self.pub, self.router):
            opened.bind(LOOPBACK)
        self.endpoint = self.pub.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.replay_endpoint = self.router.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def close(self) -> None:
        self.pub.close()
        self.router.close()

    def wait_subscribed(self) -> None:
        assert self.pub.recv() == b"\x01"

    def say(self, *frames: bytes) -> None:
        self.pub.send_multipart(frames)

    def asked(self) -> tuple[bytes, int]:
        """The next replay question: who asks, and from which number."""
        client, empty, start = self.router.recv_multipart()
        assert empty == b""
        return client, int.from_bytes(start, "big")

    def answer(self, client: bytes, *frames: bytes) -> None:
        self.router.send_multipart([client, b"", *frames])

    def end(self, client: bytes) -> None:
        self.answer(client, b"", b"\xff" * 8, b"")
