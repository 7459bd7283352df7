"""Sixty-four engines' publishers in this process, for services that subscribe over ZeroMQ."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import zmq

from bench.fleet.service import MeasuredService, wait_until
from bench.fleet.streams import NUM_PODS, Batch


class Publishers:
    """One socket per pod. It waits for the subscriptions, so no first message is lost."""

    def __init__(self, sockets: list[Any], endpoints: list[str]) -> None:
        self._sockets = sockets
        self.endpoints = endpoints
        self._sequence = [0] * len(sockets)

    @classmethod
    @contextlib.contextmanager
    def bound(cls, num_pods: int = NUM_PODS) -> Iterator["Publishers"]:
        """Bind loopback ports; close them at the end."""
        with zmq.Context() as context, contextlib.ExitStack() as stack:
            sockets, endpoints = [], []
            for _ in range(num_pods):
                # XPUB shows subscriptions, which PUB hides; on the wire they are the same.
                publisher = stack.enter_context(context.socket(zmq.XPUB))
                publisher.set_hwm(0)
                publisher.linger = 0
                publisher.bind("tcp://127.0.0.1:*")
                sockets.append(publisher)
                endpoints.append(publisher.getsockopt_string(zmq.LAST_ENDPOINT))
            yield cls(sockets, endpoints)

    def connect(self, service: MeasuredService) -> None:
        """Register every pod with the service and wait until it has subscribed to all."""
        for pod, endpoint in enumerate(self.endpoints):
            service.register(pod, endpoint)
            self.wait_subscribed(pod)

    def wait_subscribed(self, pod: int) -> None:
        """Wait until somebody has subscribed to a pod."""
        if not self._sockets[pod].poll(10_000):
            endpoint = self.endpoints[pod]
            raise TimeoutError(f"pod {pod}: no subscription at {endpoint} within 10 s")
        self._sockets[pod].recv()

    def publish(self, batches: Iterable[Batch]) -> None:
        """Send every batch with its pod's next sequence number."""
        for message in batches:
            sequence = self._sequence[message.pod]
            self._sequence[message.pod] += 1
            frames = (b"", sequence.to_bytes(8, "big"), message.payload)
            self._sockets[message.pod].send_multipart(frames)


def wait_applied(service: MeasuredService, expected: int, *, seconds: float = 300) -> None:
    """Wait until the service has taken everything; ask rarely, because each answer costs CPU."""
    wait_until(
        lambda: service.num_applied() >= expected,
        what=f"{expected} applied",
        seconds=seconds,
        every_s=0.25,
    )
