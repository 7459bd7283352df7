"""A server that starts from a neighbour, and neighbours on their bad days."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import httpx
import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodId
from kvbraid.service import neighbour as module
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.keys import digest, new_key
from kvbraid.service.neighbour import ASK_S, Neighbour, NoSnapshotError
from kvbraid.service.registry import Service
from kvbraid.service.snapshots import Snapshots

from tests.differential.fleet_worlds import known
from tests.service.engines import LOOPBACK, open_publisher
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.saved import (
    POD,
    SETTLED,
    RestingFeed,
    an_index,
    full_index,
    has_come,
    row_of,
    snapshots_of,
)
from tests.service.serving import serving, until
from tests.service.stores import stored

Handler = BaseHTTPRequestHandler
Behaviour = Callable[[Handler], None]
OTHER: Final = PodId("b")
REFUSAL: Final = b'{"error": {"code": "unauthorized", "message": "who?", "remedy": ""}}'


@contextmanager
def a_neighbour(behaves: Behaviour) -> Iterator[tuple[str, list[str]]]:
    """A server that does this to whoever asks; its URL, and the paths that it was asked for."""
    asked: list[str] = []

    class Scripted(Handler):
        def do_GET(self) -> None:  # noqa: N802 - the name that it is called by
            asked.append(self.path)
            behaves(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=partial(server.serve_forever, 0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def says(body: bytes, status: int = 200, *, length: int | None = None) -> Behaviour:
    def behave(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return behave


def says_nothing(handler: Handler) -> None:
    handler.rfile.read(1)  # Until whoever asks has gone.


def drips(handler: Handler, byte: bytes = b" ") -> None:
    """One byte now and then, and no end: also of a head."""
    over = threading.Event()
    while not over.wait(0.01):
        try:
            handler.wfile.write(byte)
        except OSError:
            over.set()


def drips_a_body(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000000")
    handler.end_headers()
    drips(handler)


def drips_a_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
    drips(handler, b"x")


def speaks_no_http(handler: Handler) -> None:
    handler.wfile.write(b"nonsense\r\n\r\n")


def sends_elsewhere(handler: Handler) -> None:
    handler.send_response(307)
    handler.send_header("location", "/elsewhere")
    handler.send_header("content-length", "0")
    handler.end_headers()


def asking(folder: Path, url: str, index: FleetIndex | None = None) -> Snapshots:
    journal = Service(FakeIndex(), FakeFeed()).journal
    return Snapshots(
        folder, index or an_index(), journal=journal, neighbour=Neighbour(url, key="k")
    )


def test_a_pod_is_what_the_neighbour_knows_and_not_what_an_older_file_says(tmp_path: Path) -> None:
    old, new = an_index(), full_index()
    assert snapshots_of(tmp_path, old).save(POD, RestingFeed(True))
    sent = snapshots_of(tmp_path, new).give(POD, RestingFeed(False, True))
    assert sent is not None
    with a_neighbour(says(sent)) as (url, asked):
        index = an_index()
        snapshots = asking(tmp_path, url + "/", index)
        assert snapshots.load(POD, 1) == SETTLED
    assert asked == ["/v1/pods/a/b/snapshot"]
    assert known(index) == known(new)
    assert (snapshots.counts["fetched"], snapshots.counts["loaded"]) == (1, 0)


def test_a_pod_that_is_never_at_rest_is_given_to_nobody(tmp_path: Path) -> None:
    snapshots = snapshots_of(tmp_path, full_index())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvbraid.service.snapshots.LAST_S", 0.0)
        assert snapshots.give(POD, RestingFeed(False)) is None
    assert snapshots.counts["given"] == 0


WHOLE: Final = full_index().save(POD, note='[[3,9,-1,true,""]]')


def with_byte(at: int, byte: int) -> bytes:
    return WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (WHOLE[: len(WHOLE) // 2], "cut"),
        (WHOLE + b"more", "cut"),
        (b"", "foreign"),
        (b"<html>", "foreign"),
        (with_byte(8, 0xFF), "newer"),
        (with_byte(8, 0), "older"),
        (with_byte(60, WHOLE[60] ^ 1), "damaged"),
        (an_index(bytes(32)).save(POD, note='[[3,9,-1,true,""]]'), "other_secret"),
        (full_index().save(POD, note='[[3,9,-1,true,""],[3,9,-1,true,""]]'), "impossible"),
        (full_index().save(POD, note="rubbish"), "impossible"),
    ],
)
def test_what_a_neighbour_sends_is_refused_as_a_file_is_and_the_own_file_counts(
    tmp_path: Path, sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert snapshots_of(tmp_path, full_index()).save(POD, RestingFeed(True))
    with a_neighbour(says(sent)) as (url, _):
        index = an_index()
        snapshots = asking(tmp_path, url, index)
        assert snapshots.load(POD, 1) == SETTLED
    assert snapshots.counts[f"refused_{reason}"] == 1
    assert (snapshots.counts["fetched"], snapshots.counts["loaded"]) == (0, 1)
    assert known(index) == known(full_index())
    assert [line for line in caplog.messages if url in line and reason in line]


def test_a_snapshot_of_another_pod_is_refused(tmp_path: Path) -> None:
    index = full_index()
    index.register(OTHER, model="m")
    with a_neighbour(says(index.save(OTHER, note='[[3,9,-1,true,""]]'))) as (url, _):
        snapshots = asking(tmp_path, url)
        assert snapshots.load(POD, 1) == []
    assert snapshots.counts["refused_other_pod"] == 1


@pytest.mark.parametrize(
    ("behaves", "why", "is_last"),
    [
        (says_nothing, "slow", True),
        (drips_a_body, "slow", True),
        (drips_a_head, "slow", True),
        (speaks_no_http, "failed", True),
        (says(WHOLE[:50], length=len(WHOLE)), "failed", True),
        (says(b"0" * 101), "too_long", False),
        (
            says(b'{"error": {"code": "c", "message": "who?", "remedy": ""}}', 401),
            "refused",
            False,
        ),
        (says(b"\xff<html>", 502), "refused", False),
        (says(b"", 500), "refused", False),
        (sends_elsewhere, "refused", False),
    ],
)
def test_a_neighbour_on_a_bad_day_costs_a_limited_time_and_no_pod(
    behaves: Behaviour,
    why: str,
    is_last: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    with a_neighbour(behaves) as (url, asked):
        index = an_index()
        index.register(OTHER, model="m")
        snapshots = asking(tmp_path, url, index)
        assert [snapshots.load(pod, 1) for pod in (POD, OTHER)] == [[], []]
    assert len(asked) == (1 if is_last else 2)
    assert snapshots.counts[f"neighbour_{why}"] == len(asked)
    assert all(url in line and why in line for line in caplog.messages)
    assert len(caplog.messages) == len(asked)


def test_a_neighbour_that_is_down_is_asked_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    snapshots = asking(tmp_path, f"http://127.0.0.1:{port}")
    assert [snapshots.load(POD, 1) for _ in range(2)] == [[], []]
    assert +snapshots.counts == {"neighbour_failed": 1}


def test_an_https_neighbour_whose_certificate_nobody_knows_is_not_believed() -> None:
    with a_neighbour(says(WHOLE)) as (url, _), pytest.raises(NoSnapshotError) as it:
        Neighbour(url.replace("http:", "https:")).snapshot(POD)
    assert it.value.why == "failed"


def test_a_pod_that_is_found_later_is_not_asked_for() -> None:
    now = [0.0]
    with a_neighbour(says(WHOLE)) as (url, asked):
        neighbour = Neighbour(url, clock=lambda: now[0])
        now[0] = ASK_S - 1
        assert neighbour.snapshot(POD) == WHOLE
        now[0] = ASK_S
        assert neighbour.snapshot(POD) is None
    assert len(asked) == 1


# With processes: a server that has run for long, and one that starts.

CONFIG: Final = """
[server]
ready_after_s = 0
open_rights = ["read", "explain"]
[[keys]]
name = "neighbour"
sha256 = "{hash}"
rights = ["snapshot"]
[index]
secret_file = "secret"
snapshots = "{folder}"
{more}
[[pods]]
id = "a/snapshot"
model = "m"
endpoint = "{engine.endpoint}"
replay_endpoint = "{engine.replay_endpoint}"
topology = {{ groups = [{{ kind = "full_attention", block_size = 4 }}] }}
"""


@contextmanager
def a_server(
    folder: Path, engine: Publisher, key: str, name: str, more: str = ""
) -> Iterator[str]:
    config, hashed = folder / f"{name}.toml", digest(key.encode()).hex()
    config.write_text(CONFIG.format(hash=hashed, folder=name, more=more, engine=engine))
    with serving("--config", str(config)) as (process, url):
        yield url
        process.terminate()
        assert process.wait(20) == 0


def is_exact(row: dict[str, object]) -> bool:
    return row["state"] == "exact"


def counted(url: str, what: str) -> float:
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(f'kvbraid_snapshots_total{{what="{what}"}}'):
            return float(line.split()[-1])
    return 0.0


def lower(url: str, first: int) -> tuple[str, int]:
    body = {"model": "m", "token_ids": list(range(4 * first, 4 * first + 33))}
    (row,) = httpx.post(f"{url}/v1/score", json=body).json()["pods"]
    return row["state"], row["lower"]


def test_a_second_server_starts_from_the_first_and_then_follows_the_engine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    key = new_key()
    with open_publisher(replay_endpoint=LOOPBACK, buffer_batches=1) as engine:
        with a_server(tmp_path, engine, key, "first") as first:
            engine.publish(stored(0, 8))
            until(partial(row_of, first), partial(has_come, 0))
            engine.publish(stored(100, 8))  # Batch 0 is in no buffer any more.
            until(partial(row_of, first), partial(has_come, 1))
            path = f"{first}/v1/pods/a/snapshot/snapshot"
            assert httpx.get(path).status_code == 401
            assert httpx.get(f"{first}/v1/pods/a/snapshot").status_code == 401
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.head(path, headers=headers).headers["content-type"].endswith("stream")
            unknown = httpx.get(f"{first}/v1/pods/a/snapshot", headers=headers)
            assert unknown.json()["error"]["code"] == "unknown_pod"
            more = f'neighbour = "{first}"\nneighbour_key = "{key}"'
            with a_server(tmp_path, engine, key, "second", more) as second:
                row = until(partial(row_of, second), is_exact)
                assert (row["state"], row["last_seq"]) == ("exact", 1)
                assert (counted(second, "fetched"), counted(first, "given")) == (1, 2)
                shown = httpx.get(f"{second}/v1/config").text
                assert key not in shown
                assert "***" in shown
                for each in (first, second):
                    assert lower(each, 0) == lower(each, 100) == ("exact", 32)
                engine.publish(stored(200, 8))
                until(partial(lower, second, 200), lambda it: it == ("exact", 32))
        with a_server(tmp_path, engine, key, "third", more) as third:  # The neighbour is down.
            assert counted(third, "neighbour_failed") == 1
            until(partial(row_of, third), lambda row: row["state"] == "degraded")
            assert lower(third, 0) == ("degraded", 0)


def test_a_neighbour_knows_an_engine_that_has_started_again_since(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    key = new_key()
    with open_publisher(replay_endpoint=LOOPBACK) as engine:
        endpoint, replay_endpoint = engine.endpoint, engine.replay_endpoint
        with a_server(tmp_path, engine, key, "first") as first:
            engine.publish(stored(0, 8))
            until(partial(row_of, first), is_exact)
            sent = httpx.get(
                f"{first}/v1/pods/a/snapshot/snapshot", headers={"authorization": f"Bearer {key}"}
            ).content
    with (
        open_publisher(endpoint, replay_endpoint=replay_endpoint) as engine,
        a_neighbour(says(sent)) as (url, _),
    ):
        engine.publish(stored(700, 8))
        with a_server(tmp_path, engine, key, "second", f'neighbour = "{url}"') as second:
            until(partial(lower, second, 700), lambda it: it == ("exact", 32))
            assert counted(second, "fetched") == 1
            assert lower(second, 0) == ("exact", 0)


def test_a_server_that_keeps_no_snapshots_gives_none() -> None:
    with serving() as (process, url):
        answer = httpx.get(f"{url}/v1/pods/a/snapshot")
        assert answer.json()["error"]["code"] == "unknown_pod"
        process.terminate()
        assert process.wait(20) == 0
