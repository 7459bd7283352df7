"""A real nats-server beside a test, and replicas of one fleet that share through it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Final

from kvbraid.fleet import FleetIndex, Request
from kvbraid.fleet.index import IndexOptions
from kvbraid.ids import PodId
from kvbraid.policy import Decision
from kvbraid.service.config import FleetConfig, PodConfig, Serving
from kvbraid.service.http.app import Application
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service
from kvbraid.service.replicas import SharedTable
from kvbraid.service.requests import ReportBody
from kvbraid.service.shared.sharing import sharing
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.service.fakes import FakeFeed
from tests.service.in_process import TestClient
from tests.service.serving import until

NATS: Final = os.environ.get("KVBRAID_NATS_SERVER") or shutil.which(
    "nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin"
)
TOPOLOGY: Final = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
PODS: Final = ("pod-0", "pod-1")


class Nats:
    """A server on a port of its own, which may be stopped, killed and started again."""

    def __init__(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._arguments = arguments
        self._cwd = cwd
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert NATS is not None
        where = ("--addr", "127.0.0.1", "--port", str(self.port))
        self._process = subprocess.Popen(
            [NATS, *self._arguments, *where],
            env=self._env,
            cwd=self._cwd,
            stderr=subprocess.DEVNULL,
        )
        assert until(self._listens, bool)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextlib.contextmanager
def nats(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[Nats]:
    """Run a server for a block."""
    server = Nats(*arguments, env=env, cwd=cwd)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Replica:
    """One service with an index of its own, which shares what it books."""

    def __init__(self, url: str, name: str, **options: object) -> None:
        table = SharedTable(url=url, replica=name, every_s=0.02, **options)  # type: ignore[arg-type]
        self.config = FleetConfig(shared=table)
        index = FleetIndex(IndexOptions())
        self.service = Service(index, FakeFeed(), picking=Picking(index))
        for pod in PODS:
            config = PodConfig(
                model="m",
                endpoint="tcp://h:5557",
                topology=TOPOLOGY,
                serving=Serving(url=f"http://{pod}:8000"),
            )
            self.service.put(PodId(pod), config)
        self.index = index
        self._count = 0

    def choose(self, tokens: int = 64, first: int = 0) -> Decision:
        """Let the router choose; each prompt is another one, unless `first` is given."""
        self._count += 1
        start = first or Random(f"{id(self)} {self._count}").randrange(1 << 30)
        request = Request(model="m", token_ids=range(start, start + tokens))
        return self.service.picking.choose(f"r{self._count}", request)

    @property
    def num_others(self) -> int:
        return len(self.service.picking.replica_ages_s())

    @property
    def running(self) -> int:
        """How many requests this replica takes to be in flight, its own and those of others."""
        decision = self.choose()
        self.service.picking.report(ReportBody(pick=decision.name, event="failed"))
        return sum(decision.view.running)

    def heard(self, what: str) -> int:
        assert self.service.shared is not None
        return self.service.shared.heard[what]

    def said(self, what: str) -> int:
        assert self.service.shared is not None
        return self.service.shared.server.counts[what]

    @property
    def problem(self) -> str:
        """What /readyz says besides that the replica is ready, which it has to be."""
        answer = TestClient(Application(self.service)).get("/readyz").json()
        assert answer["status"] == "ready"
        return str(answer.get("detail", ""))


@contextlib.contextmanager
def replicas(*made: Replica) -> Iterator[None]:
    """Let replicas share for a block."""
    with contextlib.ExitStack() as stack:
        for each in made:
            stack.enter_context(sharing(each.config, each.service))
        yield


def comes(is_so: Callable[[], bool]) -> bool:
    """Whether something comes true within ten seconds."""
    return until(is_so, bool)


CONFIG: Final = Path(__file__).parents[2] / "deploy" / "nats" / "nats-server.conf"
