"""The header page of a record: made before a tier gets it, checked before anybody hears of it.

    |------ header, 4 096 bytes ------|------- payload, padded with zeros to 4 096 -------|

    at   bytes
    0    8      magic
    8    4      version
    12   4      group
    16   8      length of the payload, without its padding
    24   8      XXH3-64 of the payload, without its padding
    32   16     digest of the namespace
    48   4      length of the hash
    56   64     the hash, then zeros
    120  3 968  zeros
    4088 8      XXH3-64 of the 4 088 bytes before it

Invariant: integers are little-endian; magic, version and the checksum of the page stay where they
are in every version, so that each version tells another one's record from a damaged one. Bytes
that pass are those that were stored under this key, in this namespace, unless somebody forged
them: a checksum is no signature. Nothing here does I/O.
"""

from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from kvbraid.extras import require
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.status import Status

require("transfer", "kvbraid.transfer.records", "xxhash")

from xxhash import xxh3_64_intdigest  # noqa: E402 - the line before it names the extra.

PAGE_BYTES: Final = 4_096
"""What lengths and addresses of I/O are multiples of: the header's length."""
MAX_HASH_BYTES: Final = 64
_MAGIC: Final = b"kvbraid\n"
_VERSION: Final = 1
_FIELDS: Final = Struct("<8sIIQQ16sI4x64s")
_PREFIX: Final = Struct("<8sI")
_CHECKSUM: Final = Struct("<Q")
_END: Final = PAGE_BYTES - _CHECKSUM.size
_REST: Final = bytes(_END - _FIELDS.size)


def padded(num_bytes: int) -> int:
    """Return a length rounded up to whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


class Header(NamedTuple):
    """What a header page says."""

    key: BlockKey
    digest: bytes
    payload_bytes: int
    checksum: int

    def write(self, page: memoryview) -> None:
        """Fill a page of `PAGE_BYTES` writable bytes."""
        block_hash, group = self.key
        _FIELDS.pack_into(
            page, 0, _MAGIC, _VERSION, group, self.payload_bytes, self.checksum, self.digest,
            len(block_hash), block_hash,
        )  # fmt: skip
        page[_FIELDS.size : _END] = _REST
        _CHECKSUM.pack_into(page, _END, xxh3_64_intdigest(page[:_END]))


def write_header(page: memoryview, key: BlockKey, digest: bytes, payload: memoryview) -> None:
    """Fill a page with the header of a record.

    Args:
        page: `PAGE_BYTES` writable bytes.
        key: The record's key; its hash has at most `MAX_HASH_BYTES`.
        digest: The 16 bytes of `Namespace.digest`.
        payload: The record's bytes without padding.
    """
    Header(key, digest, payload.nbytes, xxh3_64_intdigest(payload)).write(page)


def read_header(page: memoryview) -> Header | Status:
    """Return what a page says: a header, or that it is `SHORT`, `CORRUPT` or `FOREIGN`."""
    if page.nbytes != PAGE_BYTES:
        return Status.SHORT
    magic, version = _PREFIX.unpack_from(page)
    (checksum,) = _CHECKSUM.unpack_from(page, _END)
    if magic != _MAGIC or checksum != xxh3_64_intdigest(page[:_END]):
        return Status.CORRUPT
    if version != _VERSION:
        return Status.FOREIGN
    _, _, group, payload_bytes, checksum, digest, hash_bytes, block_hash = _FIELDS.unpack_from(
        page
    )
    return Header(BlockKey(block_hash[:hash_bytes], group), digest, payload_bytes, checksum)


def verify(page: memoryview, key: BlockKey, digest: bytes, payload: memoryview) -> Status:
    """Return `OK` if a page and a payload are the record that was stored under a key.

    Args:
        page: The header's bytes, of any length.
        key: The key that was asked for.
        digest: The 16 bytes of `Namespace.digest`.
        payload: The bytes that came back, without padding.
    """
    header = read_header(page)
    if isinstance(header, Status):
        return header
    if header.digest != digest:
        return Status.FOREIGN
    if header.payload_bytes != payload.nbytes:
        return Status.SHORT
    if header.key != key or header.checksum != xxh3_64_intdigest(payload):
        return Status.CORRUPT
    return Status.OK


def pages(num_pages: int = 1) -> memoryview:
    """Return new writable memory that starts at a page, of which the caller is the owner."""
    return memoryview(mmap(-1, num_pages * PAGE_BYTES))
