"""How much CPU does a record cost beyond what its bytes cost?

The other side makes bare calls: open around the page cache, write or read, close, rename; and one
pass of XXH3 over the payload.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvbraid.transfer.records import pages
from xxhash import xxh3_64_intdigest

from bench.harness.measure import Row, Sample, Side, Target
from bench.transfer.records import NUM_RECORDS, arena, directory, loads, stores

WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT


def cpu_us(call: Callable[[], object]) -> float:
    """Return the CPU time of this process in a call that moves all records, for each of them."""
    begin = time.process_time_ns()
    call()
    return (time.process_time_ns() - begin) / NUM_RECORDS / 1e3


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


def bare(*, are_loads: bool) -> Side:
    """Make bare calls."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with directory() as path:
            header, buffers = pages(), arena(filled=True)

            def sample() -> float:
                for file in path.iterdir():
                    file.unlink()
                return cpu_us(lambda: write(path, header, buffers))

            sample()
            yield (lambda: cpu_us(lambda: read(path, header, buffers))) if are_loads else sample

    return side


ROWS = tuple(
    Row(
        name=name,
        question=f"{what} a record of 4 MiB, against bare calls and one pass of XXH3",
        unit="us CPU",
        ours=ours,
        rival=bare(are_loads=are_loads),
        target=Target(ratio=0.8),
        samples=11,
    )
    for name, what, ours, are_loads in (
        ("disk_cpu_store", "store", stores(cpu_us), False),
        ("disk_cpu_load", "load and verify", loads(cpu_us), True),
    )
)
