"""A directory as a tier that breaks as it is told, and jobs of its records that end by ticks.

Threads make the calls, but decide nothing: what goes wrong with which key is drawn before a job is
submitted, and every job that does not hang is waited for. While a call hangs, no other job names
its key; a job hangs in all of its calls or in none.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from threading import Event, Semaphore
from typing import Final

from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.disk.names import record_name, shard_of
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import pages
from kvbraid.transfer.status import Status

from tests.ghost.real.memory import Odds

PATIENCE_S: Final = 60.0
"""How long a thread is waited for before the simulation fails."""
MAX_WAITS: Final = 200


class Breakage(StrEnum):
    """What goes wrong with a call, before a record is read or after it was written."""

    ERROR = "error"
    FULL = "full"
    TRUNCATED = "truncated"
    FLIPPED = "flipped"
    SWAPPED = "swapped"
    REMOVED = "removed"
    HANGS = "hangs"


BREAKAGES: Final = {
    Kind.WRITE: tuple(Breakage),
    Kind.PROMOTE: tuple(each for each in Breakage if each is not Breakage.FULL),
    Kind.DROP: (Breakage.ERROR, Breakage.HANGS),
}


@dataclass(slots=True)
class Hang:
    """A job whose calls wait. They end when `end` is set, which is due in a tick."""

    keys: frozenset[BlockKey]
    due: int
    began: Semaphore = field(default_factory=lambda: Semaphore(0))
    end: Event = field(default_factory=Event)

    def wait(self) -> None:
        self.began.release()
        if not self.end.wait(PATIENCE_S):
            raise AssertionError("nobody ends a call that hangs")


class BrokenTier:
    """A `DiskTier` with faults: `plans` has what happens to the next call of a kind with a key.

    Attributes:
        damaged: The keys whose records a fault has spoilt or taken.
        changes: How often the record of each key was written, dropped or spoilt.
        is_dead: Every call raises.
    """

    def __init__(self, directory: Path, namespace: Namespace) -> None:
        self.disk = DiskTier(directory, max_bytes=1 << 40)
        self.folder = directory / namespace.digest
        self.plans: dict[tuple[Kind, BlockKey], Breakage | Hang] = {}
        self.damaged: set[BlockKey] = set()
        self.changes: Counter[BlockKey] = Counter()
        self.is_dead = False

    def open(self, namespace: Namespace) -> None:
        self.disk.open(namespace)

    def keys(self) -> Iterable[BlockKey]:
        return self.disk.keys()

    def store(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        plan = self._begin(Kind.WRITE, key)
        if plan is Breakage.FULL:
            return Status.FULL
        path = self._path(key, payload.nbytes)
        is_there = path.exists() and path.stat().st_size == header.nbytes + payload.nbytes
        status = self.disk.store(key, header, payload)
        self.changes[key] += 1
        if not is_there:
            self.damaged.discard(key)
        self._damage(plan, key, path)
        return status

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        self._damage(self._begin(Kind.PROMOTE, key), key, self._path(key, payload.nbytes))
        return self.disk.load(key, header, payload)

    def drop(self, key: BlockKey) -> None:
        self._begin(Kind.DROP, key)
        self.disk.drop(key)

    def close(self) -> None:
        self.disk.close()

    def die(self) -> None:
        """Lose all records, and fail from now on."""
        self.is_dead = True
        for path in self.folder.glob("*/*"):
            path.unlink()
        self.damaged.update(self.disk.keys())
        self.changes.update(self.damaged)

    def peek(self, key: BlockKey, num_bytes: int) -> tuple[Status, memoryview]:
        """Return what a record really holds."""
        page, payload = pages(), pages(num_bytes // 4_096)
        return self.disk.load(key, page, payload), payload

    def _begin(self, kind: Kind, key: BlockKey) -> Breakage | None:
        plan = self.plans.pop((kind, key), None)
        if isinstance(plan, Hang):
            plan.wait()
            plan = None
        if plan is Breakage.ERROR or self.is_dead:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plan

    def _path(self, key: BlockKey, num_bytes: int) -> Path:
        return self.folder / shard_of(key) / record_name(key, num_bytes)

    def _damage(self, plan: Breakage | None, key: BlockKey, path: Path) -> None:
        if plan not in _DAMAGES or not path.exists():
            return
        content = path.read_bytes()
        self.damaged.add(key)
        self.changes[key] += 1
        if plan is Breakage.REMOVED:
            path.unlink()
        elif plan is Breakage.TRUNCATED:
            path.write_bytes(content[: len(content) - 1 - key.block_hash[0]])
        elif plan is Breakage.FLIPPED:
            at = int.from_bytes(key.block_hash[:4], "big") % min(_used(content), len(content))
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        else:
            path.write_bytes(self._other_record(path, content))

    def _other_record(self, path: Path, content: bytes) -> bytes:
        """Return another record, or what looks like none: its own bytes the other way round."""
        end = path.name.split("-", 1)[1]
        for other in sorted(self.folder.glob(f"*/*-{end}")):
            with suppress(FileNotFoundError):
                found = other.read_bytes()
                if other != path and len(found) == len(content):
                    return found
        return content[::-1]


_DAMAGES: Final = {
    Breakage.TRUNCATED,
    Breakage.FLIPPED,
    Breakage.SWAPPED,
    Breakage.REMOVED,
}


def _keys(job: Job) -> frozenset[BlockKey]:
    return frozenset(item.key for item in job.items if item.key is not None)


def _used(content: bytes) -> int:
    """Return how many bytes of a record its checksums cover: not its padding."""
    return 4_096 + int.from_bytes(content[16:24], "little")


class TierJobs:
    """The `RecordJobs` of a worker: a `RecordStore`, of which every answer is waited for.

    Attributes:
        hanging: The jobs that hang, by number.
    """

    def __init__(self, tier: BrokenTier, store: RecordStore, odds: Odds, most_hung: int) -> None:
        self.tier = tier
        self.store = store
        self.hanging: dict[int, Hang] = {}
        self.tick = 0
        self._odds = odds
        self._random = odds.random
        self._most_hung = most_hung
        self._awaited: dict[int, frozenset[BlockKey]] = {}
        self._found: list[JobResult] = []

    def submit(self, job: Job, payloads: Sequence[memoryview]) -> None:
        hang = self._plan(job)
        self._awaited[job.number] = _keys(job)
        self.store.submit(job, payloads)
        self._collect(self.store.poll())
        if hang is None or job.number not in self._awaited:  # Off or paused, it is not tried.
            return
        for _ in hang.keys:
            assert hang.began.acquire(timeout=PATIENCE_S), "a call did not begin"
        self.hanging[job.number] = hang
        del self._awaited[job.number]
        self._odds.faults[f"{job.kind} {Breakage.HANGS}"] += 1

    def is_blocked(self, job: Job) -> bool:
        """Whether a job names a key of a call that runs."""
        running = [*self._awaited.values(), *(hang.keys for hang in self.hanging.values())]
        return not _keys(job).isdisjoint(chain.from_iterable(running))

    def poll(self) -> list[JobResult]:
        for number in [number for number, hang in self.hanging.items() if hang.due <= self.tick]:
            self._release(number)
        for _ in range(MAX_WAITS):
            if not self._awaited:
                break
            self._collect(self.store.wait(PATIENCE_S))
        assert not self._awaited, f"jobs {[*self._awaited]} were never answered"
        self._collect(self.store.poll())
        self.tier.plans.clear()  # Some calls were not made.
        found, self._found = self._found, []
        return sorted(found, key=lambda result: (result.number, result.is_over))

    def close(self) -> None:
        for number in list(self.hanging):
            self._release(number)
        self.poll()  # A simulation that has failed leaves some.
        assert self.store.close(PATIENCE_S), "threads are left"

    def _collect(self, results: Iterable[JobResult]) -> None:
        for result in results:
            self._found.append(result)
            if result.is_over:
                self._awaited.pop(result.number, None)

    def _release(self, number: int) -> None:
        hang = self.hanging.pop(number)
        hang.end.set()
        self._awaited[number] = hang.keys

    def _plan(self, job: Job) -> Hang | None:
        """Draw what goes wrong with a job; return the hang if it is one."""
        if not self._odds.strike():
            return None
        breakage = self._random.choice(self._possible(job))
        keys = [item.key for item in job.items if item.key is not None]
        if breakage is Breakage.HANGS:
            hang = Hang(_keys(job), self.tick + self._random.randint(1, 12))
            self.tier.plans.update({(job.kind, key): hang for key in keys})
            return hang
        self._odds.faults[f"{job.kind} {breakage}"] += 1
        for key in keys[:1] + [key for key in keys[1:] if self._random.random() < 0.5]:
            self.tier.plans[job.kind, key] = breakage
        return None

    def _possible(self, job: Job) -> list[Breakage]:
        """What can happen without making the outcome a matter of luck: with one thread, calls
        come in order, so that a full tier pauses; with several, one may hang."""
        hung = sum(len(hang.keys) for hang in self.hanging.values())
        may_hang = 0 < len(job.items) <= self._most_hung - hung
        out = {Breakage.FULL} if self._most_hung else set[Breakage]()
        out |= set() if may_hang else {Breakage.HANGS}
        return [each for each in BREAKAGES[job.kind] if each not in out]
