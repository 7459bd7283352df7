"""Listen to engines' event feeds and yield what they publish, as it comes.

This subscribes independently of any server: nothing is indexed and no gap is filled. A PUB socket
serves any number of subscribers, but an address can be bound by one process only.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import zmq

from kvbraid.errors import InvalidValueError, ServiceError
from kvbraid.events.model import EventBatch
from kvbraid.events.wire import decode
from kvbraid.service.answers import PodsAnswer
from kvbraid.service.feeds.endpoints import rank_endpoint, subscriber_binds


class Source(NamedTuple):
    """One feed: its name, its address, and whether to bind there."""

    name: str
    endpoint: str
    bind: bool


class Published(NamedTuple):
    """One message of a feed; `seq` is -1 when its frame is not 8 bytes."""

    source: str
    seq: int
    batch: EventBatch


def source_of(endpoint: str) -> Source:
    """Take an endpoint as written; it is bound if its host is `*`, else connected to.

    Raises:
        InvalidValueError: Not an endpoint.
    """
    return Source(endpoint, rank_endpoint(endpoint, 0), subscriber_binds(endpoint))


def sources_of(pods: PodsAnswer, only: Sequence[str] = ()) -> list[Source]:
    """Choose the feeds of a server's pods, all or those named.

    Raises:
        InvalidValueError: A name is unknown, or no pod has a feed that others can hear.
    """
    unknown = set(only) - {row.pod for row in pods.pods}
    if unknown:
        raise InvalidValueError(f"unknown pods {', '.join(sorted(unknown))}; see `kvbraid pods`")
    rows = [row for row in pods.pods if not only or row.pod in only]
    heard = [
        Source(f"{row.pod}/{row.dp_rank}", rank_endpoint(row.endpoint, row.dp_rank), bind=False)
        for row in rows
        if row.endpoint is not None
        if not (subscriber_binds(row.endpoint) if row.bind is None else row.bind)
    ]
    if not heard:
        msg = (
            f"none of {len(rows)} pod ranks can be heard by others: they have no events, or the "
            "server binds their feeds"
        )
        raise InvalidValueError(f"{msg}; give an --endpoint")
    return heard


def tail(sources: Sequence[Source], *, poll_ms: int = 1000) -> Iterator[Published]:
    """Yield every message of the sources, for ever.

    Raises:
        ServiceError: An address cannot be used.
    """
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        poller = zmq.Poller()
        names: dict[zmq.Socket[bytes], str] = {}
        for source in sources:
            socket = stack.enter_context(context.socket(zmq.SUB))
            socket.linger = 0
            socket.subscribe(b"")
            try:
                (socket.bind if source.bind else socket.connect)(source.endpoint)
            except zmq.ZMQError as error:
                raise ServiceError(f"{source.endpoint}: {error.strerror}") from None
            poller.register(socket, zmq.POLLIN)
            names[socket] = source.name
        while True:
            for ready, _ in poller.poll(poll_ms):
                yield _published(names[ready], ready.recv_multipart())


def _published(name: str, frames: list[bytes]) -> Published:
    seq = frames[-2] if len(frames) >= 2 else b""
    number = int.from_bytes(seq, "big") if len(seq) == 8 else -1
    return Published(name, number, decode(frames[-1]))
