"""An engine that answers at once, and servers before it: our gateway, and whatever has a command.

All pods are that one engine, and it publishes no event. It does what a body asks for: `after_ms`
delays an answer, `pace_ms` the events of a stream. Each event says when it was written.
"""

import contextlib
import functools
import multiprocessing
import os
import re
import shutil
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
ENGINE: Final = "{engine}"
"""In a command or a configuration: the port of its engine."""
OTHER: Final = "{other}"
"""A port that nobody uses."""
CONFIG: Final = "{config}"
"""The path of its configuration."""
POD: Final = """
[[pods]]
id = "p{number}"
model = "m"
endpoint = "tcp://127.0.0.1:{events}"
url = "http://127.0.0.1:{port}"
[[pods.topology.groups]]
kind = "full_attention"
block_size = 16
"""
_ROOT: Final = Path(__file__).parents[2]
_PLACES: Final = (os.environ.get("PATH", ""), "/usr/sbin", str(_ROOT / ".venv-gateway" / "bin"))


class Running(NamedTuple):
    """A server: its process and its port, and the port of its engine."""

    pid: int
    port: int
    engine: int


def installed(program: str) -> str | None:
    """Return the path of a program that is no part of kvbraid; None if it is not there."""
    return shutil.which(program, path=":".join(_PLACES))


Servers = Callable[[], AbstractContextManager[Running]]
"""Runs a server and its engine."""


def engine(ready: Connection) -> None:
    """Answer with 200 bytes of JSON, or with EVENTS events; send the ports of both sockets.

    Every GET is answered with the list of models: rivals ask for it, and for health.
    """
    import asyncio
    import time

    import uvloop
    import zmq

    models = b'{"data":[{"id":"m","object":"model"}]}'
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
                fields = body[:128] + body[-1024:]  # Routers put them in an order of their own.
                asked = dict(re.findall(rb'"(\w+)":(\w+)', fields))
                await asyncio.sleep(int(asked.get(b"after_ms", 0)) / 1000)
                if asked.get(b"stream") == b"true":
                    await stream(writer, int(asked.get(b"pace_ms", 2)) / 1000)
                else:
                    answer = models if head.startswith(b"GET") else unary
                    writer.write(whole % (len(answer), answer))

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
    with running_engine() as (port, events), tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "fleet.toml"
        config.write_text(_config(num_pods, port, events, with_tokens=bool(tokenizer)))
        (Path(folder) / "tokenizer.json").write_text(tokenizer)
        command = [sys.executable, "-m", "kvbraid", "route", "--config", str(config)]
        with server([*command, "--log-level", "error", "--port", PORT], port) as running:
            yield running


@contextlib.contextmanager
def running_engine() -> Iterator[tuple[int, int]]:
    """Run an engine; yield its port, and that of its events."""
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
    pods = (POD.format(number=each, events=events, port=port) for each in range(num_pods))
    tokens = '[tokens.m]\nfolder = "."\n' if with_tokens else ""
    return "".join(["[limits]\nidle_s = 600\n[gateway]\nmetrics_s = inf\n", tokens, *pods])


@contextlib.contextmanager
def server(
    template: list[str], engine_port: int, *, config: str = "", ready: str = "/healthz"
) -> Iterator[Running]:
    """Run a server from when it answers; PORT, ENGINE, OTHER and CONFIG are filled in.

    Args:
        template: Its command.
        engine_port: Where its engine listens.
        config: The text of its configuration, in which PORT and ENGINE are filled in.
        ready: A path that is answered with success when it can serve.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        ports = {PORT: port, ENGINE: engine_port, OTHER: free_port(), CONFIG: path}

        def filled(text: str) -> str:
            return functools.reduce(lambda it, key: it.replace(key, str(ports[key])), ports, text)

        path.write_text(filled(config))
        command = list(map(filled, template))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                wait_until(lambda: answers(client, ready), what=" ".join(command))
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
