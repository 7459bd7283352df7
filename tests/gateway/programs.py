"""Programs beside a test: on free ports, stopped at its end; a failure shows their logs."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from tests.service.route_pods import Connection, Engine, Fleet, get
from tests.service.serving import MAIN, POD


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port of loopback that nobody has at the moment."""
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def attempt(port: int, request: bytes = get("/ready")) -> int:
    """Return the status of an answer; 0 if nobody gives one."""
    with suppress(OSError, asyncio.IncompleteReadError):
        client = Connection(*await asyncio.open_connection("127.0.0.1", port))
        try:
            await client.send(request)
            return (await client.head()).status
        finally:
            client.leave()
    return 0


async def listens(port: int) -> bool:
    """Whether anybody accepts connections."""
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
        return True
    return False


@asynccontextmanager
async def program(
    *command: str,
    is_ready: Callable[[str], Awaitable[bool]],
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a program for a block, from when `is_ready` says so of its log; that is polled.

    The log is shown if the block fails.
    """
    with tempfile.TemporaryFile() as log:
        running = subprocess.Popen(
            command, env={**os.environ, **(env or {})}, stdout=log, stderr=log
        )
        try:
            while not await is_ready(_text(log)):
                assert running.poll() is None, f"{command[0]} has ended"
                await asyncio.sleep(0.01)
            yield running
        except BaseException:
            sys.stderr.write(f"---- {' '.join(command)}\n{_text(log)}")
            raise
        finally:
            running.kill()
            running.wait()


def _text(log: IO[bytes]) -> str:
    return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")


async def ask(them: Fleet, port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request to what listens on a port before a gateway."""
    client = await them.connect(port)
    await client.send(request)
    head, body = await client.answer()
    client.leave()
    return head.status, body


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """Listen and never answer; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def config_of(folder: Path, engines: Mapping[str, Engine]) -> Path:
    """Write a fleet.toml of engines that publish nothing."""
    pods = [POD.format(name=name, folder=folder, url=each.url) for name, each in engines.items()]
    config = folder / "fleet.toml"
    config.write_text("".join(pods))
    return config


def route_command(folder: Path, engines: Mapping[str, Engine], port: int) -> tuple[str, ...]:
    """Return the command that runs `kvbraid route` before engines."""
    config = str(config_of(folder, engines))
    return (sys.executable, "-c", MAIN, "route", "--port", str(port), "--config", config)
