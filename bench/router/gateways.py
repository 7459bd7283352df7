"""Servers before an engine that answers at once: our gateway, and the least that one can do.

All pods are that one engine, and it publishes no event. It does what a body asks for: `after_ms`
delays an answer, `pace_ms` the events of a stream. Each event says when it was written.
"""

import contextlib
import multiprocessing
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from kvbraid.sim.fleet.processes import free_port

from bench.fleet.service import answers, wait_until

EVENTS: Final = 100
"""Of each stream."""
END: Final = b"0\r\n\r\n"
"""Of a stream."""
PORT: Final = "{port}"
"""In a command: where its server listens."""
HAPROXY: Final = """\
global
    nbthread 1
defaults
    mode http
    option http-no-delay
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind "127.0.0.1:${KVBRAID_PORT}"
    http-request return status 200 if { path /healthz }
    default_backend engine
backend engine
    http-reuse always
    server engine 127.0.0.1:%d
"""


class Running(NamedTuple):
    """A server: its process and its port, and the port of its engine."""

    pid: int
    port: int
    engine: int


Servers = Callable[[], AbstractContextManager[Running]]
"""Runs a server and its engine."""


def engine(ready: Connection) -> None:
    """Answer with 200 bytes of JSON, or with EVENTS events; send the ports of both sockets."""
    import asyncio
    import time

    import uvloop
    import zmq

    unary = b'{"choices":[{"text":"' + b"x" * 120 + b'"}],"usage":{"prompt_tokens":9}}'
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    event = b'data: {"at":%020d,"choices":[{"text":"' + b"x" * 125 + b'"}]}\n\n'

    async def stream(writer: asyncio.StreamWriter, pace_s: float) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(EVENTS):
            now = event % time.monotonic_ns()
            writer.write(b"%x\r\n%b\r\n" % (len(now), now))
            await asyncio.sleep(pace_s)  # So that each is a packet of its own.
        writer.write(END)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                asked = dict(re.findall(rb'"(\w+)":(\w+)', body[:128]))
                await asyncio.sleep(int(asked.get(b"after_ms", 0)) / 1000)
                if asked.get(b"stream") == b"true":
                    await stream(writer, int(asked.get(b"pace_ms", 2)) / 1000)
                else:
                    writer.write(whole % (len(unary), unary))

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        publisher = zmq.Context().socket(zmq.PUB)
        events = publisher.bind_to_random_port("tcp://127.0.0.1")
        ready.send((server.sockets[0].getsockname()[1], events))
        await server.serve_forever()

    uvloop.run(run())


@contextlib.contextmanager
def routed(num_pods: int = 8, *, tokenizer: str = "") -> Iterator[Running]:
    """Run an engine and a gateway before it; `tokenizer` is the tokenizer.json of its model."""
    with _engine() as (port, events), tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "fleet.toml"
        config.write_text(_config(num_pods, port, events, with_tokens=bool(tokenizer)))
        (Path(folder) / "tokenizer.json").write_text(tokenizer)
        command = [sys.executable, "-m", "kvbraid", "route", "--config", str(config)]
        with server([*command, "--log-level", "error", "--port", PORT], port) as running:
            yield running


@contextlib.contextmanager
def passed_on() -> Iterator[Running]:
    """Run an engine, and before it uvicorn with aiohttp, which choose nothing."""
    with _engine() as (port, _):
        command = [sys.executable, "-m", "bench.router.plain_proxy", str(port), PORT]
        with server(command, port) as running:
            yield running


@contextlib.contextmanager
def balanced() -> Iterator[Running]:
    """Run an engine, and before it HAProxy with one thread, which chooses nothing."""
    with _engine() as (port, _), tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "haproxy.cfg"
        config.write_text(HAPROXY % port)
        command = ["env", f"KVBRAID_PORT={PORT}", "haproxy", "-db", "-f", str(config)]
        with server(command, port) as running:
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


def _config(num_pods: int, port: int, events: int, *, with_tokens: bool) -> str:
    pods = (
        f'[[pods]]\nid = "p{number}"\nmodel = "m"\nendpoint = "tcp://127.0.0.1:{events}"\n'
        f'url = "http://127.0.0.1:{port}"\n'
        "[[pods.topology.groups]]\n"
        'kind = "full_attention"\nblock_size = 16\n'
        for number in range(num_pods)
    )
    tokens = '[tokens.m]\nfolder = "."\n' if with_tokens else ""
    return "".join(["[limits]\nidle_s = 600\n[gateway]\nmetrics_s = inf\n", tokens, *pods])


@contextlib.contextmanager
def server(template: list[str], engine_port: int) -> Iterator[Running]:
    """Run a server by its command, in which PORT stands for its port."""
    port = free_port()
    command = [each.replace(PORT, str(port)) for each in template]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until(lambda: answers(client, "/healthz"), what=" ".join(command))
        yield Running(process.pid, port, engine_port)
    finally:
        process.terminate()
        process.wait(timeout=40)


@contextlib.contextmanager
def connected(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Yield so many connections to a port."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(number)
        ]
