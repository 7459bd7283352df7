"""A directory as a tier: several engines share it, and together keep a limit of its bytes.

Invariant: this process never makes the files of the directory larger than `max_bytes`, as far as
it knows them; what others write it knows after the next `refresh`. One process at a time evicts:
the one that has locked the lock file. Nothing outside of the directory is opened, and nothing in
it removed, but records and what their writers left.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from stat import S_ISREG, S_IWOTH
from threading import Lock
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.reading import SIZE, check
from kvbraid.transfer.disk.files import (
    GONE,
    can_be_direct,
    folder,
    open_folder,
    read_record,
    without_writer,
    write_record,
)
from kvbraid.transfer.disk.folders import (
    Folder,
    FolderPath,
    Scanned,
    Victim,
    least_recently_used,
    places,
    scan,
)
from kvbraid.transfer.disk.names import LOCK, file_bytes_of, key_of, record_name, shard_of
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.records import PAGE_BYTES
from kvbraid.transfer.status import Status
from kvbraid.transfer.tier import TierChanges

_HIGH: Final = 0.95
_LOW: Final = 0.90
"""Eviction begins above the first share of the limit, and goes on down to the second."""
_NAMES_PER_REFRESH: Final = 50_000
"""A refresh ends soon after that many names: the folders that are left are first in the next."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCounts:
    """What a directory has, and what was done to it since it was opened.

    Attributes:
        records: Records of this namespace.
        bytes: The bytes of their files.
        total_bytes: The bytes of all records of the directory.
        max_bytes: Their limit.
        evicted: Records that this process evicted.
        orphans: Files that this process removed, since their writers had died.
        ignored: Names in the folders that are nobody's: they stay.
        is_direct: Files are written and read around the page cache.
        evicts: This process is the one that evicts.
    """

    records: int
    bytes: int
    total_bytes: int
    max_bytes: int
    evicted: int
    orphans: int
    ignored: int
    is_direct: bool
    evicts: bool


class DiskTier:
    """Records as files of a directory. All calls but `open` and `close` are safe from any thread.

    Args:
        directory: Where they are; made if it is not there.
        max_bytes: The limit of all records there, of other engines and namespaces too.

    Raises:
        InvalidValueError: The limit is not positive.
    """

    def __init__(self, directory: str | os.PathLike[str], *, max_bytes: int) -> None:
        check("max_bytes", max_bytes, SIZE)
        self.directory: Final = Path(directory)
        self._max_bytes: Final = max_bytes
        self._lock: Final = Lock()
        self._evicting: Final = Lock()
        self._folders: Final[dict[FolderPath, Folder]] = {}
        self._total = 0
        """The bytes of all folders and of what is being written."""
        self._reserved = 0
        """The bytes of what is being written."""
        self._changes: Final[dict[BlockKey, bool]] = {}
        self._last_scanned = FolderPath("", "")
        self._is_listed = False
        self._evicts = False
        self._descriptors: Final = ExitStack()
        self._evicted = 0
        self._orphans = 0

    def open(self, namespace: Namespace) -> None:
        """Make the namespace's folder, list its records by their names, and lock if nobody has.

        Raises:
            InvalidValueError: The directory cannot be made, read or written, or anybody may
                write it.
        """
        self._digest = namespace.digest
        try:
            self._open()
        except OSError as error:
            self.close()
            msg = f"{self.directory} cannot be a tier: {error.strerror}; name a folder of your own"
            raise InvalidValueError(msg) from error

    def keys(self) -> Iterator[BlockKey]:
        """Return the keys of this namespace's records that are known, in no order."""
        with self._lock:
            names = [name for known in self._own_folders() for name in known.names]
        return map(key_of, names)

    def store(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        """Write a record, unless one of its name and length is there."""
        payload_bytes = payload.nbytes
        name = record_name(key, payload_bytes)
        num_bytes = PAGE_BYTES + payload_bytes
        if not self._reserve(num_bytes):
            return Status.FULL
        place = FolderPath(self._digest, shard_of(key))
        is_written = False
        try:
            with self._lock:
                self._folders.setdefault(place, Folder()).num_writing += 1
            self._write(place.shard, name, [header, payload])
            is_written = True
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        finally:
            with self._lock:
                self._note_written(place, name, num_bytes, is_written=is_written)
        return Status.OK if is_written else Status.FULL

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        """Read a record; one of another length is a miss, since lengths are parts of names."""
        payload_bytes = payload.nbytes
        name = record_name(key, payload_bytes)
        shard = shard_of(key)
        try:
            with folder([shard], self._parent) as place:
                num_bytes = read_record(place, name, [header, payload], direct=self._is_direct)
        except FileNotFoundError:
            self._forget(FolderPath(self._digest, shard), name)
            return Status.MISS
        return Status.OK if num_bytes == PAGE_BYTES + payload_bytes else Status.SHORT

    def drop(self, key: BlockKey) -> None:
        """Remove the files of a key, whatever their lengths."""
        shard = shard_of(key)
        start = record_name(key, 1)[:-1]
        with suppress(FileNotFoundError), folder([shard], self._parent) as place:
            for name in [name for name in os.listdir(place) if name.startswith(start)]:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)
                self._forget(FolderPath(self._digest, shard), name)

    def refresh(self) -> TierChanges:
        """Scan the folders that have changed, take over a lock that was left, and evict."""
        self._try_to_lock()
        self._scan_all(_NAMES_PER_REFRESH)
        self._evict_if_above(0, is_urgent=True)
        with self._lock:
            changes = TierChanges.of(self._changes)
            self._changes.clear()
            return changes

    def close(self) -> None:
        """Let another process evict, and give the directory back."""
        self._descriptors.close()
        self._evicts = False

    def counts(self) -> DiskCounts:
        """Return what the directory has and what was done."""
        with self._lock:
            own = self._own_folders()
            return DiskCounts(
                records=sum(known.num_records for known in own),
                bytes=sum(known.num_bytes for known in own),
                total_bytes=self._total,
                max_bytes=self._max_bytes,
                evicted=self._evicted,
                orphans=self._orphans,
                ignored=sum(known.num_ignored for known in self._folders.values()),
                is_direct=self._is_direct,
                evicts=self._evicts,
            )

    def _open(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = open_folder(str(self.directory))
        self._descriptors.callback(os.close, self._root)
        if os.fstat(self._root).st_mode & S_IWOTH:
            self.close()
            raise InvalidValueError(f"{self.directory} may be written by anybody; chmod o-w it")
        self._parent = open_folder(self._digest, self._root)
        self._descriptors.callback(os.close, self._parent)
        self._is_direct = can_be_direct(self._parent)
        self._try_to_lock()
        self._scan_all()
        self._is_listed = True

    # Room.

    def _reserve(self, num_bytes: int) -> bool:
        """Take room for a file; if there is none, make some as long as anything can be evicted."""
        self._evict_if_above(num_bytes, is_urgent=False)
        while not self._take(num_bytes):
            if not self._evict_if_above(num_bytes, is_urgent=True):
                return False
        return True

    def _take(self, num_bytes: int) -> bool:
        with self._lock:
            if self._total + num_bytes > self._max_bytes:
                return False
            self._total += num_bytes
            self._reserved += num_bytes
            return True

    def _evict_if_above(self, coming: int, *, is_urgent: bool) -> bool:
        """Evict if it is this process that does; only what is urgent waits for another thread.

        Args:
            coming: The bytes for which there is to be room besides.
            is_urgent: Whether to wait for another thread that evicts.

        Returns:
            Whether there may be room now, made here or by another thread.
        """
        if not self._evicts:
            return False
        if self._total + coming <= _HIGH * self._max_bytes:
            return True
        if not self._evicting.acquire(blocking=is_urgent):
            return False
        try:
            return self._evict_down(coming)
        finally:
            self._evicting.release()

    def _evict_down(self, coming: int) -> bool:
        """Remove the least recently used records of all namespaces, down to the second mark.

        Returns:
            Whether a file was removed, or another thread has made room.
        """
        num_bytes = self._total + coming - int(_LOW * self._max_bytes)
        if num_bytes <= 0:
            return True
        before = self._evicted
        victims = least_recently_used(self._root, num_bytes)
        for place, group in groupby(victims, key=lambda victim: victim.place):
            with suppress(*GONE), folder(place, self._root) as descriptor:
                for victim in group:
                    self._evict(victim, descriptor)
        return self._evicted > before

    def _evict(self, victim: Victim, descriptor: int) -> None:
        try:
            used_ns = os.stat(victim.name, dir_fd=descriptor, follow_symlinks=False).st_mtime_ns
            if used_ns > victim.used_ns >= 0:
                return  # Somebody has read it since.
            os.unlink(victim.name, dir_fd=descriptor)
            self._evicted += 1
        except FileNotFoundError:
            pass  # Somebody has dropped it.
        self._forget(victim.place, victim.name, victim.num_bytes)

    def _try_to_lock(self) -> None:
        """Become the process that evicts, unless there is one."""
        if self._evicts:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(LOCK, flags, 0o600, dir_fd=self._root)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return
        except OSError:
            pass  # The file system has no locks: nobody can know who else evicts.
        self._descriptors.callback(os.close, descriptor)
        self._evicts = True

    # What is known.

    def _own_folders(self) -> list[Folder]:
        return [known for place, known in self._folders.items() if self._is_own(place)]

    def _is_own(self, place: FolderPath) -> bool:
        return place.namespace == self._digest

    def _scan_all(self, max_names: int | None = None) -> None:
        """Scan the folders that have changed, those first that were left the last time."""
        found = dict(places(self._root))
        with self._lock:
            due = [place for place in found if self._is_due(place, found[place])]
            gone = [place for place in self._folders if place not in found]
        due.sort(key=lambda place: (place <= self._last_scanned, place))
        num_names = 0
        for place in due + gone:
            if max_names is not None and num_names >= max_names:
                break
            num_names += self._scan(place, found.get(place, 0))
            self._last_scanned = place
        with self._lock:
            for place in gone:
                known = self._folders[place]
                if not known.num_records and not known.num_writing:
                    del self._folders[place]

    def _is_due(self, place: FolderPath, changed_ns: int) -> bool:
        known = self._folders.get(place)
        return known is None or known.changed_ns != changed_ns

    def _scan(self, place: FolderPath, changed_ns: int) -> int:
        """Scan a folder; return how many records it has."""
        with self._lock:
            version = self._folders.setdefault(place, Folder()).version
        found = Scanned(Folder(), ())
        with suppress(*GONE), folder(place, self._root) as descriptor:
            is_own = self._is_own(place)
            found = scan(descriptor, place.shard, changed_ns, with_names=is_own)
            for name in found.temporaries:
                with without_writer(descriptor, name) as is_orphan, suppress(FileNotFoundError):
                    if is_orphan:
                        os.unlink(name, dir_fd=descriptor)
                        self._orphans += 1
        with self._lock:
            self._learn(place, found.folder, version)
        return found.folder.num_records

    def _learn(self, place: FolderPath, found: Folder, version: int) -> None:
        """Replace what is known of a folder, unless something was changed here meanwhile."""
        known = self._folders[place]
        if known.num_writing or known.version != version:
            return
        self._total += found.num_bytes - known.num_bytes
        if self._is_listed:
            self._note_changes(known.names.keys() - found.names.keys(), is_there=False)
            self._note_changes(found.names.keys() - known.names.keys(), is_there=True)
        found.version = version + 1
        self._folders[place] = found

    def _note_changes(self, names: Iterable[str], *, is_there: bool) -> None:
        self._changes.update((key_of(name), is_there) for name in names)

    def _note_written(
        self, place: FolderPath, name: str, num_bytes: int, *, is_written: bool
    ) -> None:
        known = self._folders[place]
        known.num_writing -= 1
        self._reserved -= num_bytes
        self._total -= num_bytes
        if is_written:
            before = known.num_bytes
            known.add(name, num_bytes)
            self._total += known.num_bytes - before

    def _forget(self, place: FolderPath, name: str, evicted_bytes: int = 0) -> None:
        """Note that a file is gone: one that was evicted, or a name that may be known."""
        with self._lock:
            known = self._folders.get(place)
            if known is None:
                return
            # Of its own namespace it knows all names that are in the sums, of others' none.
            num_bytes = known.names.get(name, 0 if self._is_own(place) else evicted_bytes)
            if not num_bytes:
                return
            if evicted_bytes and name in known.names:
                self._note_changes([name], is_there=False)
            known.remove(name, num_bytes)
            self._total -= num_bytes

    def _write(self, shard: str, name: str, buffers: list[memoryview]) -> None:
        """Write a file unless it is there; make its folder if there is none."""
        try:
            with folder([shard], self._parent) as place:
                if not _is_there(place, name, sum(b.nbytes for b in buffers)):
                    write_record(place, name, buffers, direct=self._is_direct)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(shard, 0o700, dir_fd=self._parent)
            with folder([shard], self._parent) as place:
                write_record(place, name, buffers, direct=self._is_direct)

    def check_integrity(self) -> None:
        """Assert that the sums are those of the names, and that each is in its folder."""
        with self._lock:
            for place, known in self._folders.items():
                if self._is_own(place):
                    assert known.names == file_bytes_of(known.names, place.shard)
                    assert known.num_records == len(known.names)
                    assert known.num_bytes == sum(known.names.values())
            folders = sum(known.num_bytes for known in self._folders.values())
            assert self._total == folders + self._reserved


def _is_there(place: int, name: str, num_bytes: int) -> bool:
    """Whether a file has a name and a length; it counts as used then."""
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
        if status.st_size != num_bytes or not S_ISREG(status.st_mode):
            return False
        os.utime(name, dir_fd=place, follow_symlinks=False)
    except OSError:
        return False
    return True
