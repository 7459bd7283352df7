"""Which mechanism is fastest on this device: measured once, kept in a file, asked for each move.

    mechanisms   one by one | in one call | ...      copies of runs as they are, by name
    STAGED       collected on the device first       then copies of what is together on the host

Invariant: no figure of a device is in this code. A choice compares times that were measured on
this device, at the sizes around the move's. Whatever a file says, only speed depends on
it: what this process did not write itself, or not for this device, is measured again.
"""

import hashlib
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from kvbraid.reading import Fields
from kvbraid.transfer.jobs import Kind

STAGED: Final = "staged"
"""The mechanism whose time is that of the device alone: collecting for `STORE`, spreading for
`LOAD`, both for `COPY`."""

MAX_TRIAL_BYTES: Final = 64 << 20
"""What one trial moves at most, and so the size of the memory that trials need."""

_LENGTHS: Final = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
_NUMBERS: Final = {
    run_bytes: tuple(n for n in (1, 8, 64, 512, 4096) if run_bytes * n <= MAX_TRIAL_BYTES)
    for run_bytes in _LENGTHS
}

CELLS: Final = tuple((length, number) for length in _LENGTHS for number in _NUMBERS[length])
"""The sizes that are measured: length and number of runs."""

_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 10
_NUM_REPEATS: Final = 3


class DeviceName(Fields, frozen=True):
    """What a measurement is true of."""

    device: str
    driver: str
    cuda: str


class RunSizes(NamedTuple):
    """The size of a move: runs of about that many bytes."""

    run_bytes: float
    num_runs: int


class Trial(NamedTuple):
    """One thing to measure."""

    kind: Kind
    mechanism: str
    run_bytes: int
    num_runs: int


class Choice(NamedTuple):
    """How to move: with which copies, and whether over memory that collects runs first."""

    mechanism: str
    is_staged: bool


class _Cell(Fields, frozen=True, array_like=True):
    kind: Kind
    mechanism: Annotated[str, msgspec.Meta(max_length=32)]
    run_bytes: int
    num_runs: int
    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)]


class _Document(Fields, frozen=True):
    version: int
    of: DeviceName
    cells: Annotated[list[_Cell], msgspec.Meta(max_length=len(CELLS) * 16)]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The seconds of every trial that ended well."""

    seconds: Mapping[Trial, float]

    def best(
        self, kind: Kind, mechanisms: Sequence[str], runs: RunSizes, staged: RunSizes | None
    ) -> Choice:
        """Return the fastest of these mechanisms for runs of this size.

        `staged` is the size of what is left to copy to or from the host after runs were collected
        on the device; None: they cannot be. The first mechanism is taken where nothing is known.
        """
        choices = {Choice(each, False): self._time(kind, each, runs) for each in mechanisms}
        if staged is not None:
            collected = self._time(kind, STAGED, runs)
            for each in mechanisms:
                copied = self._time(kind, each, staged) if staged.num_runs else 0.0
                choices[Choice(each, True)] = collected + copied
        return min(choices, key=choices.__getitem__)

    def _time(self, kind: Kind, mechanism: str, runs: RunSizes) -> float:
        """Return the time between those of the next shorter and longer runs; or infinity.

        Runs shorter than the shortest take as long as that, and longer ones grow with their bytes.
        """
        length = min(max(runs.run_bytes, _LENGTHS[0]), _LENGTHS[-1])
        low = max(each for each in _LENGTHS if each <= length)
        high = min(each for each in _LENGTHS if each >= length)
        share = math.log(length / low) / math.log(high / low) if low < high else 0.0
        seconds: float = math.prod(
            self._time_of_one(kind, mechanism, each, runs.num_runs) ** power
            for each, power in ((low, 1 - share), (high, share))
        )
        return seconds * runs.num_runs * max(1.0, runs.run_bytes / _LENGTHS[-1])

    def _time_of_one(self, kind: Kind, mechanism: str, length: int, num_runs: int) -> float:
        """Return the time of one run among so many: of the nearest number that was measured."""
        near = min(_NUMBERS[length], key=lambda each: abs(math.log2(each / num_runs)))
        return self.seconds.get(Trial(kind, mechanism, length, near), math.inf) / near


def measure(
    attempt: Callable[[Trial], object],
    mechanisms: Mapping[Kind, Iterable[str]],
    clock: Callable[[], float],
    *,
    most_seconds: float = 10.0,
) -> tuple[Calibration, int]:
    """Time every mechanism at every size, and return how many trials failed.

    `attempt` carries out a trial and waits for its end. Each is repeated, after once that does not
    count, and the shortest time stands. After `most_seconds` what was measured has to do.
    """
    begun, num_failed = clock(), 0
    seconds: dict[Trial, float] = {}
    trials = [
        Trial(kind, mechanism, *cell)
        for cell in CELLS
        for kind, names in mechanisms.items()
        for mechanism in names
    ]
    for trial in trials:
        if clock() - begun > most_seconds:
            break
        times = []
        try:
            for _ in range(1 + _NUM_REPEATS):
                start = clock()
                attempt(trial)
                times.append(clock() - start)
        except Exception:  # noqa: BLE001 - a driver's: what cannot be measured is not chosen.
            num_failed += 1
            continue
        seconds[trial] = max(min(times[1:]), 1e-9)
    return Calibration(seconds), num_failed


class CalibrationFiles:
    """A folder with one file for each device, driver and version of CUDA.

    Attributes:
        counts: Files that were `refused` (not ours, or not for this device), and `unwritten`.
    """

    def __init__(self, directory: Path) -> None:
        self.counts: Final[Counter[str]] = Counter()
        self._directory: Final = directory

    def path(self, of: DeviceName) -> Path:
        """Return where the calibration of a device is."""
        name = hashlib.sha256(msgspec.json.encode(of)).hexdigest()[:16]
        return self._directory / f"calibration-{name}.json"

    def read(self, of: DeviceName, mechanisms: Mapping[Kind, Iterable[str]]) -> Calibration | None:
        """Return what was written for a device, None if there is nothing that can be used."""
        try:
            content = _content(self.path(of))
        except FileNotFoundError:
            return None
        except OSError:
            self.counts["refused"] += 1
            return None
        known = {(kind, name) for kind, names in mechanisms.items() for name in names}
        try:
            document = msgspec.json.decode(content, type=_Document)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            document = None
        if (
            document is None
            or (document.version, document.of) != (_VERSION, of)
            or any((each.kind, each.mechanism) not in known for each in document.cells)
            or any((each.run_bytes, each.num_runs) not in CELLS for each in document.cells)
        ):
            self.counts["refused"] += 1
            return None
        return Calibration(
            {
                Trial(each.kind, each.mechanism, each.run_bytes, each.num_runs): each.seconds
                for each in document.cells
            }
        )

    def write(self, of: DeviceName, calibration: Calibration) -> None:
        """Keep a calibration. What cannot be written is counted, and measured again next time."""
        cells = [_Cell(*trial, seconds) for trial, seconds in calibration.seconds.items()]
        content = msgspec.json.encode(_Document(version=_VERSION, of=of, cells=cells))
        path = self.path(of)
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError:
            self.counts["unwritten"] += 1


def _content(path: Path) -> bytes:
    """Return the bytes of a file that is one, and no longer than ours get.

    Raises:
        OSError: It is not such a file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES:
            raise OSError(f"{path} is no calibration")
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)
