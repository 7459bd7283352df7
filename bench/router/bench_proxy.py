"""How much CPU does the gateway need for a request, and for an event of a stream?

All pods are one engine, which answers at once and publishes no event. Prompts come as token ids.
The CPU is that of the process `kvbraid route`, whole: HTTP on both sides, JSON, the choice, the
booking, and its reports. Beside it are other servers, as bench/router/rivals.py runs them: `plain`
is the least that uvicorn with aiohttp can do, `starlette` that with httpx; `nginx`, `haproxy`,
`vllm_router` and `smg` are there where they are installed. Only the last two choose.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from bench.fleet.bench_http import http_request, read_answer
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process
from bench.router.gateways import END, EVENTS, Servers, connected, routed
from bench.router.rivals import READS_NO_IDS, others

NUM_CONNECTIONS: Final = 32
NUM_STREAMS: Final = 64
BODY_BYTES: Final = 4096
ROUNDS: Final = 30
_PATH: Final = "/v1/completions"
_JSON: Final = "application/json"


def body(number: int, *, stream: bool, is_text: bool = False) -> bytes:
    """Return a completion of about 4 KB whose prompt no other number has: token ids, or a text."""
    head = f'{{"model":"m","stream":{"true" if stream else "false"},"prompt":['
    ids = (str((number * 7919 + place * 31) % 90_000 + 10_000) for place in range(1 << 20))
    text = head
    for token in ids:
        if len(text) + len(token) + 3 > BODY_BYTES:
            break
        text += f"{token},"
    whole = f"{text[:-1]}]}}"
    return (whole.replace("[", '"').replace("]", '"') if is_text else whole).encode()


def _read_stream(connection: socket.socket) -> int:
    """Read to the end of a stream; return the number of its events."""
    received = bytearray()
    while not received.endswith(END):
        received += connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 200"), bytes(received[:200])
    return received.count(b"data: ")


def per_request(servers: Servers, *, is_text: bool = False) -> Side:
    """The CPU per request: NUM_CONNECTIONS clients, one request each in flight."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        posts = [
            http_request(_PATH, _JSON, body(number, stream=False, is_text=is_text))
            for number in range(NUM_CONNECTIONS)
        ]
        with servers() as (pid, port, _), connected(port, NUM_CONNECTIONS) as connections:

            def ask(rounds: int) -> None:
                for turn in range(rounds):
                    for place, connection in enumerate(connections):
                        connection.sendall(posts[(turn + place) % len(posts)])
                    for connection in connections:
                        read_answer(connection)

            def sample() -> float:
                begin = cpu_us_of_process(pid)
                ask(ROUNDS)
                return (cpu_us_of_process(pid) - begin) / (ROUNDS * NUM_CONNECTIONS)

            ask(10)
            yield sample

    return side


def per_event(servers: Servers, *, is_text: bool = False) -> Side:
    """The CPU per event: NUM_STREAMS streams at once, each with a request and EVENTS events."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        posts = [
            http_request(_PATH, _JSON, body(number, stream=True, is_text=is_text))
            for number in range(NUM_STREAMS)
        ]
        with servers() as (pid, port, _), connected(port, NUM_STREAMS) as connections:

            def sample() -> float:
                begin = cpu_us_of_process(pid)
                for connection, request in zip(connections, posts, strict=True):
                    connection.sendall(request)
                number = sum(map(_read_stream, connections))
                assert number == NUM_STREAMS * EVENTS, number
                return (cpu_us_of_process(pid) - begin) / number

            sample()
            yield sample

    return side


def _beside(cost: Callable[..., Side]) -> dict[str, Side]:
    return {name: cost(it, is_text=name in READS_NO_IDS) for name, it in others().items()}


ROWS = (
    Row(
        name="proxy_4k",
        question="CPU of the gateway per unary request of 4 KB, token ids given, 32 connections",
        unit="us",
        ours=per_request(routed),
        target=Target(ours=400),
        beside={"of_64_pods": per_request(partial(routed, 64)), **_beside(per_request)},
    ),
    Row(
        name="proxy_event",
        question="CPU of the gateway per event, 64 streams of 100 events, their requests included",
        unit="us",
        ours=per_event(routed),
        target=Target(ours=60),
        beside=_beside(per_event),
    ),
)
