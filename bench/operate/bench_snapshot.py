"""How many bytes does a block take in a snapshot, and how long does a saved pod make others wait?

The pods hold agents and chats over shared system prompts. `KVBRAID_BENCH_BLOCKS` makes them
smaller for a quick look.
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import SECRET_BYTES, FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from bench.fleet.ours import FULL, apply_all, pod_name
from bench.fleet.ours import new_index as index_of
from bench.fleet.streams import NUM_PODS, Mix
from bench.harness.measure import Row, Sample, Slice, Target, before_others

NUM_BLOCKS = int(os.environ.get("KVBRAID_BENCH_BLOCKS", "10_000_000"))
NUM_SAVES = 32
NUM_BATCHES = 20_000
EVENTS_PER_S = 100_000
OPTIONS = IndexOptions(secret=bytes(SECRET_BYTES))


new_index = partial(index_of, options=OPTIONS)


def full_index(num_blocks: int, new: Callable[[], FleetIndex] = new_index) -> FleetIndex:
    """Return an index that has taken in so many stored blocks."""
    index = new()
    for message in Mix(num_blocks):
        index.apply(pod_name(message.pod), message.payload)
    return index


def sglang_index() -> FleetIndex:
    """Return an index of pods with windows, of which no event tells."""
    index = FleetIndex(OPTIONS)
    groups = (FULL, GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=1024))
    engine = EngineProfile(dialect=EngineDialect.SGLANG)
    for pod in map(pod_name, range(NUM_PODS)):
        index.register(pod, model="model", topology=Topology(groups=groups), engine=engine)
    return index


def bytes_per_block(num_blocks: int, new: Callable[[], FleetIndex] = new_index) -> float:
    """Return the bytes of all snapshots per block that they hold; each can be read."""
    index, other = full_index(num_blocks, new), new()
    num_bytes = 0
    for pod in map(pod_name, range(NUM_PODS)):
        saved = index.save(pod)
        num_bytes += len(saved)
        other.load(pod, saved)
    blocks = [sum(row.num_blocks for row in one.pods()) for one in (index, other)]
    assert blocks[0] == blocks[1]
    return num_bytes / blocks[0]


@contextlib.contextmanager
def size(num_blocks: int, new: Callable[[], FleetIndex] = new_index) -> Iterator[Sample]:
    """Bytes per block."""
    yield lambda: bytes_per_block(num_blocks, new)


@contextlib.contextmanager
def pause(*, is_saved: bool) -> Iterator[Sample]:
    """The longest answer in milliseconds while batches come in, and perhaps pods are saved.

    The batches are made before, so that no thread keeps the interpreter for long.
    """
    index = full_index(NUM_BLOCKS)
    batches = [
        (pod_name(message.pod), message.payload, message.num_stored)
        for message in itertools.islice(Mix(NUM_BLOCKS, seed=4), NUM_BATCHES)
    ]
    request = Request(model="model", token_ids=range(1024))

    def sample() -> float:
        over = threading.Event()
        coming = threading.Thread(target=publish, args=(index, batches, over))
        saving = threading.Thread(target=save, args=(index if is_saved else None, over))
        longest = 0.0
        with before_others():
            for thread in (coming, saving):
                thread.start()
            while saving.is_alive():
                begin = time.perf_counter()
                index.score(request)
                longest = max(longest, time.perf_counter() - begin)
                time.sleep(0.001)
            over.set()
            for thread in (coming, saving):
                thread.join()
        return 1e3 * longest

    yield sample


def publish(
    index: FleetIndex, batches: Sequence[tuple[PodId, bytes, int]], over: threading.Event
) -> None:
    """Apply blocks at a steady rate until it is over."""
    begin, num_stored = time.monotonic(), 0
    for pod, payload, blocks in itertools.cycle(batches):
        index.apply(pod, payload)
        num_stored += blocks
        if over.wait(max(0.0, begin + num_stored / EVENTS_PER_S - time.monotonic())):
            return


def save(index: FleetIndex | None, over: threading.Event) -> None:
    """Save some pods, one after the other; None: take as long without it."""
    for pod in range(NUM_SAVES):
        if index is not None:
            index.save(pod_name(pod % NUM_PODS))
        over.wait(0.03)


@contextlib.contextmanager
def load() -> Iterator[Sample]:
    """Seconds until an empty index knows all pods."""
    index = full_index(NUM_BLOCKS)
    saved = {pod: index.save(pod) for pod in map(pod_name, range(NUM_PODS))}
    del index

    def sample() -> float:
        other = new_index()
        begin = time.perf_counter()
        for pod, content in saved.items():
            other.load(pod, content)
        return time.perf_counter() - begin

    yield sample


@contextlib.contextmanager
def replay() -> Iterator[Sample]:
    """Seconds until an empty index knows all pods from all of their batches."""
    batches = list(Mix(NUM_BLOCKS))

    def sample() -> float:
        other = new_index()
        begin = time.perf_counter()
        apply_all(other, batches)
        return time.perf_counter() - begin

    yield sample


ROWS = (
    Row(
        name="snapshot_size",
        question="64 pods, agents and chats",
        unit="bytes per block",
        ours=partial(size, NUM_BLOCKS),
        target=Target(ours=20),
        samples=1,
        beside={"SGLang with windows": partial(size, NUM_BLOCKS // 10, sglang_index)},
        slice=Slice(lambda: bytes_per_block(20_000), Target(ours=30)),
    ),
    Row(
        name="snapshot_pause",
        question="pods are saved while 100 000 blocks/s come in: the longest answer",
        unit="ms",
        ours=partial(pause, is_saved=True),
        target=Target(ours=5),
        samples=3,
        beside={"without saving": partial(pause, is_saved=False)},
    ),
    Row(
        name="snapshot_load",
        question="64 pods: files read by an empty index / every batch again",
        unit="s",
        ours=load,
        rival=replay,
        target=Target(ours=10),
        samples=3,
    ),
)
