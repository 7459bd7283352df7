"""Header pages: what they hold, what is refused, and that no bytes but the stored ones pass."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.records import (
    PAGE_BYTES,
    Header,
    padded,
    pages,
    read_header,
    verify,
    write_header,
)
from kvbraid.transfer.status import Status
from xxhash import xxh3_64_intdigest

from tests.unit.fresh_process import blocked, fresh

DIGEST = bytes(range(16))
KEY = BlockKey(b"\x5a" * 32, 7)
PAYLOAD = b"keys and values" * 300


def page_of(key: BlockKey = KEY, digest: bytes = DIGEST, payload: bytes = PAYLOAD) -> memoryview:
    page = pages()
    write_header(page, key, digest, memoryview(payload))
    return page


def resealed(page: memoryview) -> memoryview:
    """Give a page that was changed the checksum of its bytes."""
    page[-8:] = pack("<Q", xxh3_64_intdigest(page[:-8]))
    return page


def checked(page: memoryview, payload: bytes = PAYLOAD) -> Status:
    return verify(page, KEY, DIGEST, memoryview(payload))


@given(
    block_hash=st.binary(min_size=1, max_size=64),
    group=st.integers(0, 2**32 - 1),
    digest=st.binary(min_size=16, max_size=16),
    payload=st.binary(max_size=200),
)
def test_a_header_reads_as_it_was_written(
    block_hash: bytes, group: int, digest: bytes, payload: bytes
) -> None:
    key = BlockKey(block_hash, group)
    page = page_of(key, digest, payload)
    expected = Header(key, digest, len(payload), xxh3_64_intdigest(payload))
    assert read_header(page) == expected
    assert verify(page, key, digest, memoryview(payload)) is Status.OK


def test_what_a_page_held_before_leaves_nothing_in_a_header() -> None:
    page = pages()
    page[:] = b"\xff" * PAGE_BYTES
    write_header(page, KEY, DIGEST, memoryview(PAYLOAD))
    assert page == page_of()
    assert not any(page[120:-8])


@given(bit=st.integers(0, PAGE_BYTES * 8 - 1))
def test_no_flipped_bit_of_a_header_passes(bit: int) -> None:
    page = page_of()
    page[bit // 8] ^= 1 << bit % 8
    assert checked(page) is Status.CORRUPT


@given(bit=st.integers(0, len(PAYLOAD) * 8 - 1))
def test_no_flipped_bit_of_a_payload_passes(bit: int) -> None:
    payload = bytearray(PAYLOAD)
    payload[bit // 8] ^= 1 << bit % 8
    assert checked(page_of(), bytes(payload)) is Status.CORRUPT


@given(
    page=st.binary(max_size=PAGE_BYTES + 1)
    | st.binary(min_size=PAGE_BYTES, max_size=PAGE_BYTES)
    | st.binary(min_size=120, max_size=120).map(lambda b: b + bytes(PAGE_BYTES - 120)),
    payload=st.binary(max_size=64),
)
def test_no_bytes_of_others_pass_or_raise(page: bytes, payload: bytes) -> None:
    assert verify(memoryview(page), KEY, DIGEST, memoryview(payload)) is not Status.OK


@given(start=st.binary(min_size=128, max_size=128), payload=st.binary(max_size=64))
def test_no_forged_page_raises(start: bytes, payload: bytes) -> None:
    """A page with a right start and checksum, whose fields are anybody's."""
    page = page_of()
    page[12:128] = start[12:]
    assert verify(resealed(page), KEY, DIGEST, memoryview(payload)) is not Status.OK


@pytest.mark.parametrize(
    ("page", "payload", "expected"),
    [
        (page_of(digest=b"\0" * 16), PAYLOAD, Status.FOREIGN),
        (page_of(key=BlockKey(KEY.block_hash, 8)), PAYLOAD, Status.CORRUPT),
        (page_of(key=BlockKey(b"\x5a" * 31, 7)), PAYLOAD, Status.CORRUPT),
        (page_of(), PAYLOAD[:-1], Status.SHORT),
        (page_of(), PAYLOAD + b"\0", Status.SHORT),
        (page_of()[:-1], PAYLOAD, Status.SHORT),
        (pages(), PAYLOAD, Status.CORRUPT),
    ],
    ids=["namespace", "group", "hash", "less", "more", "cut header", "zeros"],
)
def test_a_record_that_is_not_the_one_asked_for_is_refused(
    page: memoryview, payload: bytes, expected: Status
) -> None:
    assert checked(page, payload) is expected


def test_a_page_of_another_version_is_foreign_and_not_damaged() -> None:
    page = page_of()
    page[8:12] = pack("<I", 2)
    assert checked(page) is Status.CORRUPT, "its checksum is that of version 1"
    assert checked(resealed(page)) is Status.FOREIGN


def test_lengths_are_rounded_up_to_pages() -> None:
    assert [padded(n) for n in (1, 4095, 4096, 4097)] == [4096, 4096, 4096, 8192]


def test_records_and_directories_need_no_native_core() -> None:
    program = f"""{blocked("kvbraid._native")}
import kvbraid.transfer.records, kvbraid.transfer.tier, kvbraid.transfer.disk
print("imported")
"""
    assert fresh(program) == ["imported"]


def test_without_the_extra_its_name_is_the_message() -> None:
    program = f"""{blocked("xxhash")}
try:
    import kvbraid.transfer.records
except ModuleNotFoundError as error:
    print(error)
"""
    (message,) = fresh(program)
    assert message.startswith("kvbraid.transfer.records needs xxhash")
    assert "'.[transfer]'" in message
