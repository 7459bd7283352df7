"""One record as one file: written beside its place, then renamed; read in one call.

Invariant: a file with a record's name is whole from the moment at which it is seen, as far as the
machine stays up; nothing is synced, since whoever reads verifies. No call follows a symbolic link.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kvbraid.transfer.disk.names import new_temporary
from kvbraid.transfer.records import PAGE_BYTES, pages

GONE: Final = (FileNotFoundError, NotADirectoryError)
"""What opening a folder raises that is not there any more, or is a link."""
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Not blocking: the open of a pipe, which somebody gave a record's name, would wait."""
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenFolder:
    """A folder that is open for the time of a `with`.

    It is a class and no generator: code that reads a record finds the processor's caches cold,
    where a generator as context manager takes 9 us a record.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def folder(names: Sequence[str], parent: int) -> OpenFolder:
    """Open a folder for the time of a `with`: that of one name, in that of the name before it.

    Args:
        names: One name or more.
        parent: The descriptor of the folder of the first.
    """
    first, *rest = names
    descriptor = os.open(first, _FOLDER, dir_fd=parent)
    for name in rest:
        try:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return OpenFolder(descriptor)


def existing_folder(path: Path) -> OpenFolder:
    """Open a directory that a user names for the time of a `with`; it may be a link."""
    return OpenFolder(os.open(path, _FOLDER & ~os.O_NOFOLLOW))


def open_folder(name: str, parent: int | None = None) -> int:
    """Make a folder unless it is there, and return a descriptor that the caller owns."""
    with suppress(FileExistsError):
        os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
    # Only the directory that a user names may be a link.
    flags = _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW
    return os.open(name, flags, dir_fd=parent)


def write_record(place: int, name: str, buffers: Sequence[memoryview], *, direct: bool) -> None:
    """Write a file of a folder: it is there whole, or not at all.

    Raises:
        OSError: It could not be written, and nothing is left of it.
    """
    temporary, descriptor = _new_file(place, _WRITE | (os.O_DIRECT if direct else 0))
    try:
        _write_all(descriptor, buffers)
        os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=place)
        raise
    finally:
        os.close(descriptor)


def read_record(place: int, name: str, buffers: Sequence[memoryview], *, direct: bool) -> int:
    """Fill buffers from a file of a folder, and note that it was used; return its bytes read.

    Raises:
        OSError: It could not be read.
    """
    flags = READ | (os.O_DIRECT if direct else 0)
    descriptor = os.open(name, flags, dir_fd=place)
    try:
        num_bytes = _read_all(descriptor, buffers)
        with suppress(OSError):  # Loads work on a read-only file system, too.
            os.utime(descriptor)
        return num_bytes
    finally:
        os.close(descriptor)


@contextmanager
def without_writer(place: int, name: str) -> Iterator[bool]:
    """Whether the process that was writing a temporary file has ended; it may be removed then."""
    try:
        descriptor = os.open(name, READ, dir_fd=place)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def can_be_direct(place: int) -> bool:
    """Whether files of a folder can be written and read around the page cache."""
    name = new_temporary()
    page = pages()
    try:
        flags = os.O_RDWR | os.O_DIRECT | (_WRITE & ~os.O_WRONLY)
        descriptor = os.open(name, flags, _FILE_MODE, dir_fd=place)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=place)
        return False
    try:
        return os.pwrite(descriptor, page, 0) == os.preadv(descriptor, [page], 0) == PAGE_BYTES
    except OSError:
        return False
    finally:
        os.close(descriptor)
        os.unlink(name, dir_fd=place)


def _new_file(place: int, flags: int) -> tuple[str, int]:
    """Make a temporary file that is locked; return its name, and a descriptor the caller owns."""
    while True:
        name = new_temporary()
        descriptor = os.open(name, flags, _FILE_MODE, dir_fd=place)
        # Some file systems have no locks; then nothing is an orphan.
        if not _try_lock(descriptor, fcntl.LOCK_EX) or os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # Somebody has locked it first, and removed it as an orphan.


def _try_lock(descriptor: int, how: int) -> bool:
    """Lock a file if that goes; return whether it is locked."""
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        return False
    return True


def _write_all(descriptor: int, buffers: Sequence[memoryview]) -> None:
    done, total = 0, _num_bytes(buffers)
    while done < total:
        rest = _after(buffers, done) if done else buffers
        num_bytes = _direct_if_possible(os.pwritev, descriptor, rest, done)
        if num_bytes == 0:
            raise OSError(errno.EIO, "nothing is written any more")
        done += num_bytes


def _read_all(descriptor: int, buffers: Sequence[memoryview]) -> int:
    done, total = 0, _num_bytes(buffers)
    while done < total:
        rest = _after(buffers, done) if done else buffers
        num_bytes = _direct_if_possible(os.preadv, descriptor, rest, done)
        done += num_bytes
        if num_bytes == 0 or done % PAGE_BYTES:
            break  # The end of the file.
    return done


def _num_bytes(buffers: Sequence[memoryview]) -> int:
    return sum([buffer.nbytes for buffer in buffers])


def _direct_if_possible(
    call: Callable[[int, Sequence[memoryview], int], int],
    descriptor: int,
    buffers: Sequence[memoryview],
    offset: int,
) -> int:
    """Make a call again through the page cache if it is refused around it."""
    try:
        return call(descriptor, buffers, offset)
    except OSError as error:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return call(descriptor, buffers, offset)


def _after(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return what is left of buffers after their first bytes."""
    rest: list[memoryview] = []
    for buffer in buffers:
        view = buffer.cast("B")
        if done < view.nbytes:
            rest.append(view[done:])
        done = max(0, done - view.nbytes)
    return rest
