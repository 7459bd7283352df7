"""A directory as a tier: names, limits, who evicts what, what others do, and hostile entries."""

import fcntl
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import (
    file_bytes_of,
    is_namespace,
    is_shard,
    is_temporary,
    key_of,
    new_temporary,
    parse_record,
    record_name,
    shard_of,
)
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.records import PAGE_BYTES, pages
from kvbraid.transfer.status import Status
from kvbraid.transfer.tier import TierChanges

from tests.unit.transfer.faulty_tier import NAMESPACE, key

RECORD_BYTES = 2 * PAGE_BYTES
"""A header, and a payload of one page."""
OTHERS = replace(NAMESPACE, model="another")


class Directory:
    """A folder and the tiers on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tiers: list[DiskTier] = []

    def open(self, namespace: Namespace = NAMESPACE, *, max_records: int = 1_000) -> DiskTier:
        tier = DiskTier(self.path, max_bytes=max_records * RECORD_BYTES)
        tier.open(namespace)
        self.tiers.append(tier)
        return tier

    def file(self, which: BlockKey, namespace: Namespace = NAMESPACE) -> Path:
        name = record_name(which, PAGE_BYTES)
        return self.path / namespace.digest / shard_of(which) / name

    def names(self) -> set[str]:
        return {path.name for path in self.path.rglob("*") if not path.is_dir()}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    found = Directory(tmp_path / "tier")
    yield found
    for tier in found.tiers:
        tier.check_integrity()
        tier.close()


def store(tier: DiskTier, *numbers: int) -> list[Status]:
    return [tier.store(key(number), pages(), pages()) for number in numbers]


def load(tier: DiskTier, number: int) -> Status:
    return tier.load(key(number), pages(), pages())


def used(directory: Directory, number: int, seconds: int) -> None:
    """Say when a record was used last."""
    os.utime(directory.file(key(number)), (seconds, seconds))


# Names.


@given(
    block_hash=st.binary(min_size=1, max_size=64),
    group=st.integers(0, 10**9 - 1),
    num_bytes=st.integers(1, 10**13 - 1),
)
def test_a_name_says_the_key_and_the_length(block_hash: bytes, group: int, num_bytes: int) -> None:
    which = BlockKey(block_hash, group)
    name = record_name(which, num_bytes)
    assert parse_record(name) == (which, num_bytes)
    assert key_of(name) == which
    assert file_bytes_of([name, name[1:], "notes"], shard_of(which))[name] == 4_096 + num_bytes
    assert is_shard(shard_of(which))
    assert name.startswith(shard_of(which))


@given(
    name=st.text("0a-.\n/", max_size=8)
    | st.builds("{}-{}-{}{}".format, *(st.text("019aA", max_size=4),) * 3, st.sampled_from("\n "))
)
def test_a_name_that_is_not_written_so_is_nobodys(name: str) -> None:
    found = parse_record(name)
    assert found is None or record_name(*found) == name
    if "/" not in name:  # As every name in a folder.
        assert [*file_bytes_of(["x", name, "y"], name[:2])] == [name] * (found is not None)
    assert not (is_temporary(name) or is_namespace(name)) or "/" not in name


@pytest.mark.parametrize(
    ("which", "num_bytes"),
    [
        (BlockKey(b"", 0), 1),
        (BlockKey(bytes(65), 0), 1),
        (BlockKey(b"a", -1), 1),
        (BlockKey(b"a", 10**9), 1),
        (BlockKey(b"a", 0), 0),
    ],
)
def test_a_key_without_a_name_is_refused(which: BlockKey, num_bytes: int) -> None:
    with pytest.raises(InvalidValueError, match="expected a hash of 1 to 64 bytes"):
        record_name(which, num_bytes)


# Opening.


def test_folders_and_files_are_for_their_user_alone(directory: Directory) -> None:
    store(directory.open(), 1)
    modes = {S_IMODE(path.stat().st_mode) for path in directory.path.rglob("*") if path.is_dir()}
    assert modes | {S_IMODE(directory.path.stat().st_mode)} == {0o700}
    assert S_IMODE(directory.file(key(1)).stat().st_mode) == 0o600


def test_a_directory_that_anybody_may_write_is_refused(directory: Directory) -> None:
    directory.path.mkdir()
    directory.path.chmod(0o777)
    with pytest.raises(InvalidValueError, match="may be written by anybody; chmod o-w it"):
        directory.open()


def test_what_is_no_directory_is_refused_with_a_remedy(directory: Directory) -> None:
    directory.path.write_text("a file")
    with pytest.raises(
        InvalidValueError, match=r"cannot be a tier: .*; name a folder of your own"
    ):
        directory.open()


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="max_bytes is 0; expected a whole number"):
        DiskTier("tier", max_bytes=0)


def test_a_start_opens_no_record(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    store(directory.open(), *range(20))
    opened: list[str] = []
    real = os.open

    def note(name: str, *arguments: int, **named: int) -> int:
        opened.append(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(os, "open", note)
    assert {*directory.open().keys()} == {key(number) for number in range(20)}
    assert opened
    assert not [name for name in opened if parse_record(name)]


def test_what_was_taken_for_an_orphan_before_its_writer_had_locked_it_is_written_again(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, other, lock, unlink = directory.open(), directory.open(), fcntl.flock, os.unlink

    def late(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not other.counts().orphans:  # The writer's.
            other.refresh()
        lock(descriptor, how)

    def locked(name: str, dir_fd: int) -> None:
        file = os.open(name, os.O_RDONLY, dir_fd=dir_fd)
        with pytest.raises(BlockingIOError):
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(fcntl, "flock", late)
    monkeypatch.setattr(os, "unlink", locked)
    assert store(tier, 1) == [Status.OK]
    assert other.counts().orphans == 1
    assert directory.names() == {directory.file(key(1)).name, "evictor.lock"}


def test_a_start_removes_what_a_dead_writer_left_and_not_what_is_being_written(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = directory.open()
    store(tier, 1)
    left = directory.file(key(1)).with_name(new_temporary())
    left.write_bytes(b"half a record")
    seen: list[set[str]] = []

    def meanwhile(*arguments: object, **named: object) -> None:
        assert directory.open().counts().orphans == len(seen) == 0
        seen.append({name for name in directory.names() if is_temporary(name)})
        real(*arguments, **named)  # type: ignore[arg-type]

    assert directory.open().counts().orphans == 1
    assert not left.exists()
    real = os.rename
    monkeypatch.setattr(os, "rename", meanwhile)
    assert store(tier, 2) == [Status.OK]
    assert len(seen[0]) == 1, "another start has left it alone"
    assert load(tier, 2) is Status.OK


# Room.


def nearly_full(directory: Directory) -> DiskTier:
    """Return a tier with 57 of 60 records, of which the next store evicts four."""
    tier = directory.open(max_records=60)
    store(tier, *range(57))
    for number in range(57):
        used(directory, number, 1_000 + number)
    return tier


def there(directory: Directory) -> set[int]:
    return {number for number in range(100) if directory.file(key(number)).exists()}


def test_the_limit_holds_and_the_least_recently_used_go_first(directory: Directory) -> None:
    tier = nearly_full(directory)
    used(directory, 3, 10_000)
    assert load(tier, 0) is Status.OK
    assert store(tier, 99) == [Status.OK]
    assert there(directory) == {*range(57), 99} - {1, 2, 4, 5}
    counts = tier.counts()
    assert (counts.evicted, counts.records) == (4, 54)
    assert counts.total_bytes == counts.bytes == 54 * RECORD_BYTES
    assert set(tier.refresh().removed) == {key(number) for number in (1, 2, 4, 5)}


def test_a_record_that_was_read_since_it_was_chosen_is_not_evicted(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = nearly_full(directory)
    real = os.unlink

    def unlink(name: str, dir_fd: int) -> None:
        for number in range(4):
            if directory.file(key(number)).name != name:
                used(directory, number, 10_000)
        real(name, dir_fd=dir_fd)
        monkeypatch.setattr(os, "unlink", real)

    monkeypatch.setattr(os, "unlink", unlink)
    store(tier, 99)
    assert len(there(directory) & {0, 1, 2, 3}) == 3
    assert tier.counts().evicted == 1


def test_no_thread_finds_a_tier_full_while_others_take_the_room_that_was_made(
    directory: Directory,
) -> None:
    """What a thread knows of the room may be old by the time at which it takes some."""
    tier = directory.open(max_records=10)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            numbers = [range(start, start + 60) for start in range(0, 240, 60)]
            statuses = list(threads.map(lambda part: store(tier, *part), numbers))
    finally:
        sys.setswitchinterval(before)
    assert statuses == [[Status.OK] * 60] * 4
    assert tier.counts().total_bytes <= tier.counts().max_bytes


def test_what_is_evicted_before_it_was_seen_was_in_no_sum(directory: Directory) -> None:
    tier = directory.open(max_records=4)
    other = directory.open(max_records=4)
    assert tier.store(key(2, group=1), pages(), pages()) is Status.OK  # In the same folder.
    store(other, 2)
    used(directory, 2, 10)
    store(tier, 3, 4, 5, 6)
    tier.check_integrity()
    assert 2 not in there(directory)


def test_one_tier_evicts_and_the_other_is_full_until_it_has_looked(directory: Directory) -> None:
    first, second = directory.open(max_records=10), directory.open(max_records=10)
    assert (first.counts().evicts, second.counts().evicts) == (True, False)
    assert store(second, *range(11)) == [Status.OK] * 10 + [Status.FULL]
    first.refresh()
    assert first.counts().evicted == 1
    assert set(second.refresh().removed) <= {key(number) for number in range(10)}
    assert store(second, 10) == [Status.OK]


def test_the_limit_is_of_all_namespaces(directory: Directory) -> None:
    others = directory.open(OTHERS, max_records=10)
    store(others, *range(9))
    for number in range(9):
        os.utime(directory.file(key(number), OTHERS), (number, number))
    others.close()
    tier = directory.open(max_records=10)
    assert tier.counts().total_bytes == 9 * RECORD_BYTES
    assert tier.counts().bytes == 0
    assert store(tier, *range(5)) == [Status.OK] * 5
    assert tier.counts().total_bytes <= 10 * RECORD_BYTES
    assert tier.counts().records == 5
    assert not directory.file(key(0), OTHERS).exists()


def test_files_that_are_not_as_long_as_they_say_are_evicted_first(directory: Directory) -> None:
    tier = directory.open(max_records=20)
    store(tier, *range(19))
    os.truncate(directory.file(key(7)), 100)
    store(tier, 100)
    assert not directory.file(key(7)).exists()


def test_room_is_made_for_a_record_that_is_a_large_part_of_the_limit(directory: Directory) -> None:
    tier = directory.open(max_records=5)
    for number in range(20):
        assert tier.store(key(number), pages(), pages(3)) is Status.OK
    assert tier.counts().total_bytes <= 5 * RECORD_BYTES


def test_a_record_that_is_larger_than_the_limit_is_refused(directory: Directory) -> None:
    tier = directory.open(max_records=1)
    assert tier.store(key(1), pages(), pages(2)) is Status.FULL
    assert directory.names() == {"evictor.lock"}


# Others.


def test_what_another_tier_stores_and_drops_is_seen_at_the_next_look(directory: Directory) -> None:
    tier, other = directory.open(), directory.open()
    store(tier, 1)
    store(other, 2, 3)
    changes = tier.refresh()
    assert (set(changes.added), changes.removed) == ({key(2), key(3)}, ())
    other.drop(key(1))
    changes = tier.refresh()
    assert changes.removed == (key(1),)
    assert tier.refresh() == TierChanges((), ())
    assert {*tier.keys()} == {key(2), key(3)}


def test_what_a_tier_does_itself_is_no_change(directory: Directory) -> None:
    tier = directory.open()
    store(tier, 1, 2)
    tier.drop(key(1))
    assert tier.refresh() == TierChanges((), ())


def test_a_folder_that_vanishes_takes_its_records_along(directory: Directory) -> None:
    tier = directory.open()
    store(tier, 1)
    os.unlink(directory.file(key(1)))
    directory.file(key(1)).parent.rmdir()
    assert tier.refresh().removed == (key(1),)
    assert tier.counts().total_bytes == 0
    assert store(tier, 1) == [Status.OK], "its folder is made again"
    assert load(tier, 1) is Status.OK


def test_a_look_reads_few_names_and_the_next_goes_on_where_it_ended(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbraid.transfer.disk.tier._NAMES_PER_REFRESH", 10)
    tier, other = directory.open(), directory.open()
    store(other, *range(40))
    found: list[BlockKey] = []
    for _ in range(12):
        added = tier.refresh().added
        assert len(added) < 20
        found += added
    assert set(found) == {key(number) for number in range(40)}


def test_a_tier_takes_the_lock_that_another_has_left(directory: Directory) -> None:
    first, second = directory.open(), directory.open()
    first.close()
    assert not second.counts().evicts
    second.refresh()
    assert second.counts().evicts


# Hostile entries.


def test_names_that_are_nobodys_are_ignored_counted_and_stay(directory: Directory) -> None:
    tier = directory.open()
    store(tier, 1)
    shard = directory.file(key(1)).parent
    strangers = [
        shard / "notes.txt", shard / f"{key(1).block_hash.hex().upper()}-0-1",
        shard / f"{'00' if shard.name != '00' else '11'}ab-0-4096", shard / "-0-4096",
        directory.path / "README", shard.parent / "ab.d",
    ]  # fmt: skip
    for stranger in strangers:
        stranger.write_text("mine")
    (directory.path / "lost+found").mkdir()
    tier = directory.open()
    assert tier.counts().ignored == 4
    assert [*tier.keys()] == [key(1)]
    assert all(stranger.read_text() == "mine" for stranger in strangers)


def test_a_link_in_the_place_of_a_record_is_not_followed(directory: Directory) -> None:
    tier = directory.open()
    store(tier, 1)
    secret = directory.path.parent / "secret"
    secret.write_bytes(bytes(RECORD_BYTES))
    directory.file(key(1)).unlink()
    directory.file(key(1)).symlink_to(secret)
    with pytest.raises(OSError, match="symbolic"):
        load(tier, 1)
    assert store(tier, 1) == [Status.OK], "the link is replaced"
    assert load(tier, 1) is Status.OK
    assert secret.read_bytes() == bytes(RECORD_BYTES)


@pytest.mark.parametrize("part", ["shard", "namespace"])
def test_a_link_in_the_place_of_a_folder_leads_nowhere(directory: Directory, part: str) -> None:
    outside = directory.path.parent / "outside"
    tier = directory.open(max_records=2)
    store(tier, 1)
    folder = directory.file(key(1)).parent
    folder = folder if part == "shard" else folder.parent
    folder.rename(outside)
    folder.symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    other = directory.open(OTHERS, max_records=2)
    assert other.counts().total_bytes == 0
    for each in (tier, other):
        each.refresh()
        if each is other or part == "shard":
            store(each, 2, 3, 4)
    if part == "shard":
        with pytest.raises(NotADirectoryError):
            load(tier, 1)
        with pytest.raises(NotADirectoryError):
            tier.drop(key(1))
    assert {path: path.read_bytes() for path in before} == before


def test_a_pipe_in_the_place_of_a_record_keeps_nobody_waiting(directory: Directory) -> None:
    tier = directory.open()
    store(tier, 1)
    directory.file(key(1)).unlink()
    os.mkfifo(directory.file(key(1)))
    with pytest.raises(OSError, match=r"seek|argument"):
        load(tier, 1)
    assert store(tier, 1) == [Status.OK]


def test_a_folder_in_the_place_of_a_record_does_not_stop_eviction(directory: Directory) -> None:
    tier = directory.open(max_records=10)
    store(tier, 1)
    directory.file(key(1)).unlink()
    directory.file(key(1)).mkdir()
    tier.refresh()
    assert store(tier, *range(2, 30)) == [Status.OK] * 28
    assert directory.file(key(1)).is_dir()
    tier.drop(key(2))
