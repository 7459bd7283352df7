"""All that engines publish, with the time at which it came: beside the gateway, not of it."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import zmq


class Message(NamedTuple):
    """A published batch and when it was here (`time.monotonic`)."""

    arrived: float
    seq: int
    payload: bytes


class Recording:
    """The messages of each pod, in order. Written by one thread, read by others."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self.messages: dict[str, list[Message]] = {pod: [] for pod in endpoints}
        self._endpoints = endpoints
        self._ends = threading.Event()

    def last_seq(self, pod: str) -> int:
        """Return the number of the last message; -1 before the first."""
        messages = self.messages[pod]
        return messages[-1].seq if messages else -1

    def run(self) -> None:
        """Receive until told to end."""
        poller = zmq.Poller()
        with zmq.Context() as context:
            pods = {}
            for pod, endpoint in self._endpoints.items():
                socket = context.socket(zmq.SUB)
                socket.setsockopt(zmq.LINGER, 0)
                socket.set_hwm(0)
                socket.subscribe(b"")
                socket.connect(endpoint)
                poller.register(socket, zmq.POLLIN)
                pods[socket] = pod
            while not self._ends.is_set():
                for socket, _ in poller.poll(50):
                    _topic, seq, payload = socket.recv_multipart()
                    message = Message(time.monotonic(), int.from_bytes(seq, "big"), payload)
                    self.messages[pods[socket]].append(message)
            for socket in pods:
                socket.close()

    def end(self) -> None:
        """Have `run` return."""
        self._ends.set()


@contextmanager
def recording(endpoints: Mapping[str, str]) -> Iterator[Recording]:
    """Record while the block runs; the engines may start later."""
    made = Recording(endpoints)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join()
