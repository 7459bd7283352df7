"""How much longer does a client wait with the gateway than without it, and for long prompts?

Prompts are text, which the gateway turns into token ids. Clients ask the engine through the
gateway and directly, in turn: a figure is the difference. All processes share the machine, so a
busy one makes every figure larger.
"""

import contextlib
import json
import re
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, repeat
from typing import Final

from bench.fleet.bench_http import http_request
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process
from bench.router.bench_tokens import prose, tokenizer
from bench.router.gateways import END, Running, Servers, connected, routed
from bench.router.rivals import PLAIN

NUM_CLIENTS: Final = 20
NUM_STREAMS: Final = 64
LONG_CHARACTERS: Final = 220_000
SHORT_CHARACTERS: Final = 4_000
"""About 1 000 tokens of our prose."""
PACE_MS: Final = 20
"""Between the events of a stream: those of an engine with 50 tokens a second."""
WORK_MS: Final = 500
"""Of the engine at a long prompt: 20 clients then ask 40 times a second."""

_AT: Final = re.compile(rb'"at":(\d+)')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)

Posts = Callable[[], Iterator[bytes]]
"""Makes the requests of one row, one after the other."""


@cache
def text(characters: int) -> str:
    """Return prose as JSON has it, without the quotation marks."""
    return json.dumps(prose()[:characters])[1:-1]


def post(number: int, characters: int, *, after_ms: int = 0) -> bytes:
    """Return a completion of a text that no other number has."""
    body = f'{{"model":"m","after_ms":{after_ms},"prompt":"{number} {text(characters)}"}}'
    return http_request("/v1/completions", "application/json", body.encode())


def new(characters: int, *, after_ms: int = 0) -> Iterator[bytes]:
    """Yield requests of which none was there before."""
    return (post(number, characters, after_ms=after_ms) for number in count(1))


def seen() -> Iterator[bytes]:
    """Yield the same request again and again."""
    return repeat(post(0, SHORT_CHARACTERS))


def first_bytes(
    connections: list[socket.socket], posts: Iterator[bytes], number: int
) -> list[float]:
    """Ask so often, one request in flight on each connection; return the times to first bytes."""
    waits: list[float] = []
    begun: dict[socket.socket, float] = {}

    def ask(connection: socket.socket) -> None:
        request = next(posts)
        begun[connection] = time.perf_counter()
        connection.sendall(request)

    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, bytearray())
            ask(connection)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                connection, received = key.fileobj, key.data
                if not received:
                    waits.append((time.perf_counter() - begun[connection]) * 1e6)
                received += connection.recv(1 << 16)
                if not _is_whole(received):
                    continue
                received.clear()
                if len(waits) + len(connections) <= number:
                    ask(connection)
                else:
                    selector.unregister(connection)
    return waits


def _is_whole(answer: bytearray) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not end or length is None:
        return False
    assert head.startswith(b"HTTP/1.1 200"), bytes(head)
    return len(body) == int(length[1])


def event_delays(connections: list[socket.socket]) -> list[float]:
    """Read a stream on each connection; return how long its events were on their way."""
    body = f'{{"model":"m","stream":true,"pace_ms":{PACE_MS},"prompt":[1,2,3]}}'.encode()
    request = http_request("/v1/completions", "application/json", body)
    delays: list[float] = []
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, bytearray())
            connection.sendall(request)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                rest = key.data + key.fileobj.recv(1 << 16)
                now = time.monotonic_ns()
                *events, key.data[:] = rest.split(b"\n\n")
                found = (_AT.search(event) for event in events)
                delays.extend((now - int(at[1])) / 1000 for at in found if at)
                if rest.endswith(END):
                    selector.unregister(key.fileobj)
    return delays


# ---- the sides ------------------------------------------------------------------------------


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def added(servers: Servers, posts: Posts, clients: int, requests: int) -> Side:
    """The time to the first byte that a server adds, p50."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        asked = posts()
        with servers() as running, _both(running, clients) as (through, directly):

            def sample() -> float:
                with_it = statistics.median(first_bytes(through, asked, requests))
                return with_it - statistics.median(first_bytes(directly, asked, requests))

            sample()
            yield sample

    return side


def added_to_events(servers: Servers) -> Side:
    """The time that a server adds to an event, p99."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with servers() as running, _both(running, NUM_STREAMS) as (through, directly):

            def sample() -> float:
                return _p99(event_delays(through)) - _p99(event_delays(directly))

            yield sample

    return side


def requests_of_a_core(servers: Servers) -> Side:
    """How many long prompts a second of a core is enough for."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        asked, requests = new(LONG_CHARACTERS), 5 * NUM_CLIENTS
        with servers() as running, connected(running.port, NUM_CLIENTS) as connections:

            def sample() -> float:
                begin = cpu_us_of_process(running.pid)
                first_bytes(connections, asked, requests)
                return requests * 1e6 / (cpu_us_of_process(running.pid) - begin)

            sample()
            yield sample

    return side


@contextlib.contextmanager
def _both(
    running: Running, number: int
) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    with connected(running.port, number) as through, connected(running.engine, number) as directly:
        yield through, directly


@contextlib.contextmanager
def _with_tokens() -> Iterator[Running]:
    with routed(tokenizer=tokenizer()) as running:
        yield running


_NEW: Final = partial(new, SHORT_CHARACTERS)
_LONG: Final = partial(new, LONG_CHARACTERS, after_ms=WORK_MS)

ROWS = (
    Row(
        name="proxy_ttfb",
        question="time to first byte that is added, 1 000 tokens as text, seen before, one client",
        unit="us",
        ours=added(_with_tokens, seen, 1, 100),
        target=Target(ours=1000),
        beside={"plain": added(PLAIN, seen, 1, 100)},
    ),
    Row(
        name="proxy_ttfb_new",
        question="the same for a text that is new",
        unit="us",
        ours=added(_with_tokens, _NEW, 1, 100),
        target=Target(ours=2000),
        beside={"plain": added(PLAIN, _NEW, 1, 100)},
    ),
    Row(
        name="proxy_event_added",
        question="time that is added to an event, p99, 64 streams of 50 events a second",
        unit="us",
        ours=added_to_events(routed),
        target=Target(ours=2000),
        samples=5,
        beside={"plain": added_to_events(PLAIN)},
    ),
    Row(
        name="proxy_220kb",
        question="new prompts of 220 KB, as text, that one core is enough for",
        unit="requests/s",
        ours=requests_of_a_core(_with_tokens),
        target=Target(least=130),
        samples=5,
        larger_is_better=True,
        beside={"plain": requests_of_a_core(PLAIN)},
    ),
    Row(
        name="proxy_220kb_added",
        question="time to first byte that is added to them, 20 clients, 40 requests/s",
        unit="us",
        ours=added(_with_tokens, _LONG, NUM_CLIENTS, 5 * NUM_CLIENTS),
        target=Target(ours=20_000),
        samples=5,
        beside={"plain": added(PLAIN, _LONG, NUM_CLIENTS, 5 * NUM_CLIENTS)},
    ),
)
