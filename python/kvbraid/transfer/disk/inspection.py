"""What is in a tier's directory, looked at from outside: counted, verified, cleaned.

Invariant: nothing is removed but records whose bytes are not those that were stored, and files
whose writers are no more; engines may use the directory meanwhile. A record that vanishes while
it is looked at counts as one that was not there.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.extras import require
from kvbraid.transfer.disk.files import GONE, READ, existing_folder, folder, without_writer
from kvbraid.transfer.disk.folders import FolderPath, places
from kvbraid.transfer.disk.names import RecordName, is_temporary, parse_record
from kvbraid.transfer.records import PAGE_BYTES, Header, padded, pages, read_header
from kvbraid.transfer.status import Status

require("transfer", "kvbraid.transfer.disk.inspection", "xxhash")

from xxhash import xxh3_64  # noqa: E402 - the line before it names the extra.

_PIECE_PAGES: Final = 1_024


@dataclass(slots=True, kw_only=True)
class TierContents:
    """What was found.

    Attributes:
        records: Files with names of records.
        bytes: What their names say of their lengths.
        corrupt: Records whose bytes are not those that were stored, if they were verified.
        short: Records that are shorter or longer than their names say.
        foreign: Records of another namespace or version than their folder's, likewise.
        orphans: Files that a writer left when it died.
        removed: Files that were removed.
    """

    records: int = 0
    bytes: int = 0
    corrupt: int = 0
    short: int = 0
    foreign: int = 0
    orphans: int = 0
    removed: int = 0

    @property
    def has_bad_records(self) -> bool:
        """Whether a record was found that will not be served."""
        return bool(self.corrupt or self.short or self.foreign)


def inspect_tier(
    directory: Path,
    *,
    verify: bool = False,
    remove: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TierContents:
    """Look at all records of a directory.

    Args:
        directory: That of a `DiskTier`.
        verify: Whether to read every record; otherwise names and lengths are looked at.
        remove: Whether to remove orphans, and what is short or found to be corrupt.
        progress: Called with the folders that are done, and how many there are.

    Raises:
        InvalidValueError: There is no such directory, or it cannot be read.
    """
    found = TierContents()
    try:
        with existing_folder(directory) as root:
            folders = [place for place, _ in places(root)]
            for number, place in enumerate(folders, start=1):
                with suppress(*GONE), folder(place, root) as descriptor:
                    _inspect_folder(descriptor, place, found, verify=verify, remove=remove)
                progress(number, len(folders))
    except OSError as error:
        msg = f"{directory} cannot be read: {error.strerror}; name the directory of a tier"
        raise InvalidValueError(msg) from error
    return found


def _inspect_folder(
    descriptor: int, place: FolderPath, found: TierContents, *, verify: bool, remove: bool
) -> None:
    for name in os.listdir(descriptor):
        record = parse_record(name) if name.startswith(place.shard) else None
        with ExitStack() as locked, suppress(FileNotFoundError):
            if record is not None:
                status = _status_of(descriptor, place, name, record, verify=verify)
                is_removable = _count(found, record, status)
            else:
                orphan = without_writer(descriptor, name)
                is_removable = is_temporary(name) and locked.enter_context(orphan)
                found.orphans += is_removable
            if remove and is_removable:
                os.unlink(name, dir_fd=descriptor)
                found.removed += 1


def _count(found: TierContents, record: RecordName, status: Status) -> bool:
    """Count a record; return whether it is no good to anybody."""
    found.records += 1
    found.bytes += record.file_bytes
    found.short += status is Status.SHORT
    found.corrupt += status is Status.CORRUPT
    found.foreign += status is Status.FOREIGN
    return status in {Status.SHORT, Status.CORRUPT}


def _status_of(
    descriptor: int, place: FolderPath, name: str, record: RecordName, *, verify: bool
) -> Status:
    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    if not S_ISREG(status.st_mode) or status.st_size != record.file_bytes:
        return Status.SHORT
    if not verify:
        return Status.OK
    file = os.open(name, READ, dir_fd=descriptor)
    try:
        return _verified(file, bytes.fromhex(place.namespace), record)
    finally:
        with suppress(OSError):  # Engines need the page cache more.
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _verified(file: int, digest: bytes, record: RecordName) -> Status:
    """As `records.verify`, for a payload of any length."""
    page = pages()
    header = read_header(page[: os.preadv(file, [page], 0)])
    if not isinstance(header, Header):
        return header
    if header.digest != digest:
        return Status.FOREIGN
    if padded(header.payload_bytes) != record.payload_bytes:
        return Status.SHORT
    checksum = xxh3_64()
    rest, piece = header.payload_bytes, pages(_PIECE_PAGES)
    while rest > 0:
        size = os.preadv(file, [piece[:rest]], PAGE_BYTES + header.payload_bytes - rest)
        if size == 0:
            return Status.SHORT
        checksum.update(piece[:size])
        rest -= size
    is_whole = header.key == record.key and header.checksum == checksum.intdigest()
    return Status.OK if is_whole else Status.CORRUPT
