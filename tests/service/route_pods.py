"""Engines of which a test decides every byte, a gateway before them, and a client: real sockets.

All of them run on the loop of one test, so a test waits for events and never for time.
"""

import asyncio
import functools
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, ParamSpec

import msgspec
import uvicorn
import uvloop
from kvbraid.gateway.app import Gateway
from kvbraid.ids import PodId
from kvbraid.service.config import Limits, PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.server import _uvicorn_config
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.listed_tokens import ListedTokens

_P = ParamSpec("_P")
PATIENCE_S = 60
"""After this a test has failed."""


def in_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run a test on a loop of its own; no task may be left over that does not end by itself."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        async def patient() -> None:
            await asyncio.wait_for(test(*args, **kwargs), PATIENCE_S)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            _, left = await asyncio.wait(others, timeout=10) if others else (set(), set())
            assert not left, left

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(patient())

    return run


async def until(is_so: Callable[[], bool]) -> None:
    """Let everything else run until it is so."""
    while not is_so():
        await asyncio.sleep(0.001)


async def until_still(number: Callable[[], int]) -> None:
    """Wait until a number is no longer zero, and then has not changed for 0.2 s."""
    last, same = 0, 0
    while same < 20:
        await asyncio.sleep(0.01)
        same = same + 1 if number() == last and last else 0
        last = number()


# ---- engines --------------------------------------------------------------------------------


@dataclass
class Asked:
    """One request that came to an engine; `gone` is set when its connection is closed."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes, status: str = "200 OK", more: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}"
        await self.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)

    async def begin(self, content_type: str = "text/event-stream") -> None:
        await self.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, data: str) -> None:
        await self.chunk(f"data: {data}\n\n".encode())

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    def die(self) -> None:
        self.writer.transport.abort()


Behaviour = Callable[[Asked], Awaitable[None]]


async def never_answers(asked: Asked) -> None:
    await asked.gone.wait()


async def greets(asked: Asked) -> None:
    """Answer what a short completion answers."""
    await asked.answer(b'{"choices": []}')


def two_events(go_on: asyncio.Event) -> Behaviour:
    """Stream an event, wait, and stream another one."""

    async def streams(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()
        await asked.event("2")
        await asked.end()

    return streams


class Engine:
    """An HTTP server; `behaviour` writes its answers, `asked` are the requests that came."""

    def __init__(self, behaviour: Behaviour = greets) -> None:
        self.behaviour = behaviour
        self.asked: list[Asked] = []
        self.num_connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Engine"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self.writers:
                writer.transport.abort()
            await until(lambda: not self.num_open)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    num_open = 0

    async def request(self, number: int) -> Asked:
        """Wait until so many requests have come; return the last of them."""
        await until(lambda: len(self.asked) >= number)
        return self.asked[number - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.num_open += 1
        connection = self.num_connections
        self.writers.append(writer)
        answers: list[asyncio.Task[None]] = []
        mine: list[Asked] = []
        try:
            while True:
                asked = await _read_request(reader, writer, connection)
                self.asked.append(asked)
                mine.append(asked)
                answers.append(asyncio.ensure_future(self.behaviour(asked)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for asked in mine:
                asked.gone.set()
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
            await _close(writer)
            self.num_open -= 1


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
) -> Asked:
    line, headers = await _read_head(reader)
    asked = Asked(line, headers, b"", connection, writer)
    asked.body = await _read_body(reader, dict(headers))
    return asked


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.strip().split("\r\n")
    pairs = [each.partition(":") for each in fields]
    return line, [(name.lower(), value.strip()) for name, _, value in pairs]


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while piece := await _read_chunk(reader):
        body += piece
    return body


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    return (await reader.readexactly(size + 2))[:-2]


# ---- a client -------------------------------------------------------------------------------


@dataclass
class Head:
    status: int
    headers: dict[str, str]


class Connection:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Head:
        line, headers = await _read_head(self.reader)
        return Head(int(line.split()[1]), dict(headers))

    async def chunk(self) -> bytes:
        """Return the next chunk of a stream; nothing at its end."""
        return await _read_chunk(self.reader)

    async def answer(self) -> tuple[Head, bytes]:
        head = await self.head()
        return head, await _read_body(self.reader, head.headers)

    async def is_cut(self) -> bool:
        """Whether the connection ends here, in the middle of an answer."""
        return await self.reader.read(1) == b""

    def leave(self) -> None:
        self.writer.transport.abort()


def post(path: str = "/v1/completions", body: bytes | None = None, **headers: str | None) -> bytes:
    """Return the bytes of a request; None leaves a header out."""
    body = prompt() if body is None else body
    fields = {"host": "gateway", "content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body


def new_posts() -> Iterator[bytes]:
    """Yield the bytes of requests whose prompts have nothing in common, so no pod is preferred."""
    return (post(body=prompt(prompt=[number] * 32)) for number in itertools.count())


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: gateway\r\n\r\n".encode()


def prompt(num_tokens: int = 32, **more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": list(range(num_tokens)), **more}).encode()


# ---- the gateway ----------------------------------------------------------------------------


@dataclass
class Fleet:
    """A running gateway, its parts, and its engines by the name of their pods."""

    gateway: Gateway
    service: Service
    index: FakeIndex
    engines: dict[str, Engine]
    port: int
    stack: AsyncExitStack
    end: Callable[[], Awaitable[None]]
    sweep_clients: Callable[[float], None]

    @property
    def proxy(self) -> Any:  # noqa: ANN401 - tests look at its parts.
        return self.gateway.proxy

    @property
    def num_booked(self) -> int:
        return self.service.picking.num_booked()

    def now(self, later_s: float = 0.0) -> float:
        return asyncio.get_running_loop().time() + later_s

    async def connect(self, port: int | None = None) -> Connection:
        """Connect to the gateway, or to what listens on another port before it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port)
        self.stack.push_async_callback(_close, writer)
        return Connection(reader, writer)

    async def ask(self, request: bytes) -> tuple[Head, bytes]:
        connection = await self.connect()
        await connection.send(request)
        return await connection.answer()

    async def begin(
        self, request: bytes | None = None, port: int | None = None
    ) -> tuple[Connection, Head]:
        """Ask, and read the head of an answer that goes on."""
        connection = await self.connect(port)
        await connection.send(post() if request is None else request)
        return connection, await connection.head()

    def reports(self, event: str) -> int:
        return self.service.picking.reports[event, "noted"]


@asynccontextmanager
async def fleet(
    *behaviours: Behaviour,
    options: ForwardingOptions | None = None,
    limits: Limits | None = None,
    dp_size: int = 1,
    access: Access | None = None,
    max_running: int | None = None,
    polls: bool = False,
) -> AsyncIterator[Fleet]:
    """Run a gateway before an engine of each behaviour; their pods are a, b, c and so on."""
    options = options or ForwardingOptions()
    if not polls:
        options = msgspec.structs.replace(options, metrics_s=inf)
    index = FakeIndex()
    service = Service(index, FakeFeed(), limits=limits)
    gateway = Gateway(service, ListedTokens(), options, access=access)
    async with AsyncExitStack() as stack:
        engines = {}
        for name, behaviour in zip("abcdef", behaviours, strict=False):
            engines[name] = await stack.enter_async_context(Engine(behaviour).running())
            service.put(PodId(name), _pod(engines[name].url, dp_size, max_running=max_running))
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(_uvicorn_config(gateway, 1))
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[listener])
        port = listener.getsockname()[1]

        async def end() -> None:
            await server.shutdown(sockets=[listener])

        def sweep_clients(later_s: float) -> None:
            now = asyncio.get_running_loop().time() + later_s
            gateway.connection_limits.sweep(server.server_state.connections, now)  # type: ignore[arg-type]

        try:
            async with AsyncExitStack() as clients:
                yield Fleet(gateway, service, index, engines, port, clients, end, sweep_clients)
        finally:
            await end()
            await gateway.close()
        assert service.picking.num_booked() == 0
        assert gateway.proxy.in_flight == 0
        assert gateway.connection_limits.held_bytes == 0


def _pod(
    url: str | None, dp_size: int = 1, model: str = "m", max_running: int | None = None
) -> PodConfig:
    serving = Serving(url=url, max_running=max_running)
    return PodConfig(model=model, endpoint="tcp://h:1", dp_size=dp_size, serving=serving)
