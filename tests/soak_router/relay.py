"""A TCP relay with a fixed port before a socket whose port changes: cuts and closes at will.

The gateway connects to the relay, so an engine may restart on other ports, and a connection can
be cut without the engine's knowing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

_BLOCK: Final = 64 << 10

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Relay:
    """Passes bytes on to `target`, a local port, while it is open."""

    def __init__(self) -> None:
        self.port = Port()
        self.target = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept connections."""
        if self._server is None:
            self._server = await self.port.listen(self._serve)

    def cut(self) -> None:
        """Abort every connection; new ones are accepted if the relay is open."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """Abort every connection and refuse further ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        self._writers.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            source, other = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(other)
            await asyncio.gather(_pump(reader, other), _pump(source, writer))
        except OSError:
            pass
        finally:
            for each in (writer, other):
                if each is not None:
                    each.transport.abort()
                    self._writers.discard(each)
            self._pumps.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Port:
    """A local port that stays ours while nobody listens on it: connections are refused then."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    async def listen(self, serve: Serve) -> asyncio.Server:
        """Serve the connections that come from now on."""
        return await asyncio.start_server(serve, "127.0.0.1", self.number, reuse_address=True)

    def release(self) -> None:
        """Let others have it."""
        self._socket.close()
