"""A worker over a small pool, and fakes of what it hands jobs to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from kvbraid.ids import BlockId
from kvbraid.transfer.host import HostTier
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.mover import CopyEngine, Done, HostMemoryEngine, Move, Pending
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

from tests.unit.transfer.pools import Pool, arena, hybrid_plan, mover_of


@dataclass(slots=True)
class FakeRecords:
    """Records in a dictionary. A test says what is answered instead, or what raises."""

    records: dict[BlockKey, bytes] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    answers: list[JobResult] = field(default_factory=list)
    refuses: bool = False
    fails_polls: bool = False
    is_closed: bool = False

    def submit(self, job: Job, payloads: Sequence[memoryview]) -> None:
        if self.refuses:
            raise RuntimeError("no more jobs")
        self.jobs.append(job)
        statuses = []
        for place, item in enumerate(job.items):
            assert item.key is not None
            statuses.append(Status.OK)
            if job.kind is Kind.WRITE:
                self.records[item.key] = bytes(payloads[place])
            elif job.kind is Kind.DROP:
                self.records.pop(item.key, None)
            elif item.key in self.records:
                payloads[place][:] = self.records[item.key]
            else:
                statuses[-1] = Status.MISS
        self.answers.append(JobResult(number=job.number, statuses=tuple(statuses)))

    def poll(self) -> list[JobResult]:
        if self.fails_polls:
            raise OSError("the tier is gone")
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        self.is_closed = True


class LateEngine(HostMemoryEngine):
    """Copies that end, or fail, when a test says so; a group may be refused at the start."""

    def __init__(self) -> None:
        self.is_over = False
        self.refused_group = -1
        self.failing_group = -1

    def start(self, move: Move) -> Pending:
        if move.group == self.refused_group:
            raise RuntimeError("the driver refuses")
        super().start(move)
        return _Late(self, move.group)


@dataclass(slots=True)
class _Late(Done):
    engine: LateEngine
    group: int

    def is_over(self) -> bool:
        if self.engine.is_over and self.group == self.engine.failing_group:
            raise RuntimeError("an unspecified launch failure")
        return self.engine.is_over


@dataclass(slots=True)
class Rank:
    """One rank: its pool, its worker, its one tier."""

    pool: Pool
    host: HostTier
    worker: Worker
    records: FakeRecords

    def ended(self, job: Job) -> JobResult:
        """Run a job to its end."""
        self.worker.submit([job])
        [result] = self.worker.poll()
        assert result.number == job.number
        assert result.is_over
        assert len(result.statuses) == len(job.items)
        return result


@contextmanager
def rank(engine: CopyEngine | None = None) -> Iterator[Rank]:
    pool = Pool.of(hybrid_plan())
    host = arena(pool.plan)
    records = FakeRecords()
    worker = Worker(mover_of(pool, host, engine), {"disk": records})
    try:
        yield Rank(pool, host, worker, records)
    finally:
        worker.close()
        assert records.is_closed
        pool.check_margins()


def key(name: str, group: int = 0) -> BlockKey:
    return BlockKey(name.encode(), group)


def item(group: int, source: object, target: object, of: BlockKey | None = None) -> Item:
    """Return an item, of whatever it is made of."""
    return Item(group, cast("BlockId", source), cast("BlockId", target), of)


def job(kind: Kind, *items: Item, number: int = 1, tier: str = "disk") -> Job:
    return Job(number=number, kind=kind, items=items, tier=tier)
