"""The `[shared]` table: what is refused in it, whom a replica is, and what it takes to share."""

import sys
import threading
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.service.config import FleetConfig
from kvbraid.service.feeds.replay import Replay
from kvbraid.service.registry import Service
from kvbraid.service.replicas import SharedState, SharedTable, check_shared
from kvbraid.service.shared.sharing import sharing

from tests.service.fakes import FakeFeed, FakeIndex

URL = "nats://h:4222"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (SharedTable(replica="a"), "there is no url"),
        (SharedTable(url="http://h:1"), "shared.url = 'http://h:1'; expected nats://HOST:PORT"),
        (SharedTable(url="nats://a:secret@h:1"), "user and password have their keys"),
        (SharedTable(url=URL, ca="ca.pem"), "shared.ca is given"),
        (SharedTable(url=URL, user="u"), "give user and password_file"),
        (SharedTable(url=URL, password_file="p"), "give user and password_file"),
    ],
)
def test_a_table_that_says_too_little_or_too_much_is_refused(
    table: SharedTable, told: str
) -> None:
    with pytest.raises(InvalidValueError, match=told):
        check_shared(table, Path())


def test_paths_begin_at_the_folder_of_the_file() -> None:
    given = SharedTable(url="tls://[::1]:4222", user="u", password_file="p", ca="/ca.pem")
    checked = check_shared(given, Path("/etc/kvbraid"))
    assert (checked.password_file, checked.ca) == ("/etc/kvbraid/p", "/ca.pem")
    assert check_shared(SharedTable(), Path("x")) == SharedTable()


@pytest.mark.parametrize(
    ("host", "name"), [("kv.0.example", "kv-0-example"), ("-", "replica"), ("é", "replica")]
)
def test_a_replica_has_the_name_of_its_host(
    host: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert SharedTable().name == name
    assert SharedTable(replica="a").name == "a"


def test_without_the_extra_a_url_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    config, service = FleetConfig(shared=SharedTable(url=URL)), Service(FakeIndex(), FakeFeed())
    with pytest.raises(InvalidValueError, match=r"shared\.url needs nats, which is not installed"):
        sharing(config, service).__enter__()


def test_without_a_url_nothing_runs() -> None:
    before, service = threading.active_count(), Service(FakeIndex(), FakeFeed())
    with sharing(FleetConfig(), service):
        assert (threading.active_count(), service.shared) == (before, None)


def test_every_problem_is_told() -> None:
    class Server:
        problem = "refused"
        counts: dict[str, int] = {}  # noqa: RUF012 - it never changes

    state = SharedState("a", Server(), {}, twice=["b"])
    assert state.problem == (
        "replica a books apart: refused; two replicas have the name b: give each its own"
    )


def test_an_engine_is_not_asked_before_it_is_time() -> None:
    replay = Replay(None, None, 0, asks_at=10.0)  # type: ignore[arg-type]  # It uses neither.
    replay.attend(9.9)
    assert replay.heard_at == 10.0  # Its patience begins then, too.
    with pytest.raises(AttributeError):
        replay.attend(10.0)
