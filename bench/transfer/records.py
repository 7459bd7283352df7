"""Records to store and load, and a store of them on a directory of its own."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from kvbraid.ids import BlockId
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import PAGE_BYTES, pages
from kvbraid.transfer.status import Status

from bench.harness.measure import Sample, Side

Measure: TypeAlias = Callable[[Callable[[], object]], float]
"""Makes a call that moves all records, and returns its figure."""

RECORD_BYTES: Final = 4 << 20
NUM_RECORDS: Final = 32
NUM_THREADS: Final = 4
NAMESPACE: Final = Namespace(
    layout="plan", model="model", hash_algorithm="sha256_cbor", hash_seed="0"
)
NOWHERE: Final = BlockId(0)


def keys(seed: int, number: int = NUM_RECORDS) -> list[BlockKey]:
    """Return keys that no other seed has."""
    random = Random(seed)
    return [BlockKey(random.randbytes(32), 0) for _ in range(number)]


def arena(*, filled: bool) -> list[memoryview]:
    """Return the buffers of records: slots of one arena, as host memory has them."""
    memory = pages(NUM_RECORDS * RECORD_BYTES // PAGE_BYTES)
    memory[:] = Random(1).randbytes(RECORD_BYTES) * NUM_RECORDS if filled else bytes(memory.nbytes)
    starts = range(0, memory.nbytes, RECORD_BYTES)
    return [memory[start : start + RECORD_BYTES] for start in starts]


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Make a directory for files and remove it at the end."""
    path = Path(tempfile.mkdtemp(prefix="kvbraid-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Store:
    """A store of records on a directory."""

    def __init__(self, path: Path) -> None:
        self.tier = DiskTier(path, max_bytes=1 << 40)
        self.store = RecordStore("disk", self.tier, namespace=NAMESPACE, used_bytes=[RECORD_BYTES])
        self._number = 0

    def run(self, kind: Kind, names: list[BlockKey], buffers: list[memoryview]) -> None:
        """Do a job, and assert that each of its records ends with `OK`."""
        self._number += 1
        items = tuple(Item(0, NOWHERE, NOWHERE, each) for each in names)
        self.store.submit(Job(number=self._number, kind=kind, items=items), buffers)
        while not (results := self.store.wait(60.0)):
            pass
        assert set(results[0].statuses) == {Status.OK}, results

    def close(self) -> None:
        """End its threads."""
        assert self.store.close()


def stores(measure: Measure) -> Side:
    """Store records that are not there yet."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with directory() as path:
            store, buffers, seeds = Store(path), arena(filled=True), count()

            def sample() -> float:
                names = keys(next(seeds))
                figure = measure(lambda: store.run(Kind.WRITE, names, buffers))
                for each in names:
                    store.tier.drop(each)
                return figure

            yield sample
            store.close()

    return side


def loads(measure: Measure) -> Side:
    """Load records that were stored."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        with directory() as path:
            store, names, buffers = Store(path), keys(0), arena(filled=True)
            store.run(Kind.WRITE, names, buffers)
            yield lambda: measure(lambda: store.run(Kind.PROMOTE, names, buffers))
            store.close()

    return side
