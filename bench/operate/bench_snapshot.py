"""How many bytes does a block take in a snapshot, and how long does a saved pod make others wait?

The pods hold agents and chats over shared system prompts. `KVBRAID_BENCH_BLOCKS` makes them
smaller for a quick look.
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator

from kvbraid.fleet.index import SECRET_BYTES, FleetIndex, IndexOptions
from kvbraid.fleet.request import Request

from bench.fleet.ours import apply_all, new_index, pod_name
from bench.fleet.streams import NUM_PODS, Mix
from bench.harness.measure import Row, Sample, Slice, Target

NUM_BLOCKS = int(os.environ.get("KVBRAID_BENCH_BLOCKS", "10_000_000"))
NUM_SAVES = 32
EVENTS_PER_S = 100_000
OPTIONS = IndexOptions(secret=bytes(SECRET_BYTES))


def full_index(num_blocks: int) -> FleetIndex:
    """Return an index that has taken in so many stored blocks."""
    index = new_index(options=OPTIONS)
    apply_all(index, Mix(num_blocks))
    return index


def bytes_per_block(num_blocks: int) -> float:
    """Return the bytes of all snapshots per block that they hold; each can be read."""
    index, other = full_index(num_blocks), new_index(options=OPTIONS)
    num_bytes = 0
    for pod in map(pod_name, range(NUM_PODS)):
        saved = index.save(pod)
        num_bytes += len(saved)
        other.load(pod, saved)
    blocks = [sum(row.num_blocks for row in one.pods()) for one in (index, other)]
    assert blocks[0] == blocks[1]
    return num_bytes / blocks[0]


@contextlib.contextmanager
def size() -> Iterator[Sample]:
    """Bytes per block."""
    yield lambda: bytes_per_block(NUM_BLOCKS)


@contextlib.contextmanager
def pause() -> Iterator[Sample]:
    """The longest answer in milliseconds while pods are saved, and batches come in."""
    index = full_index(NUM_BLOCKS)
    request = Request(model="model", token_ids=range(1024))

    def sample() -> float:
        over = threading.Event()
        threads = [threading.Thread(target=work, args=(index, over)) for work in (publish, save)]
        for thread in threads:
            thread.start()
        longest = 0.0
        while threads[1].is_alive():
            begin = time.perf_counter()
            index.score(request)
            longest = max(longest, time.perf_counter() - begin)
            time.sleep(0.001)
        over.set()
        for thread in threads:
            thread.join()
        return 1e3 * longest

    yield sample


def publish(index: FleetIndex, over: threading.Event) -> None:
    """Apply blocks at a steady rate until it is over."""
    begin, num_stored = time.monotonic(), 0
    for message in itertools.takewhile(lambda _: not over.is_set(), Mix(NUM_BLOCKS)):
        apply_all(index, [message])
        num_stored += message.num_stored
        over.wait(max(0.0, begin + num_stored / EVENTS_PER_S - time.monotonic()))


def save(index: FleetIndex, over: threading.Event) -> None:
    """Save some pods, one after the other."""
    for pod in range(NUM_SAVES):
        index.save(pod_name(pod % NUM_PODS))
        over.wait(0.01)


@contextlib.contextmanager
def load() -> Iterator[Sample]:
    """Seconds until an empty index knows all pods."""
    index = full_index(NUM_BLOCKS)
    saved = {pod: index.save(pod) for pod in map(pod_name, range(NUM_PODS))}
    del index

    def sample() -> float:
        other = new_index(options=OPTIONS)
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
        other = new_index(options=OPTIONS)
        begin = time.perf_counter()
        apply_all(other, batches)
        return time.perf_counter() - begin

    yield sample


ROWS = (
    Row(
        name="snapshot_size",
        question="64 pods, agents and chats",
        unit="bytes per block",
        ours=size,
        target=Target(ours=20),
        samples=1,
        slice=Slice(lambda: bytes_per_block(20_000), Target(ours=30)),
    ),
    Row(
        name="snapshot_pause",
        question="pods are saved while 100 000 blocks/s come in: the longest answer",
        unit="ms",
        ours=pause,
        target=Target(ours=5),
        samples=3,
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
