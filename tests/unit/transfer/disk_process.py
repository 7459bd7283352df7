"""A process that uses a directory beside a test's: `python -m tests.unit.transfer.disk_process`.

It is told what to do on its command line, prints a line once it has begun, and ends when its
input ends, unless it kills itself before.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.records import PAGE_BYTES, pages, write_header
from kvbraid.transfer.status import Status

from tests.unit.transfer.faulty_tier import NAMESPACE, USED, block, key

RECORD_BYTES = PAGE_BYTES + USED[0]


def store(tier: DiskTier, number: int) -> Status:
    """Store the record of a number as `RecordStore` does."""
    page, payload = pages(), block(number)
    write_header(page, key(number), bytes.fromhex(NAMESPACE.digest), payload)
    return tier.store(key(number), page, payload)


def hold(tier: DiskTier) -> None:
    """Hold the lock."""
    assert tier.counts().evicts


def die_before_rename(tier: DiskTier) -> None:
    """Be killed when a record has been written and has no name yet."""
    os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    store(tier, 1)


def store_same(tier: DiskTier) -> None:
    """Store the records that a test stores too, again and again."""
    for round_number in range(20):
        for number in range(10):
            assert store(tier, number) is Status.OK
            if round_number % 3 == number % 3:
                tier.drop(key(number))
    for number in range(10):
        assert store(tier, number) is Status.OK


def evict(tier: DiskTier) -> None:
    """Store so much that what a test has read has to go, unless the test goes on reading it."""
    assert tier.counts().evicts
    for number in range(1_000, 1_060):
        # What was read since it was chosen stays, so there may be no room.
        assert store(tier, number) in {Status.OK, Status.FULL}
        tier.refresh()


@contextmanager
def beside(directory: Path, what: str, max_records: int = 100) -> Iterator[subprocess.Popen[str]]:
    """Run a process that does something with a directory, from when it has opened it."""
    command = [sys.executable, "-m", __name__, str(directory), what, str(max_records)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    _, place, name, limit = sys.argv
    mine = DiskTier(place, max_bytes=int(limit) * RECORD_BYTES)
    mine.open(NAMESPACE)
    print("open", flush=True)  # noqa: T201 - the test waits for it.
    globals()[name](mine)
    sys.stdin.read()
    mine.close()
