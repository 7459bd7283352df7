"""A tier whose calls wait or fail as a test says; keys, buffers and jobs for it."""

from collections.abc import Callable
from hashlib import sha256
from threading import Event
from typing import Final

from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import PAGE_BYTES, pages
from kvbraid.transfer.status import Status

from tests.reference.memory_tier import MemoryTier

NAMESPACE: Final = Namespace(
    layout="layout", model="model", hash_algorithm="sha256_cbor", hash_seed="0"
)
USED: Final = (2 * PAGE_BYTES, 5_000, 100)
"""Bytes of a block of three groups: whole pages, not so, and less than one."""
NOWHERE: Final = BlockId(0)
PATIENCE_S: Final = 60.0
"""How long a test waits for a thread before it fails."""


class FaultyTier(MemoryTier):
    """A dictionary whose next calls do something else first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, BlockKey]] = []
        self.before: dict[str, Callable[[BlockKey], Status | None]] = {}
        """By the name of a call: what happens before it, and instead of it if not None."""

    def store(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        return self._first("store", key) or super().store(key, header, payload)

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        return self._first("load", key) or super().load(key, header, payload)

    def drop(self, key: BlockKey) -> None:
        self._first("drop", key)
        super().drop(key)

    def _first(self, name: str, key: BlockKey) -> Status | None:
        self.calls.append((name, key))
        return self.before[name](key) if name in self.before else None


class Hang:
    """A call that waits until it is released."""

    def __init__(self) -> None:
        self.began: Final = Event()
        self.end: Final = Event()

    def __call__(self, key: BlockKey) -> None:
        del key
        self.began.set()
        assert self.end.wait(PATIENCE_S)


def fail(error: Exception) -> Callable[[BlockKey], Status | None]:
    """Return a call that raises."""

    def call(key: BlockKey) -> Status | None:
        raise error

    return call


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def key(number: int, group: int = 0) -> BlockKey:
    """Return one of many keys."""
    return BlockKey(sha256(str(number).encode()).digest(), group)


def block(number: int, group: int = 0) -> memoryview:
    """Return the buffer of a block whose used bytes tell its number; the rest is rubbish."""
    buffer = empty(group)
    buffer[:] = b"\xee" * buffer.nbytes
    used = USED[group]
    pattern = sha256(f"{number} {group}".encode()).digest() * (used // 32 + 1)
    buffer[:used] = pattern[:used]
    return buffer


def empty(group: int = 0) -> memoryview:
    """Return a buffer of a block."""
    return pages(-(-USED[group] // PAGE_BYTES))


def job(number: int, kind: Kind, *keys: BlockKey) -> Job:
    """Return a job of these records."""
    items = tuple(Item(each.group, NOWHERE, NOWHERE, each) for each in keys)
    return Job(number=number, kind=kind, items=items, tier="disk")


def ended(store: RecordStore, count: int = 1) -> list[JobResult]:
    """Wait for answers of a store, however long the machine takes."""
    results: list[JobResult] = []
    while len(results) < count:
        found = store.wait(PATIENCE_S)
        assert found, f"{len(results)} of {count} answers came"
        results += found
    assert len(results) == count
    return results


def run(store: RecordStore, asked: Job, *payloads: memoryview) -> tuple[Status, ...]:
    """Let a store do a job; return its statuses."""
    store.submit(asked, payloads)
    (result,) = ended(store)
    assert result.number == asked.number
    assert result.is_over
    return result.statuses
