"""A real Envoy that runs the files of deploy/envoy, and a real picker that it asks."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvbraid.gateway.envoy.serve import PickApplication
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, Limits, PodConfig, Serving
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.http.access import Access
from kvbraid.service.registry import Service

from tests.gateway.programs import attempt, free_port, program
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.listed_tokens import ListedTokens
from tests.service.route_pods import Behaviour, Connection, Engine, get, until
from tests.service.serving import ROOT

FOLDER = ROOT / "deploy" / "envoy"
ENVOY = shutil.which(
    "envoy", path=f"{ROOT / '.venv-gateway' / 'bin'}:{os.environ.get('PATH', '')}"
)

_LISTED = """\
        - endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 8000}}}
        - endpoint: {address: {socket_address: {address: 10.0.0.2, port_value: 8000}}}
"""
_MEMBER = (
    "        - endpoint: "
    "{{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}\n"
)


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Replace parts of a file, each of which must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def command(
    folder: Path, *changes: tuple[str, str], cluster: str, ports: Iterable[int] = ()
) -> tuple[str, ...]:
    """Return the command that runs changed files of deploy/envoy; a cluster may list pods."""
    config = folder / "envoy.yaml"
    config.write_text(changed((FOLDER / "envoy.yaml").read_text(), *changes))
    pods = (FOLDER / f"{cluster}.yaml").read_text()
    if cluster == "override_host":
        pods = changed(pods, (_LISTED, "".join(_MEMBER.format(port=port) for port in ports)))
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    return (ENVOY or "", "-c", str(config), "--config-yaml", pods, *options)


@asynccontextmanager
async def envoy(
    folder: Path,
    *changes: tuple[str, str],
    cluster: str = "original_dst",
    picker: int,
    ports: Iterable[int] = (),
) -> AsyncIterator[int]:
    """Run Envoy, which asks a picker on some port; yield the port of its clients."""
    listener, admin = free_port(), free_port()
    numbers = (
        ("port_value: 8000", f"port_value: {listener}"),
        ("port_value: 9901", f"port_value: {admin}"),
        ("port_value: 9002", f"port_value: {picker}"),
    )
    parts = command(folder, *numbers, *changes, cluster=cluster, ports=ports)

    async def is_ready(log: str) -> bool:
        del log
        return await attempt(admin, get("/ready")) == 200

    async with program(*parts, is_ready=is_ready):
        yield listener


@dataclass
class Plane:
    """An Envoy that runs before engines, and the picker that it asks."""

    engines: dict[str, Engine]
    app: PickApplication
    service: Service
    port: int
    stack: AsyncExitStack

    @property
    def num_booked(self) -> int:
        """How many requests are booked."""
        return self.service.picking.num_booked()

    def reports(self, event: str) -> int:
        """How many reports of a kind were noted."""
        return self.service.picking.reports[event, "noted"]

    async def connect(self) -> Connection:
        """Connect to Envoy."""
        client = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.stack.callback(client.leave)
        return client

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request to Envoy."""
        client = await self.connect()
        await client.send(request)
        head, body = await client.answer()
        return head.status, body


@asynccontextmanager
async def plane(
    folder: Path,
    *behaviours: Behaviour,
    changes: Iterable[tuple[str, str]] = (),
    cluster: str = "original_dst",
    dead: int = 0,
    fallbacks: int = 0,
    body_bytes: int = 1 << 25,
) -> AsyncIterator[Plane]:
    """Run Envoy before engines, called a, b and so on, and before so many dead ones, called z."""
    limits = Limits(body_bytes=body_bytes)
    service = Service(FakeIndex(), FakeFeed(), limits=limits)
    options = EnvoyOptions(host="127.0.0.1", port=0, fallbacks=fallbacks)
    config = replace(FleetConfig(), limits=limits, envoy=options)
    app = PickApplication(service, ListedTokens(), config, Access())
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(Engine(behaviour).running())
            for name, behaviour in zip("abcdef", behaviours, strict=False)
        }
        ports = {name: engine.port for name, engine in engines.items()}
        ports |= {f"z{number}": free_port() for number in range(dead)}
        for name, port in ports.items():
            service.put(PodId(name), pod(port))
        await app.start()
        stack.push_async_callback(_close, app)
        port = await stack.enter_async_context(
            envoy(
                folder,
                *changes,
                cluster=cluster,
                picker=int(app.grpc.address.rpartition(":")[2]),
                ports=ports.values(),
            )
        )
        async with AsyncExitStack() as clients:
            yield Plane(engines, app, service, port, clients)
        await until(lambda: not service.picking.num_booked())


async def _close(app: PickApplication) -> None:
    await app.grpc.close(0.2)
    await until(lambda: not any(map(_is_of_grpc, asyncio.all_tasks())))


def _is_of_grpc(task: asyncio.Task[Any]) -> bool:
    return task.get_name().startswith(("rpc_task", "HandleExceptions"))


def pod(port: int, *, drain: bool = False) -> PodConfig:
    """Return a pod that listens on a port."""
    serving = Serving(url=f"http://127.0.0.1:{port}", drain=drain)
    return PodConfig(model="m", endpoint="tcp://h:1", serving=serving)
