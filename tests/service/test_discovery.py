"""Pods that a name stands for: they come with their addresses, and go some time after them."""

import logging
import socket
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, Limits
from kvbraid.service.discovery import MOST_ADDRESSES, FollowedName, following_names, resolve
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.pod_checks import PodPlace, pod_at
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.serving import until

TABLE = """
[[discover]]
name = "vllm.default.svc"
port = 8000
events_port = 5557
model = "m"
max_running = 8
misses = 2
"""


class Running:
    """A service, and a name of which a test says what it means."""

    def __init__(self, config: FleetConfig, limits: Limits | None = None) -> None:
        self.service = Service(FakeIndex(), FakeFeed(), limits=limits)
        self.answer: list[str] | OSError = []
        self._name = FollowedName(config.discovered[0], self.service, self._look_up)

    def _look_up(self, name: str) -> list[str]:
        assert name == "vllm.default.svc"
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def look(self, answer: list[str] | OSError) -> list[str]:
        self.answer = answer
        self._name.look()
        return sorted(pod.removeprefix("vllm.default.svc/") for pod in self.service.pods)


def read(tmp_path: Path, text: str = TABLE) -> FleetConfig:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet_file(path)


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(read(tmp_path))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "kvbraid.discovery")
    return caplog


def test_an_address_is_a_pod_until_it_was_missing_often_enough(running: Running) -> None:
    assert running.look(["10.0.0.1", "10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]
    assert running.look(["10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]
    assert running.look(["10.0.0.1", "10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]
    assert running.look(["10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]
    assert running.look(["10.0.0.2"]) == ["10.0.0.2"]
    assert running.look([]) == ["10.0.0.2"]
    assert running.look([]) == []


def test_a_pod_is_what_the_table_says_at_its_address(running: Running) -> None:
    running.look(["10.0.0.1", "fd00::1"])
    pods = running.service.pods
    first, second = (pods[PodId(f"vllm.default.svc/{each}")] for each in ("10.0.0.1", "fd00::1"))
    assert (first.serving.url, first.endpoint) == ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557")
    assert (second.serving.url, second.endpoint) == (
        "http://[fd00::1]:8000",
        "tcp://[fd00::1]:5557",
    )
    assert (first.model, first.serving.max_running, first.replay_endpoint) == ("m", 8, None)


def test_pods_of_a_name_may_be_asked_where_they_publish(tmp_path: Path) -> None:
    running = Running(read(tmp_path, TABLE.replace("events_port = 5557", 'endpoint = "ask"')))
    running.look(["10.0.0.1"])
    pod = running.service.pods[PodId("vllm.default.svc/10.0.0.1")]
    assert (pod.asks, pod.serving.url) == (True, "http://10.0.0.1:8000")


def test_a_look_up_that_fails_changes_nothing(
    running: Running, warnings: pytest.LogCaptureFixture
) -> None:
    running.look(["10.0.0.1"])
    for _ in range(5):
        again = socket.gaierror(socket.EAI_AGAIN, "try again")
        assert running.look(again) == ["10.0.0.1"]
    assert "vllm.default.svc: nothing is changed: [Errno -3] try again" in warnings.messages


def test_pods_that_others_have_registered_stay_theirs(running: Running, tmp_path: Path) -> None:
    pod = PodId("vllm.default.svc/10.0.0.1")
    theirs = pod_at(read(tmp_path).discovered[0], PodPlace("10.0.0.9"))
    running.service.put(pod, theirs)
    running.look(["10.0.0.1"])
    for _ in range(3):
        running.look([])
    assert running.service.pods == {pod: theirs}


def test_an_address_that_is_refused_is_tried_again(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    running = Running(read(tmp_path), Limits(pods=1))
    assert running.look(["10.0.0.1", "10.0.0.2", "no address"]) == ["10.0.0.1"]
    assert "vllm.default.svc/10.0.0.2 stays as it is: 2 pod ranks" in warnings.text
    assert "vllm.default.svc/no address stays as it is" in warnings.text
    running.look(["10.0.0.2"])
    assert running.look(["10.0.0.2"]) == []
    assert running.look(["10.0.0.2"]) == ["10.0.0.2"]


def test_there_is_a_limit_of_addresses(
    running: Running, warnings: pytest.LogCaptureFixture
) -> None:
    many = [f"10.0.{number >> 8}.{number & 255}" for number in range(MOST_ADDRESSES + 5)]
    assert len(running.look(many)) == min(MOST_ADDRESSES, Limits().pods)
    assert f"{MOST_ADDRESSES + 5} addresses, {MOST_ADDRESSES} count" in warnings.text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('url = "http://h:1"', "url = 'http://h:1'; give port, events_port and replay_port"),
        ('endpoint = "tcp://h:1"', "endpoint = 'tcp://h:1'; give port"),
        ('endpoint = "ask"', "endpoint = 'ask'; give port"),  # Besides events_port.
        ("dp_size = 1024\nreplay_port = 65000", "ends at port 66023"),
        ('model_config = "nothing.json"', "model_config: "),
        ('colour = "red"', "colour"),
    ],
)
def test_a_table_that_no_pod_can_have_is_refused(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(InvalidValueError, match="discover") as refused:
        read(tmp_path, TABLE + line)
    assert told in str(refused.value)


def test_names_are_resolved() -> None:
    assert "127.0.0.1" in resolve("localhost")
    assert list(resolve("127.0.0.1")) == ["127.0.0.1"]


@pytest.mark.parametrize("number", [socket.EAI_NONAME, socket.EAI_NODATA])
def test_a_service_without_pods_has_no_addresses(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object, **_kwargs: object) -> None:
        raise socket.gaierror(number, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    assert list(resolve("vllm.default.svc")) == []


def test_names_are_followed_while_a_server_runs(tmp_path: Path) -> None:
    config = read(tmp_path, TABLE.replace("vllm.default.svc", "127.0.0.1"))
    service = Service(FakeIndex(), FakeFeed())
    with following_names(config, service):
        found = until(lambda: list(service.pods), bool)
    assert found == ["127.0.0.1/127.0.0.1"]
