"""What a supervisor hears of a server, over a real datagram socket."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from kvbraid.service.supervision import Supervisor

from tests.service.serving import serving

LIMIT_US = "90000"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that processes started in this test are to notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", LIMIT_US)
        yield listener


def drain(listener: socket.socket) -> list[bytes]:
    listener.settimeout(0.5)
    words: list[bytes] = []
    with suppress(TimeoutError):
        while len(words) < 1000:
            words.append(listener.recv(100))
    return words


@pytest.mark.parametrize("name", ["serve", "route"])
def test_a_server_says_that_it_is_ready_that_it_is_alive_and_that_it_ends(
    told: socket.socket, name: str
) -> None:
    with serving(name=name) as (process, url):
        assert told.recv(100) == b"READY=1"
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert [told.recv(100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    words = drain(told)
    assert words.count(b"STOPPING=1") == 1
    assert set(words) <= {b"STOPPING=1", b"WATCHDOG=1"}


def test_a_loop_that_hangs_is_silent(told: socket.socket) -> None:
    async def hang() -> None:
        supervisor = Supervisor()
        supervisor.ready()
        assert await asyncio.to_thread(lambda: [told.recv(100) for _ in range(3)]) == [
            b"READY=1",
            b"WATCHDOG=1",
            b"WATCHDOG=1",
        ]
        drain(told)  # What was sent before the loop came here. From now on it waits.
        assert drain(told) == []
        told.settimeout(20)
        assert await asyncio.to_thread(told.recv, 100) == b"WATCHDOG=1"
        supervisor.close()
        await asyncio.to_thread(drain, told)
        assert await asyncio.to_thread(drain, told) == []

    asyncio.run(hang())


def heard(listener: socket.socket, **environment: str) -> list[bytes]:
    """Return what a supervisor with these variables hears of a server that becomes ready."""

    async def be_ready() -> list[bytes]:
        supervisor = Supervisor(environment)
        supervisor.ready()
        supervisor.close()
        return await asyncio.to_thread(drain, listener)

    return asyncio.run(be_ready())


def test_an_address_may_be_abstract() -> None:
    name = f"kvbraid-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        assert heard(listener, NOTIFY_SOCKET=f"@{name}") == [b"READY=1"]


def test_the_watchdog_of_another_process_is_not_fed(told: socket.socket) -> None:
    given = {"NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": LIMIT_US}
    assert heard(told, **given) == [b"READY=1", b"WATCHDOG=1"]
    assert heard(told, **given, WATCHDOG_PID=str(os.getpid())) == [b"READY=1", b"WATCHDOG=1"]
    assert heard(told, **given, WATCHDOG_PID="1") == [b"READY=1"]


def test_without_a_socket_nothing_is_sent(told: socket.socket) -> None:
    assert heard(told, WATCHDOG_USEC=LIMIT_US) == []


def test_a_supervisor_that_is_gone_is_noted_and_stops_nobody(
    told: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert heard(told, NOTIFY_SOCKET=str(tmp_path / "gone")) == []
    (line,) = caplog.messages
    assert "gone' does not take READY=1: " in line
