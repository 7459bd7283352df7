"""How much CPU does a hit of a long prompt take over what moving its bytes takes?

Of 32 768 tokens two thirds are in host memory and a sixth is on disk. Ours looks the prompt up in
every step until the records are read and verified, loads, commits, allocates the last sixth, and
takes the events. The rival reads the same files around the page cache into the same slots, on
four threads and without a checksum, and copies the same blocks to the pool by memcpy in C, in the
order of ours. Beside: wall times, and our CPU time without the worker's and its threads.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from kvbraid.transfer.disk.names import record_name, shard_of
from kvbraid.transfer.jobs import Item, Kind
from kvbraid.transfer.records import pages

from bench.cache.side import BLOCK
from bench.harness.measure import Row, Sample, Side, Target
from bench.transfer.native_copy import COMPILER, native_loop
from bench.transfer.offloaded import IN_HOST, STORED, Offloaded, offloaded
from bench.transfer.records import NUM_THREADS

WALL_MS: Final[dict[str, float]] = {}
"""Of the last sample of each side."""
SCHEDULER_MS: Final[list[float]] = []
WINDOW_BLOCKS: Final = 8


@contextlib.contextmanager
def ours() -> Iterator[Sample]:
    """Serve the prompt."""
    engine = offloaded()

    def sample() -> float:
        request = engine.add()
        engine.worker_ns, begin, cpu = 0, time.perf_counter_ns(), time.process_time_ns()
        thread = time.thread_time_ns()
        engine.hit(request)
        SCHEDULER_MS.append((time.thread_time_ns() - thread - engine.worker_ns) / 1e6)
        cpu = time.process_time_ns() - cpu
        WALL_MS["ours"] = (time.perf_counter_ns() - begin) / 1e6
        engine.end(request)
        return cpu / 1e6

    yield sample


def plain(engine: Offloaded) -> Callable[[], None]:
    """Return what reads and copies the same bytes as the engine's last request did."""
    items: dict[Kind, list[Item]] = {kind: [] for kind in Kind}
    for job in engine.jobs:
        # Of a job the mover takes blocks by their groups and ids.
        items[job.kind] += sorted(job.items, key=lambda item: (item.group, item.target))
    reads = [
        (
            engine.files / shard_of(item.key) / record_name(item.key, engine.block_bytes),
            engine.host.payload(item.target, item.group),
        )
        for item in items[Kind.PROMOTE]
        if item.key is not None
    ]
    slots, blocks = np.array([(i.source, i.target) for i in items[Kind.LOAD]], np.uint64).T
    sources = engine.host.addresses(slots)
    targets = np.uint64(engine.base) + blocks * np.uint64(engine.block_bytes)
    lengths, copy = np.full(len(slots), engine.block_bytes, np.uint64), native_loop()

    def read(thread: int) -> None:
        header = pages()
        for path, payload in reads[thread::NUM_THREADS]:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            os.preadv(descriptor, [header, payload], 0)
            os.close(descriptor)

    def move() -> None:
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            list(threads.map(read, range(NUM_THREADS)))
        copy(sources, targets, lengths)

    return move


@contextlib.contextmanager
def rival() -> Iterator[Sample]:
    """Move the same bytes."""
    engine = offloaded()
    request = engine.add()
    engine.hit(request)
    engine.end(request)
    move = plain(engine)

    def sample() -> float:
        begin, cpu = time.perf_counter_ns(), time.process_time_ns()
        move()
        cpu = time.process_time_ns() - cpu
        WALL_MS["rival"] = (time.perf_counter_ns() - begin) / 1e6
        return cpu / 1e6

    yield sample


def check() -> None:
    """Check that both sides bring the same blocks, and every byte of them."""
    engine = offloaded()
    request = engine.add()
    found = engine.hit(request)
    engine.check_loaded(request, found)
    assert (found.match.num_tokens, found.num_tokens) == (0, STORED), found.match
    num = Counter(job.kind for job in engine.jobs for _ in job.items)
    assert num == {
        Kind.PROMOTE: (STORED - IN_HOST) // BLOCK + WINDOW_BLOCKS,
        Kind.LOAD: STORED // BLOCK + WINDOW_BLOCKS,
    }, num
    for source in found.sources:
        engine.pool[engine.cache.blocks(request)[source.group][source.position]] = 0
    plain(engine)()
    engine.check_loaded(request, found)
    engine.end(request)


def beside(figure: Callable[[], float]) -> Side:
    """Return what was measured in the last sample."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        yield figure

    return side


ROWS = (
    Row(
        name="offload_hit",
        question="32 768 tokens, 2/3 on host, 1/6 on disk, against reads and memcpy of the bytes",
        unit="ms CPU",
        ours=ours,
        rival=rival,
        target=Target(ratio=0.7),
        samples=11,
        check=check,
        lacks="" if COMPILER else "no C compiler is called cc: install one",
        beside={
            "scheduler": beside(lambda: SCHEDULER_MS[-1]),
            "wall_ms": beside(lambda: WALL_MS["ours"]),
            "rival_wall_ms": beside(lambda: WALL_MS["rival"]),
        },
    ),
)
