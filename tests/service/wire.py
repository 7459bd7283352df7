"""An application's connections without sockets: bytes in, bytes out, and a clock that is set.

`Wires` holds what uvicorn would: the loop, the server's state, the connections. Nothing waits.
"""

import asyncio
import json
from collections.abc import Callable

import uvicorn
from kvbraid.service.http.app import Application
from kvbraid.service.http.protocol import ScoreProtocol
from uvicorn.server import ServerState


class Transport(asyncio.Transport):
    """Keeps what is written; `unread` is what the client leaves in the buffer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2)})
        self.sent = bytearray()
        self.num_writes = 0
        self.unread = 0
        self.is_paused = False
        self.has_ended = False
        self._loop = loop
        self._is_closing = False
        self.lost: Callable[[Exception | None], None] = lambda _: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            assert not self.has_ended
            self.sent += data
            self.num_writes += 1

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.lost, None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Clock:
    """The loop, but for its time, which is `now`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


class Wire:
    """One connection."""

    def __init__(self, wires: "Wires") -> None:
        self._wires = wires
        self.transport = Transport(wires.loop)
        self.protocol = ScoreProtocol(wires.config, wires.state, {}, wires.clock)
        self.transport.lost = self.protocol.connection_lost
        self.protocol.connection_made(self.transport)

    def closed(self) -> bool:
        """Whether the server has ended its side."""
        return self.transport.is_closing() or self.transport.has_ended

    def send(self, data: bytes, *, settle: bool = True) -> "Wire":
        """Let a piece arrive, unless the connection is closed, and let the loop run dry."""
        if not self.closed():
            self.protocol.data_received(data)
        if settle:
            self._wires.settle()
        return self

    def hang_up(self) -> None:
        """The client is gone."""
        self.transport.close()
        self._wires.settle()

    def answers(self) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        """Status, headers and body of every answer so far; asserts that they are whole."""
        rest, found = bytes(self.transport.sent), []
        while rest:
            head, blank, rest = rest.partition(b"\r\n\r\n")
            assert blank, head
            line, *lines = head.split(b"\r\n")
            headers = dict(each.split(b": ", 1) for each in lines)
            status = int(line.split(b" ")[1])
            size = int(headers.get(b"content-length", b"0")) if status != 100 else 0
            assert len(rest) >= size
            found.append((status, headers, rest[:size]))
            rest = rest[size:]
        return found

    def refusal(self) -> tuple[int, str]:
        """Status and code of the last answer, which is in the one shape."""
        status, headers, body = self.answers()[-1]
        assert headers[b"content-type"] == b"application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message", "remedy"}
        assert error["message"].isprintable()
        return status, error["code"]


class Wires:
    """Every connection of one application; use it as a context manager."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.loop = asyncio.new_event_loop()
        self.clock = Clock(self.loop)
        self.state = ServerState()
        self.config = uvicorn.Config(
            app, http=ScoreProtocol, ws="none", lifespan="off", log_level="error"
        )

    def __enter__(self) -> "Wires":
        asyncio.set_event_loop(self.loop)
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self.state.connections):
            connection.transport.close()
        self.settle()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        self.loop.close()

    def connect(self) -> Wire:
        return Wire(self)

    def settle(self) -> None:
        """Run until only calls on threads, if any, are under way."""
        self.loop.run_until_complete(_several_turns())
        while any(
            each.has_unparsed() and not each.flow.read_paused for each in self.connections()
        ):
            self.loop.run_until_complete(_several_turns())

    def answer(self) -> None:
        """Run until every request that has arrived whole is answered."""
        self.settle()
        while any(map(_is_answered, self.connections())):
            self.loop.run_until_complete(asyncio.sleep(0.0002))
            self.settle()

    def connections(self) -> list[ScoreProtocol]:
        """Those that are open, or closing."""
        return [each for each in self.state.connections if isinstance(each, ScoreProtocol)]

    def finish(self) -> None:
        """Run until every answer is complete, also of calls on threads."""
        while self.state.tasks or any(each.has_unparsed() for each in self.connections()):
            self.loop.run_until_complete(asyncio.sleep(0))
            if self.state.tasks:
                self.loop.run_until_complete(asyncio.wait(list(self.state.tasks)))

    def later(self, seconds: float) -> None:
        """Let time pass, and the server look after its connections."""
        self.clock.now += seconds
        self.app.connection_limits.sweep(self.state.connections, self.clock.now)  # type: ignore[arg-type]
        self.settle()


def _is_answered(connection: ScoreProtocol) -> bool:
    transport = connection.transport
    assert isinstance(transport, Transport)
    is_over = transport.is_closing() or transport.has_ended
    return connection.waiting_since() is None and not is_over


async def _several_turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)
