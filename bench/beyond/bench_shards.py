"""What does it cost that three servers index a fleet, and one that asks them answers?

192 pods hold the prompt. Three `kvbraid serve` processes follow a third of them each; one index in
this process holds all. A sample asks the front and the one index in turn, for columns, as a router
does. There is no rival: the row compares ours with ours.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Final, NamedTuple

import numpy as np
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodState
from kvbraid.policy import Promising
from kvbraid.service.replicas import SharedTable
from kvbraid.service.shards.front import Front
from kvbraid.sim.fleet.processes import free_port

from bench.fleet.bench_score import prompt_of
from bench.fleet.ours import apply_all, new_index, pod_name
from bench.fleet.publishers import Publishers
from bench.fleet.service import wait_until
from bench.fleet.streams import Batch, Chain, batch, prefill_events
from bench.harness.measure import Row, Sample, Target, counted

NUM_SHARDS: Final = 3
NUM_PODS: Final = 192
NUM_TOKENS: Final = 8_192
ROUNDS: Final = 1_000
"""Questions of one sample, to each side."""

POD: Final = """
[[pods]]
id = "{id}"
model = "model"
endpoint = "{endpoint}"
bind = false
topology = {{ groups = [{{ event_kind = "full_attention", block_size = 16 }}] }}
"""


class Taken(NamedTuple):
    """What one sample has found, in milliseconds: of the front, and of the one index."""

    front: list[float]
    one: list[float]


@contextlib.contextmanager
def shards(endpoints: list[str]) -> Iterator[list[str]]:
    """Run the shards of pods that publish at these endpoints; yield their addresses."""
    command = str(Path(sys.executable).with_name("kvbraid"))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        file = Path(folder) / "fleet.toml"
        pods = (POD.format(id=pod_name(n), endpoint=each) for n, each in enumerate(endpoints))
        file.write_text("".join(pods))
        urls = []
        for number in range(1, NUM_SHARDS + 1):
            port = str(free_port())
            given = ("--config", str(file), "--port", port, "--shard", f"{number}/{NUM_SHARDS}")
            process = subprocess.Popen([command, "serve", *given], stdout=subprocess.DEVNULL)
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
            urls.append(f"http://127.0.0.1:{port}")
        yield urls


@cache
def prompt() -> tuple[list[Batch], Request]:
    """The batches of all pods, and the request whose whole prompt they hold."""
    chain = Chain.random(np.random.default_rng(1), NUM_TOKENS // 16)
    message = batch(0, prefill_events(chain, 0, len(chain)))
    batches = [
        Batch(pod, message.payload, message.num_events, message.num_stored)
        for pod in range(NUM_PODS)
    ]
    return batches, Request(model="model", token_ids=array("I", prompt_of(chain)[:NUM_TOKENS]))


def same(front: Front, one: FleetIndex) -> bool:
    """Whether both answer the same, column by column."""
    ours, theirs = (index.score(prompt()[1]).columns() for index in (front, one))
    names = type(ours).__struct_fields__
    return all(list(getattr(ours, name)) == list(getattr(theirs, name)) for name in names)


@contextlib.contextmanager
def both() -> Iterator[tuple[Front, FleetIndex]]:
    """A front whose shards hold the prompt, and an index that holds it."""
    batches, _ = prompt()
    one = new_index(num_pods=NUM_PODS)
    for pod in range(NUM_PODS):
        one.set_state(pod_name(pod), PodState.EXACT)
    apply_all(one, batches)
    with (
        Publishers.bound(NUM_PODS) as publishers,
        shards(publishers.endpoints) as urls,
        contextlib.closing(Front(SharedTable(shards=urls, shard_answer_s=1.0), None)) as front,
    ):
        wait_until(lambda: not front.problem, what="shards that answer", every_s=0.5)
        for pod in range(NUM_PODS):
            front.register(pod_name(pod), model="model")
            publishers.wait_subscribed(pod)
        publishers.publish(batches)
        wait_until(lambda: same(front, one), what="shards that hold all", every_s=0.5)
        yield front, one


class Asked:
    """Asks both sides in turn; each figure of the row is of the same questions.

    Attributes:
        taken: What the last sample has found.
    """

    taken = Taken([], [])

    def ask(self, front: Front, one: FleetIndex) -> None:
        """Take one sample."""
        self.taken = Taken([], [])
        for _ in range(ROUNDS):
            index: Promising
            for index, times in ((front, self.taken.front), (one, self.taken.one)):
                begin = time.perf_counter()
                index.score(prompt()[1]).columns()
                times.append(1e3 * (time.perf_counter() - begin))


ASKED: Final = Asked()


@contextlib.contextmanager
def added_p50() -> Iterator[Sample]:
    """How much later the front's median answer is there; it asks for all other figures, too."""
    with both() as (front, one):

        def sample() -> float:
            ASKED.ask(front, one)
            return median(ASKED.taken.front) - median(ASKED.taken.one)

        yield sample


def p99(times: list[float]) -> float:
    """The time that one answer in a hundred exceeds."""
    return quantiles(times, n=100)[98]


ROWS = (
    Row(
        name="shards",
        question="8 192 tokens, 192 pods: median of 3 shards and a front less that of one index",
        unit="ms",
        ours=added_p50,
        target=Target(ours=0.5),
        beside={
            "p99 less p99, ms": counted(lambda: p99(ASKED.taken.front) - p99(ASKED.taken.one)),
            "front p50, ms": counted(lambda: median(ASKED.taken.front)),
            "front p99, ms": counted(lambda: p99(ASKED.taken.front)),
            "one index p50, ms": counted(lambda: median(ASKED.taken.one)),
            "one index p99, ms": counted(lambda: p99(ASKED.taken.one)),
        },
    ),
)
