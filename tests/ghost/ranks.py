"""The ranks that carry out the jobs of an `OffloadManager`, ticks later, and what goes wrong.

Each rank has a `MemoryWorker` with its part of every block, as bytes: the part of a device block
is all of it. A job that hangs is answered, and writes afterwards.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.status import Status

from tests.ghost.device import TORN, Device
from tests.ghost.faults import DEATH, LOSS, STATUSES
from tests.ghost.landing import EngineRanks
from tests.reference.memory_worker import MemoryWorker


@dataclass(slots=True)
class _Run:
    """A job at one rank, and when it answers, and when it is over."""

    job: Job
    rank: int
    statuses: list[Status]
    answer: int
    end: int
    is_answered: bool = False


class _RankDevice(dict[int, bytes]):
    """The device as one rank's worker sees it."""

    def __init__(self, ranks: "Ranks") -> None:
        self._ranks = ranks

    def __getitem__(self, block: int) -> bytes:
        return array("q", self._ranks.device.cells[block]).tobytes()

    def __setitem__(self, block: int, content: bytes) -> None:
        self._ranks.land(block, content)


class Ranks(EngineRanks):
    """Ranks in memory."""

    def __init__(
        self, device: Device, random: Random, num_ranks: int, tiers: Sequence[str], share: float
    ) -> None:
        super().__init__(device, random, num_ranks, tiers, share)
        self.workers = [
            MemoryWorker(device=_RankDevice(self), records={tier: {} for tier in tiers})
            for _ in range(num_ranks)
        ]
        self._dead_until: dict[str, int] = {}
        self._runs: list[_Run] = []

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return bool(super().is_busy or self._runs)

    def _begin(self, job: Job) -> None:
        faulty = self.random.randrange(len(self.workers)) if self._is_faulty(job) else -1
        for rank in range(len(self.workers)):
            statuses = [Status.OK] * len(job.items)
            answer = end = self.tick + self.random.choice((0, 0, 1, 1, 3))
            if rank == faulty:
                status = self.random.choice(STATUSES[job.kind])
                self.faults[f"{job.kind} {status}"] += 1
                for index in range(len(job.items)):
                    if not index or self.random.random() < 0.5:
                        statuses[index] = status
                if status is Status.TIMEOUT:
                    end = answer + self.random.randint(1, 4)
            if self._dead_until.get(job.tier, -1) >= self.tick:
                statuses = [Status.IO_ERROR] * len(job.items)
            self._runs.append(_Run(job, rank, statuses, answer, end))

    def _is_faulty(self, job: Job) -> bool:
        return bool(job.items) and self.random.random() < self.share

    def advance(self) -> None:
        """Do what is due, and let tiers die now and then."""
        for run in self._runs:
            if run.answer <= self.tick and not run.is_answered:
                run.is_answered = True
                self._move(run)
                self._answer(run, is_over=run.end <= self.tick)
            elif run.end <= self.tick:
                self._answer(run, is_over=True)
            if run.end <= self.tick:
                self._spoil(run)
        self._runs = [run for run in self._runs if run.end > self.tick]
        for tier in self.tiers:
            if self.random.random() < self.share / 100:
                self._die(tier)

    def _die(self, tier: str) -> None:
        self.faults[DEATH] += 1
        self._dead_until[tier] = self.tick + self.random.randint(1, 6)
        for worker in self.workers:
            worker.records[tier].clear()

    def _answer(self, run: _Run, *, is_over: bool) -> None:
        result = JobResult(number=run.job.number, statuses=tuple(run.statuses), is_over=is_over)
        self._results.append((run.rank, result))

    def _move(self, run: _Run) -> None:
        """Do what goes well."""
        worker = self.workers[run.rank]
        for index, item in enumerate(run.job.items):
            if run.statuses[index] is Status.OK:
                run.statuses[index] = worker.move(run.job, item)
                self.faults[LOSS] += run.statuses[index] is Status.MISS

    def _spoil(self, run: _Run) -> None:
        """Leave garbage where something went wrong, at last."""
        worker, job = self.workers[run.rank], run.job
        for item, status in zip(job.items, run.statuses, strict=True):
            if status is Status.OK:
                continue
            if job.kind in {Kind.LOAD, Kind.COPY}:
                self.land(item.target, None)
            elif job.kind in {Kind.STORE, Kind.PROMOTE}:
                worker.host[item.target] = array("q", [TORN]).tobytes()
            elif job.kind is Kind.WRITE and item.key is not None:
                worker.records[job.tier].pop(item.key, None)

    def contents(self, tier: str, key: BlockKey, slot: BlockId) -> list[bytes | None]:
        """Return what each rank has of a block in a tier; None if a dead tier has lost it."""
        if tier not in self.tiers:
            return [worker.host[slot] for worker in self.workers]
        return [worker.records[tier].get(key) for worker in self.workers]
