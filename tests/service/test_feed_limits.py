"""What one engine can cost: host names that resolve slowly, and bytes that are never read."""

import contextlib
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.heap import _give_back
from kvbraid.service.feeds.meter import Meter
from kvbraid.service.feeds.names import Names
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.subscriber import Subscriber

from tests.service.engines import LOOPBACK, RawEngine, open_publisher, seq_bytes
from tests.service.recording_sink import TIMEOUT_S, Applied, RecordingSink

A, B = PodId("a"), PodId("b")


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


def holds(sink: RecordingSink, pod: PodId, *payloads: bytes) -> Callable[[], bool]:
    rank = sink.rank(pod)
    return lambda: rank.batches == [*payloads] and rank.state is PodState.EXACT


class SlowNames:
    """In place of `socket.getaddrinfo`: `slow` waits until it is let go; then it is loopback."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def __call__(self, host: str, *_: object) -> list[tuple[object, ...]]:
        if host == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.is_asked.set()
        assert self.may_answer.wait(TIMEOUT_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> SlowNames:
    names = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    return names


def named(endpoint: str, host: str) -> str:
    return endpoint.replace("127.0.0.1", host)


def test_a_name_that_resolves_slowly_holds_up_no_other_pod(
    sink: RecordingSink, names: SlowNames
) -> None:
    with (
        open_publisher(replay_endpoint=LOOPBACK) as slow,
        open_publisher(replay_endpoint=LOOPBACK) as good,
        Subscriber(sink, retry_max_s=0.2) as subscriber,
    ):
        slow.publish(b"slow 0")
        good.publish(b"0")
        assert slow.replay_endpoint is not None
        subscriber.add(
            A, PodFeed(named(slow.endpoint, "slow"), named(slow.replay_endpoint, "slow"))
        )
        assert names.is_asked.wait(TIMEOUT_S)
        subscriber.add(B, PodFeed(good.endpoint, good.replay_endpoint))
        sink.wait(holds(sink, B, b"0"))
        good.publish(b"1")
        sink.wait(holds(sink, B, b"0", b"1"))  # All that while the name is still looked up.
        assert sink.rank("a").states == [PodState.STALE]
        names.may_answer.set()
        sink.wait(holds(sink, A, b"slow 0"))


def test_a_name_without_an_address_is_counted_and_asked_for_again(
    sink: RecordingSink, names: SlowNames
) -> None:
    names.may_answer.set()
    with RawEngine() as engine, Subscriber(sink, retry_max_s=0.1) as subscriber:
        subscriber.add(A, PodFeed("tcp://nowhere:5557"))
        subscriber.add(B, PodFeed(engine.endpoint, named(engine.replay_endpoint, "nowhere")))
        sink.wait(lambda: sink.rank("a").refused["unknown_host"] >= 2)
        sink.wait(lambda: sink.rank("b").refused["unknown_host"] >= 1)
        assert sink.rank("a").states == [PodState.STALE]


def test_a_name_that_moves_is_followed_to_its_new_address(
    sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbraid.service.feeds.names.FRESH_S", 0.05)
    monkeypatch.setattr("kvbraid.service.feeds.connected_link.FRESH_S", 0.05)
    addresses = ["127.0.0.2"]

    def look_up(host: str, *_: object) -> list[tuple[object, ...]]:
        assert host == "engine"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[-1], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with (
        open_publisher() as publisher,
        Subscriber(sink, retry_max_s=0.2) as subscriber,
    ):
        subscriber.add(A, PodFeed(named(publisher.endpoint, "engine")))
        addresses.append("127.0.0.1")
        assert publisher.wait_subscribed(TIMEOUT_S)


def test_names_are_looked_up_once_at_a_time_and_addresses_never(names: SlowNames) -> None:
    table = Names()
    assert table.locate("tcp://10.0.0.1:5557", 0.0) == "tcp://10.0.0.1:5557"
    assert table.locate("tcp://[::1]:5557", 0.0) == "tcp://[::1]:5557"
    assert table.locate("ipc:///run/events", 0.0) == "ipc:///run/events"
    assert not names.is_asked.is_set()
    before = threading.active_count()
    for _ in range(5):
        assert table.locate("tcp://slow:5557", 0.0) is None
    assert threading.active_count() == before + 1
    names.may_answer.set()


def shake_hands(peer: socket.socket, kind: bytes = b"PUB") -> None:
    """Do what ZeroMQ does when a connection begins."""
    peer.settimeout(TIMEOUT_S)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    peer.sendall(greeting)
    received = b""
    while len(received) < len(greeting):
        received += peer.recv(len(greeting) - len(received))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    peer.sendall(bytes([4, len(ready)]) + ready)


class RawPeer:
    """A publisher down to the wire, so that a message may never end."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def accept(self, kind: bytes = b"PUB") -> socket.socket:
        """Take the next connection through ZeroMQ's handshake."""
        peer, _ = self._listener.accept()
        shake_hands(peer, kind)
        return peer

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def raw_peer() -> Iterator[RawPeer]:
    with contextlib.closing(RawPeer()) as peer:
        yield peer


def send_until_cut(peer: socket.socket, piece: bytes, limit: int) -> int:
    """Send one piece after the other; return how many bytes had been taken when it ended."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < limit:
            peer.sendall(piece)
            sent += len(piece)
    return sent


ENDLESS = {
    "empty frames": b"\x01\x00" * 4_000,
    "large frames": b"\x03" + struct.pack(">Q", 8_000) + bytes(8_000),
}


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that free memory was to be given back."""
    times: list[None] = []
    monkeypatch.setattr("kvbraid.service.feeds.link.give_back_soon", lambda: times.append(None))
    return times


@pytest.mark.parametrize("piece", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_message_that_never_ends_is_cut_off(
    sink: RecordingSink, raw_peer: RawPeer, piece: bytes, given_back: list[None]
) -> None:
    with (
        open_publisher(replay_endpoint=LOOPBACK) as good,
        Subscriber(sink, retry_max_s=0.2, queue_limit_bytes=1 << 20) as subscriber,
    ):
        subscriber.add(A, PodFeed(raw_peer.endpoint))
        subscriber.add(B, PodFeed(good.endpoint, good.replay_endpoint))
        with raw_peer.accept() as peer:
            assert send_until_cut(peer, piece, 1 << 40) < 1 << 40
        sink.wait(lambda: sink.rank("a").refused["queue_overflow"] == 1)
        sink.wait(lambda: sink.rank("a").state is PodState.STALE)
        assert given_back
        with raw_peer.accept():  # It is given another chance.
            good.publish(b"0")
            sink.wait(holds(sink, B, b"0"))


MANY = b"\x01\x00" * 50_000 + b"\x00\x00"
"""A message of very many frames, all of them empty."""

FRAMED = b"\x01\x01t\x01\x08" + seq_bytes(0)
"""How a message with the topic `t` begins, and its number."""


@pytest.mark.parametrize("before", [b"", FRAMED + b"\x00\x010" + FRAMED], ids=["new", "usual"])
def test_a_connection_that_brings_a_message_of_very_many_frames_is_cut(
    sink: RecordingSink, raw_peer: RawPeer, before: bytes, given_back: list[None]
) -> None:
    with Subscriber(sink, retry_max_s=0.2) as subscriber:
        subscriber.add(A, PodFeed(raw_peer.endpoint))
        with raw_peer.accept() as peer:
            peer.sendall(before + MANY)
            sink.wait(lambda: sink.rank("a").refused["bad_frames"] == 1)
            sink.wait(lambda: sink.rank("a").state is PodState.STALE)
        assert given_back
        with raw_peer.accept() as peer:  # It is given another chance.
            peer.sendall(FRAMED + b"\x00\x010")
            sink.wait(lambda: sink.rank("a").batches[-1:] == [b"0"])


def test_at_an_address_that_pods_share_only_the_connection_with_so_many_frames_is_cut(
    sink: RecordingSink,
) -> None:
    with Subscriber(sink, retry_max_s=0.2) as subscriber:
        for pod in (A, B):
            subscriber.add(pod, PodFeed(LOOPBACK, bind=True))
        endpoint = subscriber.status()[0].endpoint
        with (
            Publisher(endpoint, topic="kv@b@m") as good,
            socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2]))) as bad,
        ):
            assert good.wait_subscribed(TIMEOUT_S)
            good.publish(b"0")
            sink.wait(holds(sink, B, b"0"))
            shake_hands(bad)
            framed = b"\x01\x06kv@a@m\x01\x08" + seq_bytes(0)
            bad.sendall(framed + b"\x00\x010")
            sink.wait(lambda: sink.rank("a").batches == [b"0"])
            bad.sendall(framed + MANY)
            sink.wait(lambda: sink.rank("a").refused["bad_frames"] == 1)
            sink.wait(lambda: sink.rank("a").states.count(PodState.STALE) == 2)
            good.publish(b"1")
            sink.wait(holds(sink, B, b"0", b"1"))
            assert sink.rank("b").states.count(PodState.STALE) == 1, "before it was connected"


def test_a_replay_with_an_answer_of_very_many_frames_is_given_up(
    sink: RecordingSink, raw_peer: RawPeer
) -> None:
    with RawEngine() as engine, Subscriber(sink, replay_timeout_s=60) as subscriber:
        subscriber.add(A, PodFeed(engine.endpoint, raw_peer.endpoint))
        with raw_peer.accept(b"ROUTER") as peer:
            peer.sendall(MANY)
            sink.wait(lambda: sink.rank("a").state is PodState.DEGRADED)
        assert sink.rank("a").refused["bad_replay_frames"] == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_what_is_free_is_given_back() -> None:
    before = resident_bytes()
    small = [bytes(1_000) for _ in range(100_000)]
    last = small.pop()  # It keeps what is free below it from going back by itself.
    held = resident_bytes()
    small.clear()
    _give_back()
    assert resident_bytes() - before < (held - before) / 2, last


def test_a_replay_whose_answer_never_ends_is_cut_off(
    sink: RecordingSink, raw_peer: RawPeer
) -> None:
    with (
        RawEngine() as engine,
        Subscriber(sink, replay_timeout_s=60, queue_limit_bytes=1 << 20) as subscriber,
    ):
        subscriber.add(A, PodFeed(engine.endpoint, raw_peer.endpoint))
        with raw_peer.accept(b"ROUTER") as peer:
            assert send_until_cut(peer, ENDLESS["empty frames"], 1 << 40) < 1 << 40
        sink.wait(lambda: sink.rank("a").state is PodState.DEGRADED)
        assert sink.rank("a").refused["queue_overflow"] == 1


def test_what_a_stalled_reader_leaves_is_bounded_and_asked_for_again() -> None:
    """The engine goes on while the sink stands still; what did not fit is a gap like any other."""
    is_stalled, may_go_on = threading.Event(), threading.Event()

    class StallingSink(RecordingSink):
        def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
            if payload == b"stall":
                is_stalled.set()
                assert may_go_on.wait(TIMEOUT_S)
            return super().apply(pod, payload, dp_rank=dp_rank)

    sink = StallingSink()
    large = bytes(100_000)
    with (
        open_publisher(replay_endpoint=LOOPBACK) as publisher,
        Subscriber(sink, retry_max_s=0.2, queue_limit_bytes=1 << 20) as subscriber,
    ):
        subscriber.add(A, PodFeed(publisher.endpoint, publisher.replay_endpoint))
        assert publisher.wait_subscribed(TIMEOUT_S)
        publisher.publish(b"stall")
        assert is_stalled.wait(TIMEOUT_S)
        for _ in range(100):
            publisher.publish(large)
        may_go_on.set()
        sink.wait(lambda: sink.rank("a").batches == [b"stall", *[large] * 100])
        sink.wait(lambda: sink.rank("a").state is PodState.EXACT)


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        return ours, theirs


def test_a_meter_counts_what_came_and_was_not_taken() -> None:
    ours, theirs = connected_pair()
    with ours, theirs:
        meter = Meter.of(ours.fileno())
        assert meter is not None
        theirs.sendall(bytes(1_000))
        ours.recv(1, socket.MSG_PEEK)
        assert meter.unread(is_drained=False) == 1_000
        meter.taken += 600
        assert meter.unread(is_drained=False) == 400
        assert meter.unread(is_drained=True) == 400, "what it counts from here on is new"
        assert meter.unread(is_drained=True) == 0
        theirs.sendall(bytes(500))
        ours.recv(2_000, socket.MSG_PEEK)
        assert meter.unread(is_drained=True) == 500
        assert meter.unread(is_drained=True) == 500, "nothing was handed over: it waits"
        meter.cut()
        assert theirs.recv(1) == b""


def test_a_meter_never_measures_another_connection_with_the_same_descriptor() -> None:
    ours, theirs = connected_pair()
    with ours, theirs:
        meter = Meter.of(ours.fileno())
        assert meter is not None
        other, its_peer = connected_pair()
        with other, its_peer:
            theirs.sendall(bytes(1_000))
            meter._fd = other.fileno()  # As if ZeroMQ had closed its own meanwhile.
            assert meter.unread(is_drained=False) == 0
            meter.cut()
            other.sendall(seq_bytes(1))
            assert its_peer.recv(8) == seq_bytes(1)


def test_what_is_no_tcp_connection_is_not_measured() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert Meter.of(left.fileno()) is None
    assert Meter.of(10**6) is None
