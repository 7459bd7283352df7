"""What every tier promises: whole records under their keys, and nothing of other namespaces."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import PAGE_BYTES, pages
from kvbraid.transfer.status import Status
from kvbraid.transfer.tier import TierBackend
from obstore.store import MemoryStore

from examples.object_tier import ObjectTier
from tests.reference.memory_tier import MemoryTier
from tests.unit.transfer.faulty_tier import NAMESPACE, USED, block, empty, job, key, run

Opens = Callable[[Namespace], TierBackend]


@pytest.fixture(params=["memory", "disk", "buffered disk", "objects"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opens]:
    """Open tiers on one place, the same for all of a test."""
    if request.param == "buffered disk":
        monkeypatch.setattr("kvbraid.transfer.disk.tier.can_be_direct", lambda _: False)
    objects, memories = MemoryStore(), dict[str, MemoryTier]()
    tiers: list[TierBackend] = []

    def open_tier(namespace: Namespace) -> TierBackend:
        tier: TierBackend
        if request.param == "memory":
            tier = memories.setdefault(namespace.digest, MemoryTier())
        elif request.param == "objects":
            tier = ObjectTier(objects)
        else:
            tier = DiskTier(tmp_path / "tier", max_bytes=1 << 30)
        tier.open(namespace)
        tiers.append(tier)
        return tier

    yield open_tier
    for tier in tiers:
        tier.close()


@pytest.fixture
def tier(opened: Opens) -> TierBackend:
    return opened(NAMESPACE)


def header(number: int) -> memoryview:
    page = pages()
    page[:] = bytes([number]) * PAGE_BYTES
    return page


def load(tier: TierBackend, which: BlockKey, num_pages: int = 2) -> tuple[Status, bytes, bytes]:
    page, payload = pages(), pages(num_pages)
    return tier.load(which, page, payload), bytes(page), bytes(payload)


def test_a_record_comes_back_as_it_was_stored(tier: TierBackend) -> None:
    assert tier.store(key(1), header(7), block(1)) is Status.OK
    assert load(tier, key(1)) == (Status.OK, bytes(header(7)), bytes(block(1)))
    assert [*tier.keys()] == [key(1)]


def test_what_was_never_stored_is_a_miss(tier: TierBackend) -> None:
    assert load(tier, key(1))[0] is Status.MISS
    assert [*tier.keys()] == []


def test_groups_of_one_hash_have_records_of_their_own(tier: TierBackend) -> None:
    for group in range(3):
        assert tier.store(key(1, group), header(group), block(1, group)) is Status.OK
    for group in range(3):
        told = load(tier, key(1, group), block(1, group).nbytes // PAGE_BYTES)
        assert told == (Status.OK, bytes(header(group)), bytes(block(1, group)))
    assert {*tier.keys()} == {key(1, group) for group in range(3)}


def test_buffers_are_the_callers_again_after_a_call(tier: TierBackend) -> None:
    page, payload = header(7), block(1)
    tier.store(key(1), page, payload)
    page[:], payload[:] = bytes(PAGE_BYTES), bytes(payload.nbytes)
    assert load(tier, key(1)) == (Status.OK, bytes(header(7)), bytes(block(1)))


def test_what_is_stored_twice_is_whole(tier: TierBackend) -> None:
    for _ in range(2):
        assert tier.store(key(1), header(7), block(1)) is Status.OK
    assert load(tier, key(1)) == (Status.OK, bytes(header(7)), bytes(block(1)))
    assert [*tier.keys()] == [key(1)]


def test_a_record_of_another_length_is_not_served(tier: TierBackend) -> None:
    tier.store(key(1), header(7), block(1))
    for num_pages in (1, 3):
        assert load(tier, key(1), num_pages)[0] in {Status.SHORT, Status.MISS}


def test_what_is_dropped_is_gone_and_may_be_dropped_again(tier: TierBackend) -> None:
    tier.store(key(1), header(1), block(1))
    tier.store(key(2), header(2), block(2))
    tier.store(key(1, 2), header(3), block(1, 2))
    for _ in range(2):
        tier.drop(key(1))
    assert load(tier, key(1))[0] is Status.MISS
    assert {*tier.keys()} == {key(2), key(1, 2)}
    assert tier.store(key(1), header(4), block(1)) is Status.OK
    assert load(tier, key(1)) == (Status.OK, bytes(header(4)), bytes(block(1)))


def test_another_namespace_sees_nothing(opened: Opens) -> None:
    opened(NAMESPACE).store(key(1), header(1), block(1))
    other = opened(replace(NAMESPACE, revision="another"))
    assert [*other.keys()] == []
    assert load(other, key(1))[0] is Status.MISS
    other.drop(key(1))
    assert [*opened(NAMESPACE).keys()] == [key(1)]


def test_what_was_stored_is_there_for_the_next_one_that_opens_it(opened: Opens) -> None:
    for number in range(5):
        opened(NAMESPACE).store(key(number), header(number), block(number))
    again = opened(NAMESPACE)
    assert {*again.keys()} == {key(number) for number in range(5)}
    assert load(again, key(3)) == (Status.OK, bytes(header(3)), bytes(block(3)))


@pytest.mark.parametrize("size", [1, 8, 32, 64])
def test_hashes_of_every_length_are_keys(tier: TierBackend, size: int) -> None:
    for group in (0, 10**9 - 1):
        which = BlockKey(b"\xff" * (size - 1) + b"\0", group)
        assert tier.store(which, header(1), block(1)) is Status.OK
        assert load(tier, which)[0] is Status.OK
        assert which in set(tier.keys())


def test_calls_of_several_threads_do_not_mix(tier: TierBackend) -> None:
    def one(number: int) -> tuple[Status, bytes, bytes]:
        assert tier.store(key(number), header(number), block(number)) is Status.OK
        told = load(tier, key(number))
        if number % 2:
            tier.drop(key(number))
        return told

    with ThreadPoolExecutor(4) as threads:
        for number, told in enumerate(threads.map(one, range(40))):
            assert told == (Status.OK, bytes(header(number)), bytes(block(number)))
    assert {*tier.keys()} == {key(number) for number in range(0, 40, 2)}


def test_a_store_of_records_verifies_what_any_tier_brings(opened: Opens) -> None:
    store = RecordStore("any", opened(NAMESPACE), namespace=NAMESPACE, used_bytes=USED)
    keys = [key(number, number % 3) for number in range(9)]
    run(store, job(1, Kind.WRITE, *keys), *(block(n, n % 3) for n in range(9)))
    buffers = [empty(n % 3) for n in range(9)]
    assert run(store, job(2, Kind.PROMOTE, *keys), *buffers) == (Status.OK,) * 9
    for number, buffer in enumerate(buffers):
        used = USED[number % 3]
        assert buffer[:used] == block(number, number % 3)[:used]
    assert store.close(60), "a tier may be closed twice"
