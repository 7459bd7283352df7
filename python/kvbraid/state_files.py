"""Files of recoveries' states: a directory that keeps the latest ones, and a reader.

Invariant: whatever is written, the directory holds at most so many of these files, and no other
file is touched. A recovery goes on if its state cannot be written: that is counted. Nothing here
knows what a state is.
"""

import re
from pathlib import Path
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.reading import POSITIVE, check

_NAME: Final = re.compile(r"recovery-(\d{8,18})\.json")


class StateFiles:
    """A directory of states, `recovery-00000000.json` and so on; later ones have larger numbers.

    Several engines may share a directory: none overwrites another's file, and the limit is that of
    the one that wrote last.

    Attributes:
        num_lost: States that could not be written.

    Raises:
        InvalidValueError: `max_files` is not positive, or the directory cannot be made.
    """

    def __init__(self, directory: Path, *, max_files: int = 32) -> None:
        check("max_files", max_files, POSITIVE)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{directory} cannot be made: {error.strerror}; name another directory"
            raise InvalidValueError(msg) from error
        self._directory: Final = directory
        self._max_files: Final = max_files
        self.num_lost = 0

    def write(self, state: bytes) -> Path | None:
        """Write a state and remove the oldest beyond the limit; return its path, None if lost."""
        try:
            numbers = sorted(self._files())
            path = self._write(state, numbers[-1] + 1 if numbers else 0)
            files = self._files()
            for number in sorted(files)[: -self._max_files]:
                files[number].unlink(missing_ok=True)
        except OSError:
            self.num_lost += 1
            return None
        return path

    def _write(self, state: bytes, number: int) -> Path:
        while True:
            path = self._directory / f"recovery-{number:08}.json"
            try:
                with path.open("xb") as file:
                    file.write(state)
            except FileExistsError:  # Another engine was faster.
                number += 1
            except OSError:
                path.unlink(missing_ok=True)
                raise
            else:
                return path

    def _files(self) -> dict[int, Path]:
        found = ((_NAME.fullmatch(path.name), path) for path in self._directory.iterdir())
        return {int(name[1]): path for name, path in found if name is not None}


def read_state_file(path: Path, *, max_bytes: int) -> bytes:
    """Read at most one byte more than `max_bytes`, so that a longer file is seen to be longer.

    Raises:
        InvalidValueError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; give the path of a state that was dumped"
        raise InvalidValueError(msg) from error
