"""Records that were written once: this version reads its own, and calls others' foreign.

A file of `records` is one record: named lines, and the bytes of its header page in hexadecimal
without the zeros in the middle. A new version of the format adds a file and keeps these.
"""

from pathlib import Path

import pytest
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.records import PAGE_BYTES, pages, verify, write_header
from kvbraid.transfer.status import Status

FILES = sorted((Path(__file__).parent / "records").glob("*.txt"))
NAMESPACE = Namespace(
    layout="4f1c", model="org/model", revision="main", cache_dtype="fp8",
    hash_algorithm="sha256_cbor", hash_seed="0", rank=1, num_ranks=2,
)  # fmt: skip
KEY = BlockKey(bytes(range(32)), 3)
PAYLOAD = bytes(range(256)) * 20


def fields(path: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in path.read_text().splitlines())


def page_in(path: Path) -> memoryview:
    start, end = (bytes.fromhex(fields(path)[name]) for name in ("start", "end"))
    page = pages()
    page[: len(start)], page[-len(end) :] = start, end
    return page


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_record_that_was_written_once_is_read_or_foreign(path: Path) -> None:
    told = verify(page_in(path), KEY, bytes.fromhex(NAMESPACE.digest), memoryview(PAYLOAD))
    assert told is Status(fields(path)["expect"])


def test_this_version_writes_the_bytes_of_its_file() -> None:
    page = pages()
    write_header(page, KEY, bytes.fromhex(NAMESPACE.digest), memoryview(PAYLOAD))
    assert page == page_in(Path(__file__).parent / "records" / "version_1.txt")


def test_a_namespace_keeps_its_digest() -> None:
    assert NAMESPACE.digest == fields(FILES[0])["digest"]


def test_the_page_is_as_long_as_a_page() -> None:
    assert all(page_in(path).nbytes == PAGE_BYTES for path in FILES)
