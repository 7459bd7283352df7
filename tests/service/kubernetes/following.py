"""A service that follows a fake API server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvbraid.service.config import FleetConfig, Limits
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.kubernetes.following import FollowedTable
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.kubernetes.kube_api import FakeApi
from tests.service.serving import until

TABLE = """
[[kubernetes]]
service = "engines"
port = "http"
events_port = "events"
model = "m"
hold_s = 60.0
"""


def read(tmp_path: Path, api: FakeApi, text: str = TABLE, url: str = "") -> FleetConfig:
    for name, value in (("token", api.token), ("namespace", "inference")):
        (tmp_path / name).write_text(value + "\n")
    path = tmp_path / "fleet.toml"
    path.write_text(f'{text}api = "{url or api.url}"\nfolder = "{tmp_path}"\n')
    return read_fleet_file(path)


class Running:
    """A service that follows a fake API server."""

    def __init__(self, config: FleetConfig, limits: Limits | None = None) -> None:
        self.service = Service(FakeIndex(), FakeFeed(), limits=limits)
        self.now = 0.0
        self.table = FollowedTable(config.watched[0], self.service, clock=lambda: self.now)
        self.counts = self.service.watched

    def pods(self) -> list[str]:
        """Those that get requests, and those that drain with a minus."""
        return sorted(
            ("-" if config.serving.drain else "") + pod.removeprefix("inference/engine-")
            for pod, config in self.service.pods.items()
        )

    def become(self, *wanted: str) -> None:
        assert until(self.pods, lambda pods: pods == sorted(wanted)) == sorted(wanted)

    def count(self, outcome: str, least: int = 1) -> None:
        assert until(lambda: self.counts[outcome], lambda n: n >= least) >= least

    @contextmanager
    def followed(self) -> Iterator["Running"]:
        is_over = threading.Event()
        apply = self.table._apply

        def checked() -> None:
            apply()
            self.table.check_integrity()

        self.table._apply = checked  # type: ignore[method-assign]
        thread = threading.Thread(target=self.table.run, args=(is_over,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            is_over.set()


class Hours(threading.Event):
    """What `run` waits for: waiting takes no time, but its clock goes on, and ends by itself."""

    def __init__(self, it: Running, seconds: float) -> None:
        super().__init__()
        self._it, self._end = it, it.now + seconds
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        self._it.now += timeout
        if self._it.now >= self._end:
            self.set()
        return self.is_set()


@contextmanager
def running(
    tmp_path: Path, api: FakeApi, text: str = TABLE, limits: Limits | None = None
) -> Iterator[Running]:
    with Running(read(tmp_path, api, text), limits).followed() as it:
        yield it
