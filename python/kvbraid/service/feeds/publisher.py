"""A publisher of KV events with the engines' own wire: PUB, numbers from 0, replay ROUTER.

    live    [topic, seq (8 bytes, big-endian), payload]
    ask     ["", start (8 bytes, big-endian)]
    answer  ["", topic, seq, payload] (or without the topic, as older engines do) for every
            buffered batch from `start` on, then the end marker: seq 8 x 0xFF, empty payload

Publishing never waits for a subscriber: ZeroMQ drops the messages that a slow one cannot take. The
publisher never looks into a payload.
"""

import socket
import threading
import time
from collections import deque
from typing import Final, Literal

import zmq

from kvbraid.errors import ServiceError
from kvbraid.reading import POSITIVE, check
from kvbraid.service.closing import Closing
from kvbraid.service.feeds.endpoints import engine_binds

END_MARKER: Final = b"\xff" * 8
_SEND_HWM: Final = 100_000
_LINGER_MS: Final = 500


class Publisher(Closing):
    """Publish batches as one engine rank does; thread-safe.

    Args:
        endpoint: Where to publish. Port 0 is allowed if it binds; see `.endpoint`.
        replay_endpoint: Where to answer replays (always bound); None: no replay.
        topic: First frame of every message, by convention `kv@<pod>@<model>`.
        buffer_batches: How many of the newest batches can be replayed.
        bind: Whether to bind `endpoint`; by default as engines do (`*`, `::`, ipc, inproc).
        replay_framing: `topic`: as engines answer today; `bare`: as older ones did.

    Raises:
        InvalidValueError: A malformed endpoint, or a buffer without room for one batch.
        ServiceError: An endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        buffer_batches: int = 10_000,
        bind: bool | None = None,
        replay_framing: Literal["topic", "bare"] = "topic",
    ) -> None:
        check("buffer_batches", buffer_batches, POSITIVE)
        self._topic = topic.encode()
        self._head = [self._topic] if replay_framing == "topic" else []
        self._lock = threading.Lock()  # Guards the PUB socket, the numbers and the buffer.
        self._next_seq = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_batches)
        self._is_closed = False
        self._thread: threading.Thread | None = None
        # An XPUB is a PUB that also tells its owner of subscriptions.
        self._pub = _open_socket(
            zmq.XPUB, endpoint, engine_binds(endpoint) if bind is None else bind
        )
        self.endpoint = _address(self._pub)
        self.replay_endpoint: str | None = None
        if replay_endpoint is not None:
            try:
                self._start_replay(replay_endpoint)
            except ServiceError:
                self._pub.close()
                raise

    def publish(self, payload: bytes) -> int:
        """Send one batch and return its number.

        Raises:
            ServiceError: The publisher is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ServiceError(f"publisher on {self.endpoint} is closed; open a new one")
            self._read_subscriptions()
            seq = self._next_seq
            self._next_seq += 1
            self._buffer.append((seq, payload))
            self._pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])
            return seq

    def wait_subscribed(self, timeout_s: float) -> bool:
        """Wait until a subscription has arrived; False: none did in time.

        A message published before that reaches no subscriber, as with a real engine.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self._lock:
                if self._is_closed:
                    return False
                if self._pub.poll(10) and self._read_subscriptions():
                    return True
        return False

    def close(self) -> None:
        """Stop answering replays and close both sockets; messages already sent still go out."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._pub.close()
        if self._thread is not None:
            self._waker.send(b"x")
            self._thread.join()
            self._waker.close()

    def _read_subscriptions(self) -> bool:
        """Note what subscribers sent; return whether one of them subscribed."""
        found = False
        while int(self._pub.get(zmq.EVENTS)) & zmq.POLLIN:
            found |= self._pub.recv().startswith(b"\x01")
        return found

    def _start_replay(self, endpoint: str) -> None:
        router = _open_socket(zmq.ROUTER, endpoint, bind=True)
        self.replay_endpoint = _address(router)
        self._waker, wake = socket.socketpair()
        self._thread = threading.Thread(
            target=self._serve_replays, args=(router, wake), name="kvbraid-replay", daemon=True
        )
        self._thread.start()

    def _serve_replays(self, router: zmq.Socket[bytes], wake: socket.socket) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(wake, zmq.POLLIN)
        with router, wake:
            # Only `close` ends this: it writes to the wake, whose other side is still open then.
            while wake.fileno() not in (ready := dict(poller.poll())):
                if router in ready:
                    self._answer(router)

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        """Answer one request; like an engine, do not answer a malformed one."""
        request = router.recv_multipart()
        if len(request) != 3 or request[1] or len(request[2]) != 8:
            return
        client, start = request[0], int.from_bytes(request[2], "big")
        with self._lock:
            batches = [batch for batch in self._buffer if batch[0] >= start]
        for seq, payload in batches:
            router.send_multipart([client, b"", *self._head, seq.to_bytes(8, "big"), payload])
        marker_head = [b""] if self._head else []
        router.send_multipart([client, b"", *marker_head, END_MARKER, b""])


def _open_socket(kind: int, endpoint: str, bind: bool) -> zmq.Socket[bytes]:
    opened: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    opened.set(zmq.LINGER, _LINGER_MS)
    opened.set(zmq.SNDHWM, 0 if kind == zmq.ROUTER else _SEND_HWM)  # A replay is never cut short.
    try:
        if bind:
            opened.bind(endpoint)
        else:
            opened.connect(endpoint)
    except zmq.ZMQError as error:
        opened.close()
        verb = "bind" if bind else "connect to"
        raise ServiceError(
            f"cannot {verb} {endpoint!r}: {error}; use a free port of this host, or 0 for any"
        ) from error
    return opened


def _address(opened: zmq.Socket[bytes]) -> str:
    return opened.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
