"""What is known of the files of a folder, and what a look at its directory finds.

Invariant: a folder that may have changed since its scan is scanned again. Its time of change is
compared for equality, and one of the last two seconds, or of the future, does not count as known.
A scan reads names; only whoever evicts looks at files.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from stat import S_ISDIR, S_ISREG
from typing import Final, NamedTuple

from kvbraid.transfer.disk.files import GONE, folder
from kvbraid.transfer.disk.names import (
    file_bytes_of,
    is_namespace,
    is_shard,
    is_temporary,
    parse_record,
)

_RACY_NS: Final = 2_000_000_000
"""File systems tell times of change apart by milliseconds at best, by two seconds at worst."""


class FolderPath(NamedTuple):
    """A folder of a directory: a namespace's records whose hashes begin alike."""

    namespace: str
    shard: str


@dataclass(slots=True, kw_only=True)
class Folder:
    """The records of one folder.

    Attributes:
        names: Their names, each with the length of its file. Of others' namespaces there are none.
        num_bytes: Of all these files.
        num_records: How many they are.
        changed_ns: The folder's time of change when it was scanned; None: it is to be scanned.
        num_ignored: Names that are nobody's.
        num_writing: Files that are being written.
        version: Grows with each change that was made here.
    """

    names: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    num_records: int = 0
    changed_ns: int | None = None
    num_ignored: int = 0
    num_writing: int = 0
    version: int = 0

    def add(self, name: str, num_bytes: int) -> None:
        """Note a file."""
        if name not in self.names:
            self.names[name] = num_bytes
            self.num_bytes += num_bytes
            self.num_records += 1
        self.version += 1

    def remove(self, name: str, num_bytes: int) -> None:
        """Forget a file that is known, by name or as a part of the sums."""
        self.names.pop(name, None)
        self.num_bytes -= num_bytes
        self.num_records -= 1
        self.version += 1


class Scanned(NamedTuple):
    """What a scan found: the folder, and its files that are being written, or were."""

    folder: Folder
    temporaries: tuple[str, ...]


class Victim(NamedTuple):
    """A file that may be evicted; the order is that of its last use."""

    used_ns: int
    place: FolderPath
    name: str
    num_bytes: int


def places(root: int) -> Iterator[tuple[FolderPath, int]]:
    """Return each folder of a directory with its time of change."""
    for namespace in filter(is_namespace, os.listdir(root)):
        with suppress(*GONE), folder([namespace], root) as parent:
            for shard in filter(is_shard, os.listdir(parent)):
                with suppress(FileNotFoundError):
                    status = os.stat(shard, dir_fd=parent, follow_symlinks=False)
                    if S_ISDIR(status.st_mode):
                        yield FolderPath(namespace, shard), status.st_mtime_ns


def scan(descriptor: int, shard: str, changed_ns: int, *, with_names: bool) -> Scanned:
    """Return what a folder has; `changed_ns` is its time of change before the scan."""
    names = os.listdir(descriptor)
    files = file_bytes_of(names, shard)
    others = [name for name in names if name not in files] if len(files) < len(names) else []
    temporaries = tuple(filter(is_temporary, others))
    found = Folder(
        names=files if with_names else {},
        num_bytes=sum(files.values()),
        num_records=len(files),
        changed_ns=changed_ns if changed_ns < time.time_ns() - _RACY_NS else None,
        num_ignored=len(others) - len(temporaries),
    )
    return Scanned(found, temporaries)


def least_recently_used(root: int, num_bytes: int) -> list[Victim]:
    """Return the files whose removal frees that many bytes, folder by folder.

    Files that are not as long as their names say are the first of them.
    """
    newest_first: list[tuple[int, Victim]] = []
    total = 0
    for victim in _files(root):
        if total >= num_bytes and -newest_first[0][0] <= victim.used_ns:
            continue
        heappush(newest_first, (-victim.used_ns, victim))
        total += victim.num_bytes
        while total - newest_first[0][1].num_bytes >= num_bytes:
            total -= heappop(newest_first)[1].num_bytes
    return sorted((victim for _, victim in newest_first), key=lambda victim: victim.place)


def _files(root: int) -> Iterator[Victim]:
    for place, _ in places(root):
        with suppress(*GONE), folder(place, root) as descriptor, os.scandir(descriptor) as found:
            yield from _records(place, found)


def _records(place: FolderPath, entries: "Iterable[os.DirEntry[str]]") -> Iterator[Victim]:
    for entry in entries:
        record = parse_record(entry.name) if entry.name.startswith(place.shard) else None
        if record is None:
            continue
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if S_ISREG(status.st_mode):
                is_whole = status.st_size == record.file_bytes
                used_ns = status.st_mtime_ns if is_whole else -1
                yield Victim(used_ns, place, entry.name, record.file_bytes)
