"""Snapshots of a service: what a restart knows again, and what bad days cost."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TextIO

import httpx
import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events.digest import digests_under
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodState
from kvbraid.service.config import PodConfig
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.registry import Service
from kvbraid.service.snapshots import KEPT_S, Snapshots, read_secret, saving, write_whole

from tests.differential.fleet_worlds import known
from tests.service.engines import LOOPBACK, LossyPublisher, open_publisher
from tests.service.fakes import FakeIndex
from tests.service.saved import (
    POD,
    SECRET,
    SETTLED,
    RestingFeed,
    an_index,
    full_index,
    has_come,
    row_of,
    snapshots_of,
)
from tests.service.serving import MAIN, serving, until
from tests.service.stores import FULL, stored, wait_until


def saved_in(folder: Path) -> Path:
    assert snapshots_of(folder, full_index()).save(POD, RestingFeed(True))
    (path,) = folder.iterdir()
    return path


def test_what_was_saved_is_loaded_with_how_far_it_was_settled(tmp_path: Path) -> None:
    path = saved_in(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    index = an_index()
    snapshots = snapshots_of(tmp_path, index)
    assert snapshots.load(POD, 1) == SETTLED
    assert snapshots.counts["loaded"] == 1
    assert known(index) == known(full_index())


def test_a_pod_without_a_file_is_cold_and_nothing_is_refused(tmp_path: Path) -> None:
    snapshots = snapshots_of(tmp_path, an_index())
    assert snapshots.load(POD, 1) == []
    assert +snapshots.counts == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda saved: saved[: len(saved) // 2], "cut"),
        (lambda saved: b"", "foreign"),
        (lambda saved: saved[:8] + b"\xff" + saved[9:], "newer"),
        (lambda saved: saved[:60] + bytes([saved[60] ^ 1]) + saved[61:], "damaged"),
    ],
)
def test_a_bad_file_costs_warmth_alone_and_is_counted(
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = saved_in(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    index = an_index()
    snapshots = snapshots_of(tmp_path, index)
    assert snapshots.load(POD, 1) == []
    assert snapshots.counts[f"refused_{reason}"] == 1
    assert index.pods() == an_index().pods()
    (line,) = caplog.messages
    assert reason in line
    assert "remove it" in line


def test_a_file_of_another_secret_is_refused(tmp_path: Path) -> None:
    saved_in(tmp_path)
    snapshots = snapshots_of(tmp_path, an_index(bytes(32)))
    assert snapshots.load(POD, 1) == []
    assert snapshots.counts["refused_other_secret"] == 1


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = saved_in(tmp_path)
    path.unlink()
    path.mkdir()
    snapshots = snapshots_of(tmp_path, an_index())
    assert snapshots.load(POD, 1) == []
    assert snapshots.counts["refused_unreadable"] == 1


@pytest.mark.parametrize("note", ["", "[]", "[[1]]", "rubbish"])
def test_a_file_that_does_not_say_how_far_it_is_settled_is_refused(
    tmp_path: Path, note: str
) -> None:
    path = saved_in(tmp_path)
    path.write_bytes(full_index().save(POD, note=note))
    index = an_index()
    snapshots = snapshots_of(tmp_path, index)
    assert snapshots.load(POD, 1) == []
    assert snapshots.counts["refused_impossible"] == 1
    assert held(index, 0)[1] == 0


def test_a_full_disk_is_said_once_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved_in(tmp_path)
    before = path.read_bytes()
    snapshots = snapshots_of(tmp_path, full_index())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert snapshots.save(POD, RestingFeed(True))
        assert snapshots.save(POD, RestingFeed(True))
    assert snapshots.counts["failed"] == 2
    assert "No space left" in snapshots.problem
    assert [path.read_bytes()] == [other.read_bytes() for other in tmp_path.iterdir()] == [before]
    assert len(caplog.messages) == 1
    assert snapshots.save(POD, RestingFeed(True))
    assert (snapshots.problem, snapshots.counts["written"]) == ("", 1)


KILLED = """
import os, pathlib, sys, time
from kvbraid.service.snapshots import write_whole
os.fsync = lambda _: (print("beside", flush=True), time.sleep(60))
write_whole(pathlib.Path(sys.argv[1]), b"new")
"""


def test_a_writer_that_is_killed_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"whole")
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "beside\n"
        process.kill()
    assert path.read_bytes() == b"whole"
    assert len(list(tmp_path.iterdir())) == 2
    write_whole(path, b"another")
    assert [other.read_bytes() for other in tmp_path.iterdir()] == [b"another"]


def test_a_pod_that_is_not_at_rest_is_saved_when_it_is_and_else_counted(tmp_path: Path) -> None:
    snapshots, over = snapshots_of(tmp_path, full_index()), threading.Event()
    snapshots.save_all([POD], RestingFeed(False, False, True), within_s=10, over=over)
    assert (snapshots.counts["written"], snapshots.counts["late"]) == (1, 0)
    snapshots.save_all([POD], RestingFeed(False), within_s=0, over=over)
    assert (snapshots.counts["written"], snapshots.counts["late"]) == (1, 1)
    assert list(snapshots.ages_s()) == [POD]


def test_the_end_of_a_server_is_the_last_time_to_save(tmp_path: Path) -> None:
    snapshots = snapshots_of(tmp_path, full_index())
    with saving(snapshots, RestingFeed(True), lambda: [POD]):
        assert not list(tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 1


def test_who_is_not_at_rest_at_the_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvbraid.service.snapshots.LAST_S", 0.0)
    pods = [POD] * 12
    with saving(snapshots_of(tmp_path, full_index()), RestingFeed(False), lambda: pods):
        pass
    (line,) = caplog.messages
    assert "older files: a/b, a/b," in line
    assert line.endswith("a/b and 2 more")


def test_the_file_of_a_pod_that_is_removed_goes_too(tmp_path: Path) -> None:
    index = full_index()
    snapshots = snapshots_of(tmp_path, index)
    service = Service(FakeIndex(), RestingFeed(True))
    service.snapshots = snapshots
    service.put(POD, PodConfig(model="m", endpoint="tcp://h:1"))
    snapshots.save(POD, RestingFeed(True))
    assert len(list(tmp_path.iterdir())) == 1
    service.delete(POD)
    assert not list(tmp_path.iterdir())


def test_old_files_of_pods_that_nobody_has_are_removed(tmp_path: Path) -> None:
    path = saved_in(tmp_path)
    killed, strange = tmp_path / "b.snapshot.new", tmp_path / "secret"
    for other in (killed, strange):
        other.write_bytes(b"")
    for file in (path, killed, strange):
        os.utime(file, (0, 0))
    snapshots = snapshots_of(tmp_path, full_index())
    snapshots.tidy([POD])
    assert set(tmp_path.iterdir()) == {path, strange}
    snapshots.tidy([])
    assert set(tmp_path.iterdir()) == {strange}


@pytest.mark.parametrize("at_s", [0.0, 2e9])
def test_a_clock_that_jumps_takes_no_pod_its_file(tmp_path: Path, at_s: float) -> None:
    path = saved_in(tmp_path)
    os.utime(path, (at_s, at_s))  # Written half a century ago, or in some years.
    snapshots = snapshots_of(tmp_path, an_index())
    snapshots.tidy([POD])
    assert snapshots.load(POD, 1) == SETTLED
    assert snapshots.save(POD, RestingFeed(True))
    assert snapshots.ages_s()[POD] < KEPT_S


def test_a_secret_that_servers_share_is_never_drawn(tmp_path: Path) -> None:
    folder, shared = tmp_path / "folder", tmp_path / "shared"
    with pytest.raises(InvalidValueError, match=r"shared: No such file .* a secret that can be"):
        read_secret(folder, shared)
    shared.write_bytes(b"short")
    with pytest.raises(InvalidValueError, match=r"has 5 bytes; it must have 32: head -c 32"):
        read_secret(folder, shared)
    shared.write_bytes(SECRET)
    assert read_secret(folder, shared) == SECRET
    assert list(folder.iterdir()) == []


def test_the_secret_is_drawn_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    secret = read_secret(folder)
    assert len(secret) == 32
    assert read_secret(folder) == secret
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "secret").write_bytes(b"short")
    with pytest.raises(InvalidValueError, match=r"has 5 bytes; it must have 32: remove it"):
        read_secret(folder)
    with pytest.raises(InvalidValueError, match=r"index\.snapshots .*give a folder"):
        read_secret(folder / "secret")


# With real sockets: a server, an engine, and a server that comes after.


@contextlib.contextmanager
def a_server(folder: Path, engine: LossyPublisher) -> Iterator[tuple[Service, FleetIndex]]:
    """The service of one process: it begins with what is in the folder, and saves at its end."""
    secret = read_secret(folder)
    index = FleetIndex(IndexOptions(secret=secret))
    subscriber = Subscriber(index, silence_s=0.2)
    subscriber.digests = digests_under(secret)
    with subscriber as feed:
        snapshots = Snapshots(folder, index, journal=feed.journal)
        service = Service(index, feed, journal=feed.journal)
        service.snapshots = snapshots
        service.put(
            POD,
            PodConfig(
                model="m",
                endpoint=engine.endpoint,
                replay_endpoint=engine.replay_endpoint,
                topology=FULL,
            ),
        )
        with saving(snapshots, feed, lambda: service.followed):
            yield service, index


def held(index: FleetIndex, first: int) -> tuple[PodState, int]:
    (row,) = index.score(Request(model="m", token_ids=range(4 * first, 4 * first + 33))).rows
    return row.state, row.lower


def test_a_server_that_starts_again_is_exact_with_what_came_since_alone(tmp_path: Path) -> None:
    with open_publisher(replay_endpoint=LOOPBACK, buffer_batches=3) as engine:
        for number in range(5):  # The first two are in no buffer any more.
            engine.publish(stored(100 * number, 8))
        with a_server(tmp_path, engine) as (_, index):
            wait_until(lambda: held(index, 400) == (PodState.DEGRADED, 32))
        assert held(index, 0)[1] == 0
    with open_publisher(replay_endpoint=LOOPBACK, buffer_batches=3) as engine:
        engine.publish(stored(0, 8))
        with a_server(tmp_path / "other", engine) as (_, index):
            wait_until(lambda: held(index, 0) == (PodState.EXACT, 32))
            for number in range(1, 4):
                engine.publish(stored(100 * number, 8))
            wait_until(lambda: held(index, 300) == (PodState.EXACT, 32))
        for number in range(4, 6):  # While there is no server.
            engine.publish(stored(100 * number, 8))
        with a_server(tmp_path / "other", engine) as (service, index):
            wait_until(lambda: held(index, 500) == (PodState.EXACT, 32))
            assert [held(index, 100 * number) for number in range(6)] == [(PodState.EXACT, 32)] * 6
            assert service.snapshots is not None
            assert service.snapshots.counts["loaded"] == 1


def test_an_engine_that_started_again_is_noticed(tmp_path: Path) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as engine:
        endpoints = engine.endpoint, engine.replay_endpoint
        engine.publish(stored(0, 8))
        with a_server(tmp_path, engine) as (_, index):
            wait_until(lambda: held(index, 0) == (PodState.EXACT, 32))
    with open_publisher(endpoints[0], replay_endpoint=endpoints[1]) as engine:
        engine.publish(stored(700, 8))
        with a_server(tmp_path, engine) as (_, index):
            wait_until(lambda: held(index, 700) == (PodState.EXACT, 32))
            assert held(index, 0) == (PodState.EXACT, 0)


def test_a_snapshot_from_the_future_of_its_engine_is_not_believed(tmp_path: Path) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as engine:
        endpoints = engine.endpoint, engine.replay_endpoint
        for first in (0, 100):
            engine.publish(stored(first, 8))
        with a_server(tmp_path, engine) as (_, index):
            wait_until(lambda: held(index, 100) == (PodState.EXACT, 32))
    with open_publisher(endpoints[0], replay_endpoint=endpoints[1]) as engine:
        engine.publish(stored(0, 8))  # The same first batch, and no second one yet.
        with a_server(tmp_path, engine) as (service, index):
            wait_until(lambda: held(index, 100) == (PodState.EXACT, 0))
            assert held(index, 0) == (PodState.EXACT, 32)
            assert service.snapshots is not None
            assert service.snapshots.counts["loaded"] == 1


def test_what_no_replay_can_prove_is_not_exact(tmp_path: Path) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as engine:
        engine.publish(stored(0, 8))
        with a_server(tmp_path, engine) as (_, index):
            wait_until(lambda: held(index, 0) == (PodState.EXACT, 32))
        engine.replay_endpoint = None  # Whoever comes after is told of none.
        with a_server(tmp_path, engine) as (_, index):
            wait_until(lambda: held(index, 0) == (PodState.DEGRADED, 0))


CONFIG = """
[server]
ready_after_s = 0
[index]
snapshots = "warm"
[[pods]]
id = "a"
model = "m"
endpoint = "{0.endpoint}"
replay_endpoint = "{0.replay_endpoint}"
topology = {{ groups = [{{ kind = "full_attention", block_size = 4 }}] }}
"""


def test_a_process_that_is_ended_is_warm_when_it_starts_again(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    with open_publisher(replay_endpoint=LOOPBACK, buffer_batches=1) as engine:
        config.write_text(CONFIG.format(engine))
        for number in range(2):  # In the second life, the first batch is in no buffer any more.
            with serving("--config", str(config)) as (process, url):
                if number == 0:
                    engine.publish(stored(0, 8))
                row = until(partial(row_of, url), partial(has_come, number))
                row = until(partial(row_of, url), lambda row: row["state"] == "exact")
                assert (row["state"], row["last_seq"]) == ("exact", number)
                told = httpx.get(f"{url}/metrics").text
                assert f'kvbraid_snapshots_total{{what="loaded"}} {number}.0' in told
                if number == 0:
                    engine.publish(stored(100, 8))
                    until(partial(row_of, url), partial(has_come, 1))
                process.terminate()
                assert process.wait(20) == 0
            names = sorted(path.name for path in (tmp_path / "warm").iterdir())
            assert names == ["a.snapshot", "secret"]


HANGS: Final = """
import contextlib, os, sys, time
from pathlib import Path
from kvbraid.service import snapshots
snapshots.EVERY_S = 0.05
folder, synced, signals = Path(sys.argv[-1]).parent, os.fsync, snapshots._signals
def hangs(number):
    while (folder / "hang").exists():
        (folder / "hung").touch()
        time.sleep(0.1)
    synced(number)
@contextlib.contextmanager
def listens(heard):
    with signals(heard):
        (folder / "listens").touch()
        yield
os.fsync, snapshots._signals = hangs, listens
"""


@contextlib.contextmanager
def hung(folder: Path, stderr: TextIO | None = None) -> Iterator[subprocess.Popen[str]]:
    """A server that hangs while it writes what it knows after two batches; then comes a third."""
    config, saved = folder / "fleet.toml", folder / "warm" / "a.snapshot"
    with open_publisher(replay_endpoint=LOOPBACK, buffer_batches=2) as engine:
        config.write_text(CONFIG.format(engine))
        server = serving("--config", str(config), main=HANGS + MAIN, stderr=stderr)
        with server as (process, url):
            for number in range(2):
                engine.publish(stored(100 * number, 8))
                until(partial(row_of, url), partial(has_come, number))
            assert until(lambda: saved.exists() and b"[[1," in saved.read_bytes(), bool)
            (folder / "hang").touch()
            assert until((folder / "hung").exists, bool)
            engine.publish(stored(200, 8))  # Batch 0 is in no buffer any more.
            until(partial(row_of, url), partial(has_come, 2))
            yield process


def test_a_server_that_is_killed_while_it_writes_starts_from_the_file_before(
    tmp_path: Path,
) -> None:
    with hung(tmp_path) as process:
        process.kill()
        process.wait(20)
        assert (tmp_path / "warm" / "a.snapshot.new").exists()
        with serving("--config", str(tmp_path / "fleet.toml")) as (_, url):
            row = until(partial(row_of, url), lambda row: row["state"] == "exact")
            assert (row["state"], row["last_seq"]) == ("exact", 2)
            assert 'what="loaded"} 1.0' in httpx.get(f"{url}/metrics").text


def test_a_server_that_is_ended_while_it_writes_saves_what_came_since(tmp_path: Path) -> None:
    with hung(tmp_path) as process:
        process.terminate()
        assert until((tmp_path / "listens").exists, bool)
        (tmp_path / "hang").unlink()
        assert process.wait(20) == 0
    assert b"[[2," in (tmp_path / "warm" / "a.snapshot").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_further_signal_does_not_wait_for_the_disk_and_the_file_before_stays(
    tmp_path: Path, number: signal.Signals
) -> None:
    with (tmp_path / "log").open("w") as log, hung(tmp_path, log) as process:
        process.terminate()
        assert until((tmp_path / "listens").exists, bool)
        process.send_signal(number)
        assert process.wait(20) == 0
    assert b"[[1," in (tmp_path / "warm" / "a.snapshot").read_bytes()
    told = (tmp_path / "log").read_text()
    assert "a file is still being written" in told
    assert "Traceback" not in told
