"""Two processes on one directory: both store, one evicts while the other reads, one is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import is_temporary
from kvbraid.transfer.records import pages, verify
from kvbraid.transfer.status import Status

from tests.unit.transfer.disk_process import RECORD_BYTES, beside, store
from tests.unit.transfer.faulty_tier import NAMESPACE, block, empty, key


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def tiers() -> Iterator[list[DiskTier]]:
    found: list[DiskTier] = []
    yield found
    for tier in found:
        tier.check_integrity()
        tier.close()


def opened(directory: Path, tiers: list[DiskTier], max_records: int = 100) -> DiskTier:
    tier = DiskTier(directory, max_bytes=max_records * RECORD_BYTES)
    tier.open(NAMESPACE)
    tiers.append(tier)
    return tier


def load(tier: DiskTier, number: int) -> Status:
    """Load and verify as `RecordStore` does; what is `OK` has the bytes of its number."""
    page, payload = pages(), empty()
    status = tier.load(key(number), page, payload)
    if status is Status.OK:
        status = verify(page, key(number), bytes.fromhex(NAMESPACE.digest), payload)
        assert status is not Status.OK or payload == block(number)
    return status


def test_a_kill_between_write_and_rename_leaves_nothing_but_an_orphan(
    directory: Path, tiers: list[DiskTier]
) -> None:
    with beside(directory, "die_before_rename") as process:
        assert process.wait(60) == -9
    assert len([path for path in directory.rglob("*") if is_temporary(path.name)]) == 1
    tier = opened(directory, tiers)
    assert tier.counts().orphans == 1
    assert [*tier.keys()] == []
    assert load(tier, 1) is Status.MISS
    assert not [path for path in directory.rglob("*") if is_temporary(path.name)]


def test_a_record_that_both_store_and_drop_is_whole_or_not_there(
    directory: Path, tiers: list[DiskTier]
) -> None:
    tier = opened(directory, tiers)
    with beside(directory, "store_same") as process:
        seen = {load(tier, number) for _ in range(20) for number in range(10)}
        for number in range(10):
            assert store(tier, number) is Status.OK
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert seen <= {Status.OK, Status.MISS}
    assert [load(tier, number) for number in range(10)] == [Status.OK] * 10
    tier.refresh()
    assert {*tier.keys()} == {key(number) for number in range(10)}


def test_what_another_process_evicts_while_it_is_read_is_whole_or_a_miss(
    directory: Path, tiers: list[DiskTier]
) -> None:
    first = opened(directory, tiers, 40)
    assert {store(first, number) for number in range(30)} == {Status.OK}
    first.close()
    with beside(directory, "evict", 40) as process:
        tier = opened(directory, tiers, 40)
        assert not tier.counts().evicts
        assert process.stdin is not None
        process.stdin.close()  # It ends when it has stored everything.
        seen = set[Status]()
        while process.poll() is None:
            seen |= {load(tier, number) for number in range(30)}
        assert process.returncode == 0
    assert seen <= {Status.OK, Status.MISS}
    with beside(directory, "evict", 40) as process:  # Nobody reads meanwhile.
        process.communicate(timeout=60)
        assert process.returncode == 0
    tier.refresh()
    assert tier.counts().total_bytes <= 40 * RECORD_BYTES
    assert {load(tier, number) for number in range(30)} == {Status.MISS}


def test_a_process_that_dies_with_the_lock_leaves_it_to_the_next(
    directory: Path, tiers: list[DiskTier]
) -> None:
    with beside(directory, "hold") as process:
        tier = opened(directory, tiers)
        tier.refresh()
        assert not tier.counts().evicts
        process.kill()
        process.wait(60)
        tier.refresh()
        assert tier.counts().evicts
