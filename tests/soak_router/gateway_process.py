"""`kvbraid route` as a process, and what can be seen of it from outside."""

import asyncio
import json
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from kvbraid.sim.fleet.presets import topology_body

from tests.service.route_pods import Connection, Head, get
from tests.service.serving import serving
from tests.soak_router.pods import SoakPod

HEAD: Final = """
[server]
ready_after_s = 0
silence_s = 1

[limits]
body_bytes = 4194304

[index]
seen_limit_bytes = 1048576

[router]
grace_s = 1
remember_s = 1

[gateway]
connect_s = 2
first_byte_s = 3
silent_s = 5
idle_s = 1
comment_s = 1
rest_s = 1
failures = 3
"""
"""Short times, so that many of them pass; a small memory of prompts, so that it is soon full."""

POD: Final = """
[[pods]]
id = "{pod.name}"
model = "{pod.preset.model}"
endpoint = "tcp://127.0.0.1:{pod.events.port.number}"
replay_endpoint = "tcp://127.0.0.1:{pod.replays.port.number}"
num_gpu_blocks = {pod.preset.num_blocks}
url = "{pod.http.url}"
[pods.topology]
{topology}
"""

IDLE: Final = (
    "kvbraid_gateway_in_flight", "kvbraid_gateway_queue", "kvbraid_gateway_resting",
    "kvbraid_bookings", "kvbraid_running", "kvbraid_promises", "kvbraid_http_bodies_bytes",
)  # fmt: skip
"""Gauges that are 0 while nobody asks."""

_COMPLAINT: Final = re.compile(r"Traceback|^\S+ (?:error|critical) |^\w*Error\b|never awaited")
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class GatewayProcess:
    """A running gateway."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self._process = process
        self._log = log
        self.port = int(url.rpartition(":")[2])

    async def connect(self) -> Connection:
        """Open a connection, which its caller has to leave."""
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, request: bytes) -> tuple[Head, bytes]:
        """Send one request on a connection of its own."""
        connection = await self.connect()
        try:
            await connection.send(request)
            return await connection.answer()
        finally:
            connection.leave()

    async def rows(self) -> dict[str, dict[str, Any]]:
        """Return what the gateway knows of each pod."""
        _, body = await self.ask(get("/v1/pods"))
        return {row["pod"]: row for row in json.loads(body)["pods"]}

    async def busy(self) -> dict[str, float]:
        """Return the gauges that are not 0 and should be while nobody asks."""
        _, body = await self.ask(get("/metrics"))
        found = [(name, float(value)) for name, value in _SAMPLE.findall(body.decode())]
        return {name: value for name, value in found if name in IDLE and value}

    def memory_mib(self) -> float:
        """Return the resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0

    def num_files(self) -> int:
        """Return how many file descriptors are open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def complaints(self) -> list[str]:
        """Return the lines of its log that no gateway may write."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if _COMPLAINT.search(line)]

    def end(self) -> int:
        """Ask it to end, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


@asynccontextmanager
async def gateway_before(pods: Sequence[SoakPod]) -> AsyncIterator[GatewayProcess]:
    """Run a gateway before pods that listen."""
    with tempfile.TemporaryDirectory(prefix="kvbraid-soak-") as folder:
        config, log = Path(folder, "fleet.toml"), Path(folder, "log")
        config.write_text(HEAD + "".join(map(_table, pods)))
        with log.open("w") as stderr:
            starting = serving("--config", str(config), stderr=stderr, name="route")
            process, url = await asyncio.to_thread(starting.__enter__)
            try:
                yield GatewayProcess(process, url, log)
            finally:
                await asyncio.to_thread(starting.__exit__, None, None, None)


def _table(pod: SoakPod) -> str:
    body = topology_body(pod.preset.topology)
    groups = body.pop("groups")
    lines = [f"{key} = {json.dumps(value)}" for key, value in body.items()]
    for group in groups:
        known = {key: value for key, value in group.items() if value is not None}
        lines.append("[[pods.topology.groups]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in known.items()]
    return POD.format(pod=pod, topology="\n".join(lines))
