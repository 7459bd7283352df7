"""How long does a start take that lists the records of a directory?

The directory has 100 000 records of one namespace. Ours opens it as a tier and lists the keys; the
other side reads the names of the same folders by `os.scandir` alone.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import record_name, shard_of

from bench.harness.measure import Row, Sample, Target
from bench.transfer.records import NAMESPACE, RECORD_BYTES, keys

NUM_RECORDS = 100_000


@cache
def filled() -> TemporaryDirectory[str]:
    """Make a directory of empty files with names of records, removed when this process ends."""
    place = TemporaryDirectory(prefix="kvbraid-bench-")
    root = Path(place.name, "tier", NAMESPACE.digest)
    for number in range(256):
        (root / f"{number:02x}").mkdir(parents=True)
    for key in keys(0, NUM_RECORDS):
        (root / shard_of(key) / record_name(key, RECORD_BYTES)).touch()
    return place


@contextlib.contextmanager
def ours() -> Iterator[Sample]:
    """Open the directory as a tier and list its keys."""

    def sample() -> float:
        begin = time.process_time_ns()
        tier = DiskTier(Path(filled().name, "tier"), max_bytes=1 << 60)
        tier.open(NAMESPACE)
        number = len(list(tier.keys()))
        spent = time.process_time_ns() - begin
        tier.close()
        assert number == NUM_RECORDS
        return spent / NUM_RECORDS / 1e3

    filled()
    yield sample


@contextlib.contextmanager
def scandir() -> Iterator[Sample]:
    """Read the names."""

    def sample() -> float:
        root = Path(filled().name, "tier", NAMESPACE.digest)
        begin = time.process_time_ns()
        number = 0
        for shard in os.scandir(root):
            with os.scandir(shard.path) as entries:
                number += len([entry.name for entry in entries])
        spent = time.process_time_ns() - begin
        assert number == NUM_RECORDS
        return spent / NUM_RECORDS / 1e3

    filled()
    yield sample


ROWS = (
    Row(
        name="tier_scan",
        question="open a directory of 100 000 records and list them, against os.scandir",
        unit="us CPU a record",
        ours=ours,
        rival=scandir,
        target=Target(ratio=0.2),
    ),
)
