"""How much CPU does the gateway need for a request, and for an event of a stream?

All pods are one engine, which answers at once and publishes no event. Prompts come as token ids.
The CPU is that of the process `kvbraid route`, whole: HTTP on both sides, JSON, the choice, the
booking, and its reports. `plain` is the least that uvicorn with aiohttp can do.
"""

import contextlib
import multiprocessing
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import httpx
from kvbraid.sim.fleet.processes import free_port

from bench.fleet.bench_http import http_request, read_answer
from bench.fleet.service import answers, wait_until
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process

NUM_PODS: Final = 8
NUM_CONNECTIONS: Final = 32
NUM_STREAMS: Final = 64
EVENTS: Final = 100
BODY_BYTES: Final = 4096
ROUNDS: Final = 30
_END: Final = b"0\r\n\r\n"

Servers = Callable[[int], AbstractContextManager[tuple[int, int]]]
"""Runs a server before so many pods; yields its process and its port."""


def body(number: int, *, stream: bool) -> bytes:
    """Return a completion of about 4 KB whose prompt no other number has."""
    head = f'{{"model":"m","stream":{"true" if stream else "false"},"prompt":['
    ids = (str((number * 7919 + place * 31) % 90_000 + 10_000) for place in range(1 << 20))
    text = head
    for token in ids:
        if len(text) + len(token) + 3 > BODY_BYTES:
            break
        text += f"{token},"
    return f"{text[:-1]}]}}".encode()


def engine(ready: Connection) -> None:
    """Answer completions, with 200 bytes of JSON or with EVENTS events; send both ports."""
    import asyncio

    import uvloop
    import zmq

    unary = b'{"choices":[{"text":"' + b"x" * 120 + b'"}],"usage":{"prompt_tokens":9}}'
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    event = b'data: {"choices":[{"text":"' + b"x" * 150 + b'"}]}\n\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                asked = await reader.readexactly(length)
                if b'"stream":true' not in asked:
                    writer.write(whole % (len(unary), unary))
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                    b"transfer-encoding: chunked\r\n\r\n"
                )
                for _ in range(EVENTS):
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                    await asyncio.sleep(0.002)  # So that each is a packet of its own.
                writer.write(_END)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        publisher = zmq.Context().socket(zmq.PUB)
        events = publisher.bind_to_random_port("tcp://127.0.0.1")
        ready.send((server.sockets[0].getsockname()[1], events))
        await server.serve_forever()

    uvloop.run(run())


@contextlib.contextmanager
def routed(num_pods: int) -> Iterator[tuple[int, int]]:
    """Run an engine and a gateway before it; yield the gateway's process and port."""
    with _engine() as ports, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "fleet.toml"
        config.write_text(_config(num_pods, *ports))
        command = ["-m", "kvbraid", "route", "--config", str(config), "--log-level", "error"]
        with _server([*command, "--port"]) as running:
            yield running


@contextlib.contextmanager
def passed_on(num_pods: int) -> Iterator[tuple[int, int]]:
    """Run an engine, and before it uvicorn with aiohttp, which choose nothing."""
    del num_pods
    with (
        _engine() as (port, _),
        _server(["-m", "bench.router.plain_proxy", str(port)]) as running,
    ):
        yield running


@contextlib.contextmanager
def _engine() -> Iterator[tuple[int, int]]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=engine, args=(there,), daemon=True
    )
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def _config(num_pods: int, port: int, events: int) -> str:
    pods = (
        f'[[pods]]\nid = "p{number}"\nmodel = "m"\nendpoint = "tcp://127.0.0.1:{events}"\n'
        f'url = "http://127.0.0.1:{port}"\n'
        "[[pods.topology.groups]]\n"
        'kind = "full_attention"\nblock_size = 16\n'
        for number in range(num_pods)
    )
    return "".join(["[limits]\nidle_s = 600\n", *pods])


@contextlib.contextmanager
def _server(arguments: list[str]) -> Iterator[tuple[int, int]]:
    port = free_port()
    command = [sys.executable, *arguments, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until(lambda: answers(client, "/healthz"), what=" ".join(command))
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(timeout=40)


@contextlib.contextmanager
def _connected(port: int, number: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(number)
        ]


def _read_stream(connection: socket.socket) -> int:
    """Read to the end of a stream; return the number of its events."""
    received = bytearray()
    while not received.endswith(_END):
        received += connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 200"), bytes(received[:200])
    return received.count(b"data: ")


def per_request(servers: Servers, num_pods: int = NUM_PODS) -> Side:
    """The CPU per request: NUM_CONNECTIONS clients, one request each in flight."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        posts = [
            http_request("/v1/completions", "application/json", body(number, stream=False))
            for number in range(NUM_CONNECTIONS)
        ]
        with servers(num_pods) as (pid, port), _connected(port, NUM_CONNECTIONS) as connections:

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


def per_event(servers: Servers) -> Side:
    """The CPU per event: NUM_STREAMS streams at once, each with a request and EVENTS events."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        posts = [
            http_request("/v1/completions", "application/json", body(number, stream=True))
            for number in range(NUM_STREAMS)
        ]
        with servers(NUM_PODS) as (pid, port), _connected(port, NUM_STREAMS) as connections:

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


ROWS = (
    Row(
        name="proxy_4k",
        question="CPU of the gateway per unary request of 4 KB, token ids given, 32 connections",
        unit="us",
        ours=per_request(routed),
        target=Target(ours=400),
        beside={"of_64_pods": per_request(routed, 64), "plain": per_request(passed_on)},
    ),
    Row(
        name="proxy_event",
        question="CPU of the gateway per event, 64 streams of 100 events, their requests included",
        unit="us",
        ours=per_event(routed),
        target=Target(ours=60),
        beside={"plain": per_event(passed_on)},
    ),
)
