"""TLS: what is encrypted, whom it lets in, new certificates, and handshakes that never end."""

import asyncio
import errno
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from kvbraid.cli import cli
from kvbraid.service.config import Limits
from kvbraid.service.fleet_file import examine
from kvbraid.service.http import handshakes
from kvbraid.service.http.connection_limits import ConnectionLimits

from tests.service.serving import serving, until

POD = """
[[pods]]
id = "a"
model = "m"
endpoint = "tcp://127.0.0.1:1"
"""
TLS = '[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n'
SCORE = {"model": "m", "token_ids": [1, 2]}


@dataclass
class Files:
    """A folder with a fleet.toml beside a certificate, its key, and who has signed it."""

    folder: Path
    authority: trustme.CA

    @property
    def toml(self) -> Path:
        return self.folder / "fleet.toml"

    def issue(self, authority: trustme.CA | None = None) -> None:
        self.authority = authority or self.authority
        made = self.authority.issue_cert("127.0.0.1", "localhost")
        made.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        made.private_key_pem.write_to_path(self.folder / "key.pem")
        self.authority.cert_pem.write_to_path(self.folder / "ca.pem")

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.pem")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    made = Files(tmp_path, authority)
    made.issue()
    made.toml.write_text(TLS + POD)
    return made


@contextmanager
def client(url: str, context: ssl.SSLContext) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, verify=context) as made:
        yield made


def refused(them: httpx.Client, reason: str) -> int:
    line = f'kvbraid_http_refused_total{{reason="{reason}"}} '
    found = [row for row in them.get("/metrics").text.splitlines() if row.startswith(line)]
    return int(float(found[0].removeprefix(line))) if found else 0


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("https://").partition(":")
    return host, int(port)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server has closed it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_everything_is_answered_over_tls_and_nothing_without(files: Files) -> None:
    log = files.folder / "log"
    with (
        log.open("w") as stderr,
        serving("--config", str(files.toml), stderr=stderr) as (process, url),
    ):
        assert url.startswith("https://127.0.0.1:")
        with client(url, files.context()) as them:
            assert them.get("/healthz").json() == {"status": "ok"}
            assert them.post("/v1/score", json=SCORE).status_code == 200
            assert them.post("/v1/score", json=SCORE | {"token_ids": [7] * 200_000}).is_success
            long = them.get("/healthz", headers={"x": "y" * (1 << 17)})  # And it is told why.
            assert (long.status_code, long.json()["error"]["code"]) == (431, "head_too_large")
            with pytest.raises(httpx.TransportError):
                httpx.get(url.replace("https", "http"))
            until(lambda: refused(them, "tls_handshake"), lambda number: number == 1)
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                httpx.get(url)
            assert until(lambda: refused(them, "tls_handshake"), lambda number: number == 2) == 2
        asked = ["pods", "--url", url, "--json"]
        told = CliRunner().invoke(cli, asked, env={"SSL_CERT_FILE": str(files.folder / "ca.pem")})
        assert json.loads(told.stdout)["pods"][0]["pod"] == "a"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert not re.search("Traceback|rror", log.read_text())


def test_a_new_certificate_is_used_without_a_restart_and_connections_stay(files: Files) -> None:
    with (
        serving("--config", str(files.toml)) as (_, url),
        client(url, files.context()) as before,
    ):
        assert before.get("/healthz").is_success
        (files.folder / "key.pem").write_text("half a key")
        found = until(
            lambda: before.get("/v1/config").json()["refused"], lambda told: told is not None
        )
        assert found["error"].startswith(f"{files.toml}: tls.certificate = ")
        files.issue(trustme.CA())  # Nobody touches fleet.toml.

        def is_new() -> bool:
            with client(url, files.context()) as after:
                try:
                    return after.get("/healthz").is_success
                except httpx.ConnectError:
                    return False

        assert until(is_new, bool)
        assert before.get("/v1/config").json()["refused"] is None


def test_clients_need_a_certificate_if_there_is_an_authority_for_them(files: Files) -> None:
    files.toml.write_text(TLS + 'client_ca = "ca.pem"\n' + POD)
    allowed, foreign = files.context(), files.context()
    files.authority.issue_cert("me@example.org").configure_cert(allowed)
    trustme.CA().issue_cert("me@example.org").configure_cert(foreign)
    with serving("--config", str(files.toml)) as (_, url):
        with client(url, allowed) as them:
            assert them.get("/v1/pods").is_success
        for context in (foreign, files.context()):
            with client(url, context) as them, pytest.raises(httpx.TransportError):
                them.get("/v1/pods")


def test_handshakes_that_never_end_take_no_places_and_have_a_time(files: Files) -> None:
    files.toml.write_text("[limits]\nconnections = 4\nrequest_s = 3\n" + TLS + POD)
    context = files.context()
    with serving("--config", str(files.toml)) as (process, url), ExitStack() as open_ones:
        silent = [
            open_ones.enter_context(socket.create_connection(address_of(url), timeout=20))
            for _ in range(12)
        ]
        with client(url, context) as them:
            assert them.get("/healthz").is_success
            assert refused(them, "evicted") >= 8
            assert all(map(is_closed, silent))
            assert until(lambda: refused(them, "tls_handshake"), bool) >= 1
            fds = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            assert sum(1 for _ in range(20) if them.get("/healthz").is_success) == 20
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) <= fds


def test_the_end_waits_for_no_handshake(files: Files) -> None:
    with (
        serving("--config", str(files.toml)) as (process, url),
        socket.create_connection(address_of(url), timeout=20) as silent,
    ):
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert is_closed(silent)
        assert process.wait(timeout=20) == 0


def test_tls_is_switched_on_and_off_by_a_start_alone(files: Files) -> None:
    with serving("--config", str(files.toml)) as (process, url):
        files.toml.write_text(POD)
        process.send_signal(signal.SIGHUP)
        with client(url, files.context()) as them:
            shown = until(lambda: them.get("/v1/config").json(), lambda it: it["waiting"])
        assert shown["waiting"] == ["tls"]
        assert shown["config"]["tls"]["certificate"] == "cert.pem"


def encrypt(path: Path) -> None:
    key = load_pem_private_key(path.read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[tls]\ncertificate = "cert.pem"\n', "tls: Object missing required field `key`"),
        (TLS.replace("cert.pem", "none"), "tls.certificate = '{folder}/none': No such file"),
        (TLS.replace('key.pem"', 'ca.pem"'), "tls.certificate = '{folder}/cert.pem' with tls.key"),
        (
            TLS.replace("key.pem", "wrong.pem"),
            "tls.certificate = '{folder}/cert.pem' with tls.key",
        ),
        (TLS.replace("key.pem", "secret.pem"), "tls.certificate = '{folder}/cert.pem' with tls.k"),
        (TLS + 'client_ca = "key.pem"\n', "tls.client_ca = '{folder}/key.pem': "),
        (TLS + 'client_ca = "."\n', "tls.client_ca = '{folder}': Is a directory"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(
    files: Files, authority: trustme.CA, text: str, told: str
) -> None:
    other = authority.issue_cert("other").private_key_pem
    other.write_to_path(files.folder / "wrong.pem")
    other.write_to_path(files.folder / "secret.pem")
    encrypt(files.folder / "secret.pem")
    files.toml.write_text(text)
    config, faults = examine(files.toml)
    assert config is None
    assert [fault[: len(told.format(folder=files.folder))] for fault in faults] == [
        told.format(folder=files.folder)
    ]
    assert "; give" in faults[0] or "missing" in faults[0]


class Full(socket.socket):
    """A listener of a process that has no descriptors left, twice."""

    failures = 2

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Silent(asyncio.Protocol):
    """What a connection would become; its handshake never ends."""

    handshake: object = None


def test_a_process_without_descriptors_accepts_again_when_it_has_some(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "_REST_S", 0.01)
    limits, connections = ConnectionLimits(Limits()), set[Any]()

    def context() -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def serve() -> None:
        made = handshakes.Handshakes(context, limits, connections, Silent)  # type: ignore[arg-type]
        with Full() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            made.listen(listener)
            with socket.create_connection(listener.getsockname()):
                while not connections:
                    await asyncio.sleep(0.01)
                made.close()
                for each in connections.copy():
                    each.shutdown()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)

    asyncio.run(serve())
    assert not connections
    assert caplog.messages == ["no connection can be accepted: Too many open files"] * 2
