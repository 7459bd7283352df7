"""A fleet.toml that is written anew: what changes, what does not, and what the log says."""

import logging
import signal
from pathlib import Path

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import Limits
from kvbraid.service.fleet_file import override, read_fleet_file
from kvbraid.service.http.client import Client
from kvbraid.service.registry import Service
from kvbraid.service.reloading import FollowedFile

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.serving import serving, until


def pod(name: str, *more: str) -> str:
    lines = [f'id = "{name}"', 'model = "m"', 'endpoint = "tcp://h:1"', *more]
    return "\n".join(["[[pods]]", *lines, ""])


class Running:
    """A service with a file, as after its start."""

    def __init__(self, path: Path, text: str, limits: Limits | None = None) -> None:
        self.path = path
        path.write_text(text)
        self.config = override(read_fleet_file(path), {"port": 1})
        self.service = Service(FakeIndex(), FakeFeed(), limits=limits)
        for name, entry in self.config.pods.items():
            self.service.put(name, entry)
        self.file = FollowedFile(self.config, self.service)

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)
        self.file.look()

    @property
    def pods(self) -> list[str]:
        return sorted(self.service.pods)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "kvbraid.config")
    return caplog


def test_pods_come_change_and_go(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    running = Running(tmp_path / "fleet.toml", pod("a") + pod("b"))
    other = PodId("registered-over-http")
    running.service.put(other, running.config.pods[PodId("a")])
    running.write(pod("b", "drain = true") + pod("c"))
    assert running.pods == ["b", "c", other]
    assert running.service.pods[PodId("b")].serving.drain
    assert not warnings.messages
    running.write("")
    assert running.pods == [other]


def test_a_file_that_is_not_written_is_not_read(tmp_path: Path) -> None:
    running = Running(tmp_path / "fleet.toml", pod("a"))
    running.service.delete(PodId("a"))
    running.file.look()
    assert running.pods == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[pods", "not TOML"),
        (pod("a", "colour = 1"), "colour"),
        (pod("a") + pod("a"), "a"),
    ],
)
def test_a_wrong_file_changes_nothing_and_a_right_one_is_taken_later(
    tmp_path: Path, warnings: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    running = Running(tmp_path / "fleet.toml", pod("a"))
    running.write(text)
    running.file.look()
    assert running.pods == ["a"]
    [line] = warnings.messages
    assert line.startswith("nothing is changed: ")
    assert told in line
    running.write(pod("b"))
    assert running.pods == ["b"]


def test_a_file_that_is_gone_changes_nothing(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(tmp_path / "fleet.toml", pod("a"))
    running.path.unlink()
    running.file.look()
    running.file.look()
    assert running.pods == ["a"]
    assert len(warnings.messages) == 1


def test_a_pod_that_is_refused_is_tried_again(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(tmp_path / "fleet.toml", pod("a"), Limits(pods=2))
    running.write(pod("a") + pod("b", "dp_size = 2") + pod("c"))
    assert running.pods == ["a", "c"]
    [line] = warnings.messages
    assert line.startswith("pod b stays as it is: ")
    running.write(pod("a") + pod("b"))
    assert running.pods == ["a", "b"]


def test_other_tables_count_at_the_next_start(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(tmp_path / "fleet.toml", pod("a"))
    running.write("[server]\nsilence_s = 9\n[router]\nqueue = 0.5\n" + pod("a"))
    assert warnings.messages == ["changes of server, router count at the next start"]
    running.write("[server]\nsilence_s = 9\n[router]\nqueue = 0.5\n" + pod("b"))
    assert len(warnings.messages) == 1


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
