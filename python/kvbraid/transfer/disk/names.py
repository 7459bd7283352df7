"""The names of folders and files, which hold all that a start has to know of a record.

Invariant: `parse_record(record_name(key, n)) == (key, n)`, and a name that is not written so is
nobody's. A name has digits and dashes only, so that no path leads out of its folder.
"""

import re
from collections.abc import Iterable
from secrets import token_hex
from typing import Final, NamedTuple

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.records import MAX_HASH_BYTES, PAGE_BYTES

LOCK: Final = "evictor.lock"
_NAMESPACE: Final = re.compile(r"[0-9a-f]{32}")
_SHARD: Final = re.compile(r"[0-9a-f]{2}")
_RECORD: Final = re.compile(
    r"(?<![^/])([0-9a-f]{2,128}-(?:0|[1-9][0-9]{0,8})-([1-9][0-9]{0,12}))(?![^/])"
)
"""A record among names with slashes between them: the whole name, and the payload's bytes."""
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
_MAX_GROUP: Final = 10**9 - 1
_MAX_BYTES: Final = 10**13 - 1


class RecordName(NamedTuple):
    """What the name of a record says."""

    key: BlockKey
    payload_bytes: int

    @property
    def file_bytes(self) -> int:
        """The length of the file."""
        return PAGE_BYTES + self.payload_bytes


def is_namespace(name: str) -> bool:
    """Whether a folder has a namespace's records."""
    return _NAMESPACE.fullmatch(name) is not None


def is_shard(name: str) -> bool:
    """Whether a folder has a namespace's records of some hashes."""
    return _SHARD.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Whether a file is one that is being written."""
    return _TEMPORARY.fullmatch(name) is not None


def new_temporary() -> str:
    """Return a name that no other file has."""
    return f".{token_hex(8)}.tmp"


def shard_of(key: BlockKey) -> str:
    """Return the folder of a key, below that of its namespace."""
    return key.block_hash[:1].hex()


def record_name(key: BlockKey, payload_bytes: int) -> str:
    """Return the name of a record.

    Raises:
        InvalidValueError: The key or the length is none of a record.
    """
    block_hash, group = key
    is_key = 1 <= len(block_hash) <= MAX_HASH_BYTES and 0 <= group <= _MAX_GROUP
    if not is_key or not 1 <= payload_bytes <= _MAX_BYTES:
        msg = (
            f"a record of {payload_bytes} bytes has the key {shortened(key)}; expected a hash of "
            f"1 to {MAX_HASH_BYTES} bytes, and a payload of at most {_MAX_BYTES}"
        )
        raise InvalidValueError(msg)
    return f"{block_hash.hex()}-{group}-{payload_bytes}"


def parse_record(name: str) -> RecordName | None:
    """Return what the name of a record says, or None if it is none."""
    file_bytes = file_bytes_of([name], name[:2]).get(name)
    return None if file_bytes is None else RecordName(key_of(name), file_bytes - PAGE_BYTES)


def key_of(name: str) -> BlockKey:
    """Return the key of a name that is known to be a record's."""
    digits, group, _ = name.split("-")
    return BlockKey._make((bytes.fromhex(digits), int(group)))


def file_bytes_of(names: Iterable[str], shard: str) -> dict[str, int]:
    """Return those names that records of a folder have, each with the length of its file.

    One search in all of them costs a fourth of a call for each.
    """
    return {
        name: PAGE_BYTES + int(payload_bytes)
        for name, payload_bytes in _RECORD.findall("/".join(names))
        if name.startswith(shard) and name.index("-") % 2 == 0
    }
