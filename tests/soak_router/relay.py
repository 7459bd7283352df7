"""A TCP relay with a fixed port before a socket whose port changes: cuts and closes at will.

The gateway connects to the relay, so an engine may restart on other ports, and a connection can
be cut without the engine's knowing.
"""

import asyncio
from contextlib import suppress

_BLOCK = 64 << 10


class Relay:
    """Passes bytes on to `target`, a local port, while it is open."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept connections, always on the port of the first time."""
        if self._server is None:
            self._server = await listening(self._serve, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

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


async def listening(serve: object, port: int) -> asyncio.Server:
    """Listen on a port that was ours before; 0 takes any."""
    for _ in range(100):
        with suppress(OSError):
            return await asyncio.start_server(serve, "127.0.0.1", port)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)  # Some connection out of this machine has it for the moment.
    raise OSError(f"port {port} stays taken")
