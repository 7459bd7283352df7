"""A fleet.toml that is written anew: what changes, what does not, and what the log says."""

import logging
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import msgspec
import pytest
from kvbraid.events.sequence import Settled
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, FleetFile, Followed
from kvbraid.service.errors import RefusalError
from kvbraid.service.fleet_file import override, read_fleet_file
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.client import Client
from kvbraid.service.in_force import MASK, PARTS, InForce, Part
from kvbraid.service.indexing import IndexTable
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service
from kvbraid.service.reloading import FollowedFile
from kvbraid.service.routing import Routing

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.serving import MAIN, serving, until


def pod(name: str, *more: str) -> str:
    lines = [f'id = "{name}"', 'model = "m"', 'endpoint = "tcp://h:1"', *more]
    return "\n".join(["[[pods]]", *lines, ""])


class Running:
    """A service with a file, as after its start."""

    def __init__(self, path: Path, text: str, feed: FakeFeed | None = None) -> None:
        self.path = path
        path.write_text(text)
        self.config = override(read_fleet_file(path), {"port": 1})
        self.feed = feed or FakeFeed()
        index = FakeIndex()
        self.service = Service(
            index,
            self.feed,
            limits=self.config.limits,
            picking=Picking(index, self.config.routing),
            in_force=InForce(self.config, clock=lambda: 5.0),
        )
        for name, entry in self.config.pods.items():
            self.service.put(name, entry)
        self.taken: list[FleetConfig] = []
        self.file = FollowedFile(self.service, self.taken.append)

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)
        self.file.look()

    @property
    def pods(self) -> list[str]:
        return sorted(self.service.pods)

    @property
    def in_force(self) -> InForce:
        return self.service.in_force


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.toml"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "kvbraid.config")
    return caplog


def test_pods_come_change_and_go(path: Path, warnings: pytest.LogCaptureFixture) -> None:
    running = Running(path, pod("a") + pod("b"))
    other = PodId("registered-over-http")
    running.service.put(other, running.config.pods[PodId("a")])
    running.write(pod("b", "drain = true") + pod("c"))
    assert running.pods == ["b", "c", other]
    assert running.service.pods[PodId("b")].serving.drain
    assert not warnings.messages
    running.write("")
    assert running.pods == [other]


def test_a_pod_that_stays_as_it_is_is_not_touched(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvbraid.config")
    running = Running(path, pod("a") + pod("b") + pod("c"))
    running.feed.log.clear()
    running.write(pod("a") + pod("b", "dp_size = 2") + pod("d"))
    assert running.feed.log == ["remove c", "remove b", "add b", "add d"]
    assert caplog.messages == [f"{path} counts now: 2 pods changed, 1 removed"]


def test_a_file_that_is_not_written_is_read_only_if_somebody_asks(path: Path) -> None:
    running = Running(path, pod("a"))
    running.file.look()
    assert running.in_force.reloads == {"ok": 0, "failed": 0}
    running.file.look(again=True)
    assert running.in_force.reloads == {"ok": 1, "failed": 0}


def test_what_was_written_since_the_start_is_noticed(path: Path) -> None:
    running = Running(path, pod("a"))
    path.write_text(pod("bb"))
    file = FollowedFile(running.service)
    file.look()
    assert running.pods == ["bb"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[pods", "not TOML"),
        (pod("b") + pod("a", "colour = 1"), "colour"),
        (pod("b") + pod("a") + pod("a"), "duplicate"),
        (pod("b") + "[[pods]]\nid = 1\n", "pods[1].id"),
        ("[limits]\npods = 2\n" + pod("b") + pod("a", "dp_size = 2"), "3 pod ranks"),
    ],
)
def test_a_wrong_file_changes_nothing_and_a_right_one_is_taken_later(
    path: Path, warnings: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    running = Running(path, "[limits]\npods = 2\n" + pod("a"))
    running.feed.log.clear()
    running.write(text)
    running.file.look()
    assert (running.pods, running.feed.log) == (["a"], [])
    [line] = warnings.messages
    assert line.startswith("nothing is changed: ")
    assert told in line
    answer = running.in_force.answer()
    assert answer.refused is not None
    assert line == f"nothing is changed: {answer.refused.error}"
    assert running.in_force.reloads == {"ok": 0, "failed": 1}
    assert running.taken == []
    running.write(pod("b"))
    assert running.pods == ["b"]
    assert running.in_force.answer().refused is None


def test_a_file_that_is_gone_changes_nothing(
    path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(path, pod("a"))
    running.path.unlink()
    running.file.look()
    running.file.look()
    assert running.pods == ["a"]
    assert len(warnings.messages) == 1


def test_a_pod_that_cannot_be_followed_changes_nothing(
    path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(path, pod("a") + pod("b"))
    running.feed.log.clear()
    running.feed.unusable = RefusalError("invalid_endpoint", "it cannot be bound", remedy="move")
    running.write("[router]\nqueue = 0.5\n" + pod("b", "dp_size = 2"))
    assert running.pods == ["a", "b"]
    assert running.feed.log == []
    assert warnings.messages == ["nothing is changed: pod b: it cannot be bound; move"]
    assert running.in_force.config.routing == Routing()


def test_if_a_pod_is_refused_late_the_others_become_what_they_were(path: Path) -> None:
    running = Running(path, pod("a") + pod("b"))
    before = dict(running.service.pods)

    def refuse_c(name: PodId, followed: Followed, progress: Sequence[Settled] = (), /) -> None:
        if name == "c":
            raise RefusalError("invalid_endpoint", "taken meanwhile")
        FakeFeed.add(running.feed, name, followed, progress)

    running.feed.add = refuse_c  # type: ignore[method-assign]
    running.write(pod("b", "dp_size = 2") + pod("c"))
    assert dict(running.service.pods) == before
    assert set(running.feed.following) == {"a", "b"}
    assert running.in_force.refused is not None
    assert "pod c: taken meanwhile" in running.in_force.refused.error


TABLES = """
[server]
silence_s = 9.0
allow_hosts = ["h"]
token = "secret"
[limits]
pods = 7
tokens = 9
[index]
keys = "join"
[router]
queue = 0.5
[gateway]
tells = false
[envoy]
port = 7
[shared]
fleet = "f"
url = "nats://h:4222"
[tokens.m]
engine = "http://h:1"
[[discover]]
name = "n"
port = 1
endpoint = "ask"
model = "m"
[[kubernetes]]
service = "n"
port = 1
endpoint = "ask"
model = "m"
"""
WAITING = [
    "server.silence_s", "limits.pods", "index.keys", "gateway.tells", "envoy.port", "shared.url",
    "shared.fleet", "tokens", "discover", "kubernetes",
]  # fmt: skip


def test_what_counts_at_the_next_start_is_named_and_the_rest_counts_now(
    path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(path, pod("a"))
    running.write(TABLES + pod("b"))
    line = f"changes of {', '.join(WAITING)} count at the next start"
    assert warnings.messages == [line]
    config = running.in_force.config
    assert running.taken == [config]
    assert (config.server.silence_s, config.server.allow_hosts) == (5.0, ("h",))
    assert (config.limits.pods, config.limits.tokens) == (1024, 9)
    assert running.service.limits == config.limits
    assert config.index == IndexTable()
    assert (config.forwarding, config.tokens) == (ForwardingOptions(), {})
    assert config.routing.costs.queue == 0.5
    running.write(TABLES + pod("c"))
    assert warnings.messages == [line]  # They still wait; nobody has to be told again.
    running.write("")
    assert running.in_force.waiting == ()


def test_what_a_flag_decides_waits_for_nothing(path: Path) -> None:
    running = Running(path, "")
    running.write("[server]\nport = 5\n")
    assert running.in_force.waiting == ()
    assert running.in_force.config.server.port == 1


def test_every_key_either_counts_at_once_or_waits() -> None:
    parts = {name: Part(name) for name in ("router", "pods", "keys", "tls")} | dict(PARTS)
    assert set(parts) == set(FleetFile.__struct_fields__)
    for table, part in PARTS.items():
        kind = type(getattr(FleetFile(), table))
        assert part.at_once <= set(getattr(kind, "__struct_fields__", ())), table


HASH = "5e" * 32
KEY = f"[[keys]]\nname = 'k'\nsha256 = '{HASH}'\nrights = ['read']\n"


def test_what_is_shown_is_what_counts_without_secrets(path: Path) -> None:
    text = (
        "[server]\ntoken = 'secret'\n"
        + KEY
        + "[limits]\ntokens = 5\n"
        + pod("a", "topology = {PYTHONHASHSEED = 'secret', alignment = 32}")
    )
    running = Running(path, text)
    running.write(text.replace("tokens = 5", "tokens = 6\npods = 9"))
    answer = running.in_force.answer()
    assert answer.config["server"]["token"] == MASK
    assert answer.config["server"]["port"] == 1
    assert answer.config["limits"] | {"tokens": 6, "pods": 1024} == answer.config["limits"]
    (shown,) = answer.config["pods"]
    assert shown["topology"] == {"PYTHONHASHSEED": MASK, "alignment": 32}
    assert answer.config["keys"] == [{"name": "k", "sha256": MASK, "rights": ["read"]}]
    assert not re.search(f'"secret"|{HASH}', msgspec.json.encode(answer).decode())
    assert (answer.file, answer.since, answer.waiting) == (str(path), 5.0, ["limits.pods"])


def test_a_router_chooses_by_the_new_table_and_keeps_what_is_booked(path: Path) -> None:
    running = Running(path, pod("a") + pod("b"))
    picking = running.service.picking
    request = Request(model="m", token_ids=[1])
    first = picking.choose("first", request)
    assert first.policy.name == "cost"
    running.write("[router]\npolicy = 'round_robin'\n" + pod("a") + pod("b"))
    second = picking.choose("second", request)
    assert second.policy.name == "round_robin"
    assert picking.num_booked() == 2
    running.write("[router]\npolicy = 'round_robin'\nhold_s = 7\n" + pod("a") + pod("b"))
    third = picking.choose("third", request)
    assert third.policy is second.policy  # It counts whose turn it is.


def test_a_running_server_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(pod("a"))
    with serving("--config", str(path)) as (process, url):
        path.write_text(pod("bb"))
        with Client(url) as client:
            rows = until(
                lambda: client.pods().pods, lambda rows: [row.pod for row in rows] == ["bb"]
            )
        assert len(rows) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def reloads(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics").text
    return {
        name: float(value)
        for name, value in re.findall(r"^(kvbraid_config_\S+) (\S+)$", text, re.MULTILINE)
    }


def test_sighup_reads_the_file_now_and_a_wrong_one_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(pod("a"))
    slow = MAIN.replace("main()", "") + (
        "import kvbraid.service.reloading as r; r.LOOK_S = 3600.0; main()"
    )
    with serving("--config", str(path), main=slow) as (process, url):
        before = reloads(url)
        assert before['kvbraid_config_reloads_total{outcome="ok"}'] == 0
        path.write_text("[limits]\nbody_bytes = 10\npods = 3\n" + pod("b"))
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        until(lambda: httpx.get(f"{url}/v1/config").json(), lambda it: it["waiting"])
        assert httpx.put(f"{url}/v1/pods/x", content=b" " * 11).status_code == 413
        assert httpx.get(f"{url}/v1/pods").json()["pods"][0]["pod"] == "b"
        path.write_text("[limits]\nbody_bytes = 0\n")
        process.send_signal(signal.SIGHUP)
        shown = until(lambda: httpx.get(f"{url}/v1/config").json(), lambda it: it["refused"])
        assert "limits.body_bytes: Expected `int` >= 1" in shown["refused"]["error"]
        assert shown["config"]["limits"]["body_bytes"] == 10
        after = reloads(url)
        assert after["kvbraid_config_ok"] == 0
        assert after["kvbraid_config_waiting"] == 1
        assert after['kvbraid_config_reloads_total{outcome="failed"}'] >= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


EARLY: Final = """
import os, signal
from kvbraid.service import serve
new_service = serve.new_service
def hung_up(config):
    os.kill(os.getpid(), signal.SIGHUP)
    return new_service(config)
serve.new_service = hung_up
"""


def test_sighup_before_the_server_has_begun_is_kept_until_it_has(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(pod("a"))
    with serving("--config", str(path), main=EARLY + MAIN) as (process, url):
        taken = until(
            lambda: reloads(url)['kvbraid_config_reloads_total{outcome="ok"}'], lambda it: it > 0
        )
        assert taken == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def test_sighup_without_a_file_changes_nothing() -> None:
    with serving() as (process, url):
        process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{url}/v1/config").json()["file"] is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
