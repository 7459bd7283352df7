"""What the index knows of each pod, in files: a server that starts again is warm at once.

    DIR/secret           32 random bytes: the secret of the index, without which no file is read
    DIR/<pod>.snapshot   one pod, and how far its feed had settled it (docs/design/snapshot.md)

What a neighbour knows is newer, so it is asked first.

Invariant: a file is whole or not there, because it is written beside and then renamed. A pod is
saved while the index has exactly what its feed had settled; so a server that loads it asks the
engine for what came since, and is exact as soon as the engine has shown that it is still the same.
What cannot be read or written costs warmth alone: it is counted, logged and shown, never fatal.
"""

import contextlib
import hashlib
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import msgspec

from kvbraid.errors import InvalidValueError, KvbraidError, SnapshotError, one_line
from kvbraid.events.sequence import Settled
from kvbraid.fleet.index import SECRET_BYTES
from kvbraid.ids import PodId
from kvbraid.service.journal import Journal, Rank
from kvbraid.service.neighbour import Neighbour, NoSnapshotError

EVERY_S: Final = 60.0
"""So often every pod is saved, in seconds."""

LAST_S: Final = 2.0
"""How long the last saving may wait for pods that are not at rest, in seconds."""

KEPT_S: Final = 24 * 3600.0
"""Files of pods that nobody has registered are removed when they are older."""

_TRY_S: Final = 0.05
_MOST_NAMED: Final = 10
_SUFFIX: Final = ".snapshot"
_LONGEST_NAME: Final = 200
_LOGGER: Final = logging.getLogger("kvbraid.snapshots")


class Saving(Protocol):
    """The part of `FleetIndex` that is saved."""

    def save(self, pod: PodId, *, note: str = "") -> bytes:
        """Return what is known of a pod, with a note."""

    def load(self, pod: PodId, saved: bytes) -> str:
        """Replace what is known of a pod, and return the note."""

    def lose(self, pod: PodId, *, dp_rank: int = 0) -> None:
        """Know nothing of a rank."""


class Resting(Protocol):
    """The part of `Subscriber` that tells when a pod can be saved."""

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None], /) -> bool:
        """Do some work while the index has what was settled of a pod; False: not now."""


class Snapshots:
    """The files of one server; any thread may use it.

    Args:
        folder: Made if it is not there.
        index: What is saved and loaded.
        journal: Is told of files that are refused, and of what cannot be written.
        neighbour: A server that is asked before the files are read.

    Attributes:
        counts: Snapshots by what happened: `written`, `loaded`, `fetched`, `given`, `failed`,
            `late`, `refused_<reason>` and `neighbour_<reason>`.
        problem: Why the last file could not be written; empty if it could.
    """

    def __init__(
        self, folder: Path, index: Saving, *, journal: Journal, neighbour: Neighbour | None = None
    ) -> None:
        self.counts: Counter[str] = Counter(
            written=0, loaded=0, fetched=0, given=0, failed=0, late=0
        )
        self.problem = ""
        self._neighbour = neighbour
        self._folder = folder
        self._index = index
        self._journal = journal
        self._written_at: dict[PodId, float] = {}

    def ages_s(self) -> dict[PodId, float]:
        """Return how old the newest file of each pod is that this process has written."""
        now = time.monotonic()
        return {pod: now - at for pod, at in dict(self._written_at).items()}

    def load(self, pod: PodId, num_ranks: int) -> list[Settled]:
        """Load a registered pod, and return how far each rank was settled; empty: it is cold."""
        return self._fetched(pod, num_ranks) or self._read(pod, num_ranks)

    def take(self, pod: PodId, feed: Resting) -> bytes | None:
        """Return what is known of a pod; None: not now, because it is not at rest.

        Raises:
            KvbraidError: The pod is not registered any more, or nothing is followed.
        """
        saved: list[bytes] = []

        def save(progress: Sequence[Settled]) -> None:
            saved.append(self._index.save(pod, note=msgspec.json.encode(progress).decode()))

        return saved[0] if feed.at_rest(pod, save) else None

    def give(self, pod: PodId, feed: Resting) -> bytes | None:
        """Return what is known of a pod, for another server; None: it was not at rest in time.

        Raises as `take`.
        """
        ends_at = time.monotonic() + LAST_S
        while (saved := self.take(pod, feed)) is None and time.monotonic() < ends_at:
            time.sleep(_TRY_S)
        self.counts["given"] += saved is not None
        return saved

    def save(self, pod: PodId, feed: Resting) -> bool:
        """Write the file of a pod; False: not now, because it is not at rest. Never raises."""
        try:
            saved = self.take(pod, feed)
            if saved is None:
                return False
            write_whole(self._path(pod), saved)
        except (OSError, KvbraidError) as error:
            self._fail(pod, getattr(error, "strerror", None) or str(error))
            return True
        self.counts["written"] += 1
        self.problem = ""
        self._written_at[pod] = time.monotonic()
        return True

    def save_all(
        self, pods: Sequence[PodId], feed: Resting, *, within_s: float, over: threading.Event
    ) -> list[PodId]:
        """Write the files of pods, each when it is at rest; return who is late.

        Nothing more is written once it is over.
        """
        late, ends_at = list(pods), time.monotonic() + within_s
        while late and not over.is_set():
            late = [pod for pod in late if over.is_set() or not self.save(pod, feed)]
            if late and time.monotonic() >= ends_at:
                break
            over.wait(_TRY_S if late else 0)
        self.counts["late"] += len(late)
        return late

    def forget(self, pod: PodId) -> None:
        """Remove the file of a pod that is registered no longer."""
        self._written_at.pop(pod, None)
        with contextlib.suppress(OSError):
            self._path(pod).unlink(missing_ok=True)

    def tidy(self, pods: Sequence[PodId]) -> None:
        """Remove files of other pods that are old, and what a process left that was killed."""
        own = {self._path(pod).name for pod in pods}
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{_SUFFIX}*"):
                if path.name not in own and time.time() - path.stat().st_mtime > KEPT_S:
                    path.unlink(missing_ok=True)

    def _fetched(self, pod: PodId, num_ranks: int) -> list[Settled]:
        if self._neighbour is None:
            return []
        whose = f"of {self._neighbour.url} "
        try:
            saved = self._neighbour.snapshot(pod)
        except NoSnapshotError as error:
            self._refuse(pod, f"neighbour_{error.why}", f"{whose}{error}")
            return []
        return [] if saved is None else self._taken_in(pod, saved, num_ranks, "fetched", whose)

    def _read(self, pod: PodId, num_ranks: int) -> list[Settled]:
        try:
            saved = self._path(pod).read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._refuse(pod, "refused_unreadable", f"{error.strerror}; check who may read it")
            return []
        return self._taken_in(pod, saved, num_ranks, "loaded")

    def _taken_in(
        self, pod: PodId, saved: bytes, num_ranks: int, what: str, whose: str = ""
    ) -> list[Settled]:
        try:
            progress = _progress(self._index.load(pod, saved))
        except SnapshotError as error:
            self._refuse(pod, f"refused_{error.reason}", f"{whose}{error}")
            return []
        if len(progress) != num_ranks:
            for rank in range(num_ranks):
                self._index.lose(pod, dp_rank=rank)
            told = "it does not say how far its ranks were settled"
            self._refuse(pod, "refused_impossible", f"{whose}{told}")
            return []
        self.counts[what] += 1
        return progress

    def _path(self, pod: PodId) -> Path:
        name = quote(pod, safe="").replace(".", "%2E")
        if len(name) > _LONGEST_NAME:
            name = hashlib.sha256(pod.encode()).hexdigest()
        return self._folder / f"{name}{_SUFFIX}"

    def _refuse(self, pod: PodId, what: str, text: str) -> None:
        self.counts[what] += 1
        detail = what.removeprefix("refused_")
        self._journal.note("snapshot_refused", Rank(pod), text, detail=detail)

    def _fail(self, pod: PodId, why: str) -> None:
        self.counts["failed"] += 1
        if not self.problem:  # It is said once, until a file could be written again.
            self._journal.note("snapshot_failed", Rank(pod), why)
        self.problem = one_line(f"no snapshot of pod {pod} is written: {why}")


def _progress(note: str) -> list[Settled]:
    """Return what a note says of each rank; nothing if it says something else."""
    try:
        return msgspec.json.decode(note, type=list[Settled])
    except msgspec.MsgspecError:
        return []


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is whole whenever it is looked at, and only its owner can read.

    Raises:
        OSError: It could not be written; what was there before is still there.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        with open(beside, "wb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def read_secret(folder: Path, shared: Path | None = None) -> bytes:
    """Make a folder of snapshots if there is none, and return its secret.

    That is a file which is shared with other servers, or else the folder's own, drawn at first.

    Raises:
        InvalidValueError: The folder or the file cannot be used.
    """
    path = shared or folder / "secret"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shared is None and not path.exists():
            write_whole(path, os.urandom(SECRET_BYTES))
        secret = path.read_bytes()
    except OSError as error:
        told = f"{error.filename}: {error.strerror}"
        remedy = "give a folder that can be written, and a secret that can be read"
        raise InvalidValueError(f"index.snapshots {folder}: {told}; {remedy}") from None
    if len(secret) != SECRET_BYTES:
        remedy = "remove it with all snapshots, and they are made anew"
        if shared is not None:
            remedy = f"head -c {SECRET_BYTES} /dev/urandom makes one"
        msg = f"{path} has {len(secret)} bytes; it must have {SECRET_BYTES}: {remedy}"
        raise InvalidValueError(msg)
    return secret


@contextlib.contextmanager
def saving(
    snapshots: Snapshots | None, feed: Resting, pods: Callable[[], Sequence[PodId]]
) -> Iterator[None]:
    """Save all pods from time to time, on a thread of its own, and once more at the end.

    At the end another signal does not wait for that any longer: what is not saved has its older
    file, and the log says so.
    """
    if snapshots is None:
        yield
        return
    over, hurried = threading.Event(), threading.Event()

    def save() -> None:
        while not over.wait(EVERY_S):
            try:
                snapshots.save_all(pods(), feed, within_s=EVERY_S / 2, over=over)
                snapshots.tidy(pods())
            except Exception:  # The next round may be a better one.
                _LOGGER.exception("pods could not be saved")
        late = snapshots.save_all(pods(), feed, within_s=LAST_S, over=hurried)
        if late:
            _LOGGER.warning("not saved at the end, and left with older files: %s", _listed(late))

    thread = threading.Thread(target=save, name="kvbraid-snapshots")
    thread.start()
    try:
        yield
    finally:
        over.set()
        with _signals(hurried.set):
            while thread.is_alive() and not hurried.is_set():
                thread.join(_TRY_S)
        thread.join(_TRY_S)
        if thread.is_alive():
            _LOGGER.warning("a file is still being written, and another signal ends the server")


@contextlib.contextmanager
def _signals(heard: Callable[[], None]) -> Iterator[None]:
    """Call this for each signal that would end the process; only a main thread hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: heard()) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listed(pods: Sequence[PodId]) -> str:
    further = len(pods) - _MOST_NAMED
    return ", ".join(pods[:_MOST_NAMED]) + (f" and {further} more" if further > 0 else "")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
