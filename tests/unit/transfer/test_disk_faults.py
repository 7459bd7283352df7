"""Bad days of a disk, each with the reason that is counted: nothing wrong is ever served.

Files are damaged as they are, and system calls fail as a kernel lets them fail. What follows is
what the owner of the records sees: a status per block, in time.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import is_temporary, parse_record, record_name, shard_of
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import Namespace
from kvbraid.transfer.record_store import RecordStore, StoreOptions
from kvbraid.transfer.records import PAGE_BYTES, padded
from kvbraid.transfer.status import Status

from tests.unit.transfer.faulty_tier import (
    NAMESPACE,
    USED,
    FakeClock,
    Hang,
    block,
    empty,
    ended,
    job,
    key,
    run,
)

OTHERS = replace(NAMESPACE, rank=1)


class Disk:
    """A directory, and a store of records on it."""

    def __init__(self, path: Path, namespace: Namespace = NAMESPACE, *, max_records: int) -> None:
        self.clock = FakeClock()
        self.namespace = namespace
        self.tier = DiskTier(path, max_bytes=max_records * (PAGE_BYTES + USED[0]))
        self.store = RecordStore(
            "disk",
            self.tier,
            namespace=namespace,
            used_bytes=USED,
            options=StoreOptions(num_threads=2, max_hung_threads=2, pause_s=10),
            clock=self.clock,
        )
        self._jobs = 0

    def write(self, *numbers: int) -> list[Status]:
        return self._run(Kind.WRITE, numbers, [block(number) for number in numbers])

    def load(self, *numbers: int) -> list[Status]:
        """Load records, and see that each that is `OK` has its bytes."""
        buffers = [empty() for _ in numbers]
        statuses = self._run(Kind.PROMOTE, numbers, buffers)
        for number, buffer, status in zip(numbers, buffers, statuses, strict=True):
            assert status is not Status.OK or buffer == block(number)
        return statuses

    def _run(self, kind: Kind, numbers: tuple[int, ...], blocks: list[memoryview]) -> list[Status]:
        self._jobs += 1
        return [*run(self.store, job(self._jobs, kind, *map(key, numbers)), *blocks)]

    def file(self, number: int) -> Path:
        which = key(number)
        name = record_name(which, padded(USED[0]))
        return self.tier.directory / self.namespace.digest / shard_of(which) / name

    def temporaries(self) -> list[str]:
        return [path.name for path in self.tier.directory.rglob("*") if is_temporary(path.name)]


Opens = Callable[..., Disk]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opens]:
    """Open stores on one directory; at the end no thread and no temporary file is left."""
    disks: list[Disk] = []

    def open_disk(namespace: Namespace = NAMESPACE, max_records: int = 100) -> Disk:
        disks.append(Disk(tmp_path / "tier", namespace, max_records=max_records))
        return disks[-1]

    yield open_disk
    for disk in disks:
        disk.store.check_integrity()
        disk.tier.check_integrity()
        assert disk.store.close(60)
        assert not disk.temporaries()
    assert not [each for each in threading.enumerate() if each.name.startswith("kvbraid-")]


@pytest.fixture
def disk(opened: Opens) -> Disk:
    return opened()


def spoil(monkeypatch: pytest.MonkeyPatch, call: str, before: Callable[..., None]) -> None:
    """Let something happen before each system call of a name, and instead of it if it raises."""
    real = getattr(os, call)

    def spoiled(*arguments: object, **named: object) -> object:
        before(*arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(os, call, spoiled)


def raising(number: int) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("length", [0, 100, PAGE_BYTES, PAGE_BYTES + 8_000])
def test_a_short_file_is_short_and_removed(disk: Disk, length: int) -> None:
    disk.write(1, 2)
    os.truncate(disk.file(1), length)
    assert disk.load(1, 2) == [Status.SHORT, Status.OK]
    assert not disk.file(1).exists()
    assert disk.load(1) == [Status.MISS]
    assert disk.store.counts().num_bad == 1
    assert disk.write(1) == [Status.OK]
    assert disk.load(1) == [Status.OK]


@pytest.mark.parametrize("position", [0, 13, 60, 2_000, PAGE_BYTES - 1, PAGE_BYTES, -1])
def test_a_flipped_bit_anywhere_is_corrupt_and_the_file_removed(disk: Disk, position: int) -> None:
    disk.write(1)
    data = bytearray(disk.file(1).read_bytes())
    data[position] ^= 0x10
    disk.file(1).write_bytes(data)
    assert disk.load(1) == [Status.CORRUPT]
    assert not disk.file(1).exists()
    assert disk.store.counts().blocks[Kind.PROMOTE][Status.CORRUPT] == 1


def test_zeros_that_a_power_cut_leaves_are_corrupt(disk: Disk) -> None:
    disk.write(1)
    disk.file(1).write_bytes(bytes(disk.file(1).stat().st_size))
    assert disk.load(1) == [Status.CORRUPT]


def test_a_record_of_another_namespace_is_foreign_and_stays(opened: Opens) -> None:
    mine, theirs = opened(), opened(OTHERS)
    mine.write(1)
    theirs.write(1)
    shutil.copy(theirs.file(1), mine.file(1))
    assert mine.load(1) == [Status.FOREIGN]
    assert mine.file(1).exists()
    assert mine.store.counts().num_foreign == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_stops_stores_for_a_while_and_loads_go_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk.write(1)
    with monkeypatch.context() as patch:
        spoil(patch, "pwritev", raising(number))
        assert disk.write(2, 3) == [Status.FULL, Status.FULL]
    assert not disk.temporaries()
    assert disk.load(1, 2) == [Status.OK, Status.MISS]
    assert disk.write(2) == [Status.FULL], "it is not tried"
    assert disk.store.counts().refused_by_pause > 0
    disk.clock.now += 11
    assert disk.write(2) == [Status.OK]
    assert disk.tier.counts().records == 2


def test_a_vanished_file_is_a_miss_and_forgotten(disk: Disk) -> None:
    disk.write(1, 2)
    disk.file(1).unlink()
    assert disk.load(1, 2) == [Status.MISS, Status.OK]
    assert disk.tier.counts().records == 1


def test_a_read_that_hangs_fails_at_its_deadline_while_others_are_served(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write(1, 2)
    hang, first = Hang(), threading.Event()

    def once(*arguments: object) -> None:
        if not first.is_set():
            first.set()
            hang(key(1))

    spoil(monkeypatch, "preadv", once)
    buffer = empty()
    disk.store.submit(job(100, Kind.PROMOTE, key(1)), [buffer])
    assert hang.began.wait(60)
    assert disk.load(2) == [Status.OK]
    disk.clock.now += 60
    (result,) = disk.store.poll()
    assert (result.statuses, result.is_over) == ((Status.TIMEOUT,), False)
    assert disk.load(2) == [Status.OK]
    assert disk.store.counts().hung_threads == 1
    hang.end.set()
    (result,) = ended(disk.store)
    assert (result.statuses, result.is_over) == ((Status.TIMEOUT,), True)


def test_reads_that_fail_are_errors_with_their_text(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write(1)
    with monkeypatch.context() as patch:
        spoil(patch, "preadv", raising(errno.EIO))
        assert disk.load(1) == [Status.IO_ERROR]
    assert "Input/output error" in disk.store.counts().last_error
    assert disk.load(1) == [Status.OK], "the record is not blamed"


def test_three_writes_that_fail_stop_stores_for_a_while(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write(1)
    with monkeypatch.context() as patch:
        spoil(patch, "pwritev", raising(errno.EIO))
        assert [disk.write(number) for number in (2, 3, 4)] == [[Status.IO_ERROR]] * 3
    assert disk.write(5) == [Status.IO_ERROR]
    assert disk.store.counts().refused_by_pause == 1
    assert disk.load(1) == [Status.OK]
    assert not disk.temporaries()
    disk.clock.now += 11
    assert disk.write(5) == [Status.OK]


def test_writes_and_reads_in_pieces_are_put_together(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_pages(call: Callable[..., int]) -> Callable[..., int]:
        def one_page(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            return call(descriptor, [memoryview(buffers[0])[:PAGE_BYTES]], offset)

        return one_page

    monkeypatch.setattr(os, "pwritev", in_pages(os.pwritev))
    monkeypatch.setattr(os, "preadv", in_pages(os.preadv))
    assert disk.write(1, 2) == [Status.OK] * 2
    assert disk.load(1, 2) == [Status.OK] * 2


def test_a_file_system_that_refuses_direct_access_late_is_read_through_its_cache(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(descriptor: int, *arguments: object) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not direct")

    spoil(monkeypatch, "pwritev", refuse)
    spoil(monkeypatch, "preadv", refuse)
    assert disk.tier.counts().is_direct
    assert disk.write(1) == [Status.OK]
    assert disk.load(1) == [Status.OK]


def test_a_write_that_nothing_comes_of_is_an_error(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *arguments: 0)
    assert disk.write(1) == [Status.IO_ERROR]
    assert not disk.file(1).exists()


@pytest.mark.parametrize("seconds", [1, 4_000_000_000])
def test_a_clock_that_was_set_back_or_ahead_costs_hits_at_most(
    opened: Opens, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """Files and folders are used in the future, or in 1970."""
    disk, other = opened(max_records=20), opened(max_records=20)
    disk.write(*range(10))
    for number in range(10):
        os.utime(disk.file(number), (seconds, seconds))
        os.utime(disk.file(number).parent, (seconds, seconds))
    other.tier.refresh()
    assert other.load(*range(10)) == [Status.OK] * 10
    disk.file(3).unlink()
    os.utime(disk.file(3).parent, (seconds, seconds))
    other.tier.refresh()
    assert disk.write(*range(20, 40)) == [Status.OK] * 20
    assert disk.tier.counts().total_bytes <= disk.tier.counts().max_bytes
    assert set(disk.load(*range(10), *range(20, 40))) == {Status.OK, Status.MISS}


def test_a_record_that_is_evicted_while_it_is_read_is_read_to_its_end(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write(1)
    spoil(monkeypatch, "preadv", lambda *_: disk.file(1).unlink(missing_ok=True))
    assert disk.load(1) == [Status.OK]
    assert disk.load(1) == [Status.MISS]


def test_a_tier_that_dies_under_load_answers_everything(disk: Disk) -> None:
    disk.write(*range(10))
    for number in range(10):
        disk.store.submit(job(100 + number, Kind.WRITE, key(50 + number)), [block(50 + number)])
        disk.store.submit(job(200 + number, Kind.PROMOTE, key(number)), [empty()])
        if number == 5:
            shutil.rmtree(disk.tier.directory, ignore_errors=True)
    results = {result.number: result.statuses[0] for result in ended(disk.store, 20)}
    assert len(results) == 20
    assert results[209] in {Status.MISS, Status.IO_ERROR}
    assert set(results.values()) <= {Status.OK, Status.MISS, Status.IO_ERROR}
    shutil.rmtree(disk.tier.directory, ignore_errors=True)
    assert set(disk.load(*range(10))) <= {Status.MISS, Status.IO_ERROR}
    (status,) = disk.write(99)
    assert status is Status.IO_ERROR
    assert "No such file" in disk.store.counts().last_error
    disk.store.refresh()


def test_what_is_stored_while_its_folder_is_scanned_is_kept(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan has read the names before the record came."""
    disk.write(1)
    real = os.listdir

    def listed(place: int) -> list[str]:
        names = real(place)
        if any(parse_record(name) for name in names):
            monkeypatch.setattr(os, "listdir", real)
            disk.file(1).unlink()
            disk.load(1)
            disk.write(1)
        return [name for name in names if name != disk.file(1).name]

    monkeypatch.setattr(os, "listdir", listed)
    assert not disk.tier.refresh().removed
    assert [*disk.tier.keys()] == [key(1)]
