"""How much CPU does a record cost beyond what its bytes cost?

The other side makes bare calls: open around the page cache, write or read, close, rename; and one
pass of XXH3 over the payload.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.records import pages
from xxhash import xxh3_64_intdigest

from bench.harness.measure import Row, Sample, Side, Target
from bench.transfer.records import NUM_RECORDS, Store, arena, directory, keys

WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT


def cpu_us(begin: int) -> float:
    """Return the CPU time of this process since then, for each record."""
    return (time.process_time_ns() - begin) / NUM_RECORDS / 1e3


@contextlib.contextmanager
def our_stores() -> Iterator[Sample]:
    """Store records that are not there yet."""
    with directory() as path:
        store, buffers, seeds = Store(path), arena(filled=True), count()

        def sample() -> float:
            names = keys(next(seeds))
            begin = time.process_time_ns()
            store.run(Kind.WRITE, names, buffers)
            figure = cpu_us(begin)
            for each in names:
                store.tier.drop(each)
            return figure

        yield sample
        store.close()


@contextlib.contextmanager
def our_loads() -> Iterator[Sample]:
    """Load records that were stored."""
    with directory() as path:
        store, names, buffers = Store(path), keys(0), arena(filled=True)
        store.run(Kind.WRITE, names, buffers)

        def sample() -> float:
            begin = time.process_time_ns()
            store.run(Kind.PROMOTE, names, buffers)
            return cpu_us(begin)

        yield sample
        store.close()


def write(path: Path, header: memoryview, buffers: list[memoryview]) -> None:
    """Make the bare calls of a store for each buffer."""
    for number, buffer in enumerate(buffers):
        temporary = path / f"{number}.tmp"
        xxh3_64_intdigest(buffer)
        descriptor = os.open(temporary, WRITE)
        os.pwritev(descriptor, [header, buffer], 0)
        os.close(descriptor)
        os.rename(temporary, path / str(number))


def read(path: Path, header: memoryview, buffers: list[memoryview]) -> None:
    """Make the bare calls of a load for each buffer."""
    for number, buffer in enumerate(buffers):
        descriptor = os.open(path / str(number), os.O_RDONLY | os.O_DIRECT)
        os.preadv(descriptor, [header, buffer], 0)
        os.close(descriptor)
        xxh3_64_intdigest(buffer)


def bare(*, loads: bool) -> Side:
    """Make bare calls."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with directory() as path:
            header, buffers = pages(), arena(filled=True)

            def sample() -> float:
                for file in path.iterdir():
                    file.unlink()
                begin = time.process_time_ns()
                write(path, header, buffers)
                return cpu_us(begin)

            def load() -> float:
                begin = time.process_time_ns()
                read(path, header, buffers)
                return cpu_us(begin)

            sample()
            yield load if loads else sample

    return side


ROWS = tuple(
    Row(
        name=name,
        question=f"{what} a record of 4 MiB, against bare calls and one pass of XXH3",
        unit="us CPU",
        ours=ours,
        rival=bare(loads=loads),
        target=Target(ratio=0.8),
        samples=11,
    )
    for name, what, ours, loads in (
        ("disk_cpu_store", "store", our_stores, False),
        ("disk_cpu_load", "load and verify", our_loads, True),
    )
)
