"""An obvious worker: device, host memory and records map to bytes, and jobs end at once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.status import Status


@dataclass
class MemoryWorker:
    """The bytes of one rank: of device blocks, host slots, and records by tier."""

    device: dict[int, bytes] = field(default_factory=dict)
    host: dict[int, bytes] = field(default_factory=dict)
    records: dict[str, dict[BlockKey, bytes]] = field(default_factory=dict)

    def run(self, job: Job) -> JobResult:
        """Carry a job out."""
        statuses = tuple(self.move(job, item) for item in job.items)
        return JobResult(number=job.number, statuses=statuses)

    def move(self, job: Job, item: Item) -> Status:
        """Move one block."""
        return _MOVES[job.kind](self, job.tier, item)

    def _store(self, _: str, item: Item) -> Status:
        self.host[item.target] = self.device[item.source]
        return Status.OK

    def _load(self, _: str, item: Item) -> Status:
        self.device[item.target] = self.host[item.source]
        return Status.OK

    def _copy(self, _: str, item: Item) -> Status:
        self.device[item.target] = self.device[item.source]
        return Status.OK

    def _write(self, tier: str, item: Item) -> Status:
        assert item.key is not None
        self.records[tier][item.key] = self.host[item.source]
        return Status.OK

    def _promote(self, tier: str, item: Item) -> Status:
        assert item.key is not None
        if item.key not in self.records[tier]:
            return Status.MISS
        self.host[item.target] = self.records[tier][item.key]
        return Status.OK

    def _drop(self, tier: str, item: Item) -> Status:
        assert item.key is not None
        self.records[tier].pop(item.key, None)
        return Status.OK


_MOVES: Final[dict[Kind, Callable[[MemoryWorker, str, Item], Status]]] = {
    Kind.STORE: MemoryWorker._store,
    Kind.LOAD: MemoryWorker._load,
    Kind.COPY: MemoryWorker._copy,
    Kind.WRITE: MemoryWorker._write,
    Kind.PROMOTE: MemoryWorker._promote,
    Kind.DROP: MemoryWorker._drop,
}
