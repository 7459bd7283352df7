"""How soon does a server that starts again know every pod exactly?

The engines are publishers of one process, which keep all of their batches. A first server follows
them from batch 0 on and is ended by SIGTERM, which leaves its snapshots. Then more blocks come.
`KVBRAID_BENCH_BLOCKS` makes the pods smaller for a quick look.
"""

import atexit
import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.processes import free_port

from bench.fleet.ours import pod_name
from bench.fleet.service import answers, wait_until
from bench.fleet.streams import NUM_PODS, Mix
from bench.harness.measure import Row, Sample, Target, before_others

NUM_BLOCKS: Final = int(os.environ.get("KVBRAID_BENCH_BLOCKS", "10_000_000"))
SINCE: Final = NUM_BLOCKS // 100
"""Blocks that come while no server runs: a few seconds of a busy fleet."""

_ENOUGH: Final = 1 << 40
_LONG_S: Final = 1800.0
_POD: Final = """
[[pods]]
id = "{pod}"
model = "model"
endpoint = "{at.endpoint}"
replay_endpoint = "{at.replay_endpoint}"
topology = {{ groups = [{{ kind = "full_attention", block_size = 16 }}] }}
"""


def publish(parent: Connection) -> None:
    """Be all engines: publish, say where, and publish the rest when told."""
    any_port = "tcp://127.0.0.1:0"
    pods = [
        Publisher(any_port, replay_endpoint=any_port, bind=True, buffer_batches=_ENOUGH)
        for _ in range(NUM_PODS)
    ]
    num_stored, batches = 0, iter(Mix(NUM_BLOCKS + SINCE))
    for most in (NUM_BLOCKS, NUM_BLOCKS + SINCE):
        while num_stored < most and (message := next(batches, None)):
            pods[message.pod].publish(message.payload)
            num_stored += message.num_stored
        parent.send("".join(_POD.format(pod=pod_name(n), at=at) for n, at in enumerate(pods)))
        parent.recv()


class Fleet(NamedTuple):
    """Engines that have published everything, and what a server saved before the last part."""

    folder: Path
    pods: str

    @property
    def environment(self) -> dict[str, str]:
        """Of a server: the first one leaves its bytecode to those that follow."""
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {**inherited, "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}

    def start(self, index: str) -> tuple[float, int]:
        """Start `kvbraid serve` with an `[index]` table, and end it once all pods are exact.

        Returns the seconds that this took, and how many blocks it knows.
        """
        config, port = self.folder / "fleet.toml", free_port()
        config.write_text(f"[server]\nready_after_s = 0\n[index]\n{index}\n{self.pods}")
        command = [sys.executable, "-m", "kvbraid", "serve", "--config", str(config)]
        command += ["--port", str(port), "--log-level", "error"]
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=self.environment)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_until(partial(answers, client, "/healthz"), what="a server", seconds=_LONG_S)
                wait_until(partial(are_exact, client), what="exact pods", seconds=_LONG_S)
                took = time.perf_counter() - begin
                return took, sum(row["num_blocks"] for row in rows(client))
        finally:
            process.terminate()
            process.wait(_LONG_S)


def rows(client: httpx.Client) -> list[dict[str, Any]]:
    """Return what a server knows of each pod."""
    pods: list[dict[str, Any]] = client.get("/v1/pods").json()["pods"]
    return pods


def are_exact(client: httpx.Client) -> bool:
    """Whether all pods are exact."""
    return [row["state"] for row in rows(client)] == ["exact"] * NUM_PODS


@cache
def fleet() -> Fleet:
    """Make the fleet of both sides; its engines end with this process."""
    folder = Path(tempfile.mkdtemp(prefix="kvbraid-restart-"))
    atexit.register(shutil.rmtree, folder)
    here, there = multiprocessing.Pipe()
    engines = multiprocessing.get_context("fork").Process(
        target=publish, args=(there,), daemon=True
    )
    engines.start()
    made = Fleet(folder, here.recv())
    made.start('snapshots = "saved"')
    assert len(list((folder / "saved").glob("*.snapshot"))) == NUM_PODS
    here.send(None)  # More blocks come, and no server runs.
    here.recv()
    return made


@cache
def known() -> int:
    """Return how many blocks the pods have in the end."""
    return fleet().start("")[1]


@contextlib.contextmanager
def restart(*, is_warm: bool) -> Iterator[Sample]:
    """Seconds from the start of the process until every pod is exact."""
    made = fleet()

    def sample() -> float:
        folder = made.folder / "warm"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made.folder / "saved", folder)
        with before_others():
            seconds, num_blocks = made.start('snapshots = "warm"' if is_warm else "")
        assert num_blocks == known(), (num_blocks, known())
        return seconds

    yield sample


ROWS = (
    Row(
        name="restart",
        question=f"{NUM_PODS} pods: from the start until all are exact: snapshots / replay alone",
        unit="s",
        ours=partial(restart, is_warm=True),
        rival=partial(restart, is_warm=False),
        target=Target(ours=10),
        samples=3,
    ),
)
