"""Jobs that were given to the ranks, until the last rank has answered.

Invariant: a job is settled once, when every rank has answered it, and over once, when no rank
reads or writes for it any more; never over before it is settled. Answers come from other
processes: what answers no open job of a rank is counted, and a wrong number of statuses means that
nothing arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.offload.counts import OffloadCounts
from kvbraid.transfer.status import Status

_WORST_FIRST: Final = (
    Status.CORRUPT,
    Status.SHORT,
    Status.FOREIGN,
    Status.MISS,
    Status.IO_ERROR,
    Status.FULL,
    Status.TIMEOUT,
    Status.OK,
)


class JobOwner(Protocol):
    """Whoever has issued a job is told what becomes of it."""

    def answered(self, job: Job, rank: int, statuses: Sequence[Status], *, is_over: bool) -> None:
        """Learn what one rank says: once, or a second time when its last call has ended."""

    def settled(self, job: Job, statuses: Sequence[Status]) -> None:
        """Learn what became of each item over all ranks: the worst of their statuses."""

    def over(self, job: Job) -> None:
        """Learn that no rank reads or writes for the job any more."""


@dataclass(slots=True)
class _OpenJob:
    job: Job
    owner: JobOwner
    statuses: list[Status]
    unanswered: set[int]
    unfinished: set[int]


class JobTable:
    """The jobs of one manager that are not over."""

    def __init__(self, num_ranks: int, counts: OffloadCounts) -> None:
        self._ranks: Final = range(num_ranks)
        self._counts: Final = counts
        self._open: Final[dict[int, _OpenJob]] = {}
        self._num_issued = 0

    def issue(self, kind: Kind, items: Sequence[Item], owner: JobOwner, tier: str = "") -> Job:
        """Number a job and wait for its answers."""
        job = Job(number=self._num_issued, kind=kind, items=tuple(items), tier=tier)
        self._num_issued += 1
        ranks = set(self._ranks)
        statuses = [Status.OK] * len(job.items)
        self._open[job.number] = _OpenJob(job, owner, statuses, ranks, set(ranks))
        return job

    def finished(self, rank: int, results: Sequence[JobResult]) -> None:
        """Take what a rank says of its jobs, in any order."""
        for result in results:
            self._take(rank, result)

    def _take(self, rank: int, result: JobResult) -> None:
        known = self._open.get(result.number)
        is_second = known is not None and rank not in known.unanswered
        is_news = known is not None and rank in known.unfinished
        if known is None or not is_news or (is_second and not result.is_over):
            self._counts.num_unknown_results += 1
            return
        job, statuses = known.job, result.statuses
        if len(statuses) != len(job.items):
            self._counts.num_bad_results += 1
            statuses = (Status.IO_ERROR,) * len(job.items)
        self._counts.num_bytes[job.kind, job.tier] += result.num_bytes
        self._counts.seconds[job.kind, job.tier] += result.seconds
        known.unanswered.discard(rank)
        if result.is_over:
            known.unfinished.remove(rank)
        known.owner.answered(job, rank, statuses, is_over=result.is_over)
        if not is_second:
            if statuses.count(Status.OK) < len(statuses):
                pairs = zip(known.statuses, statuses, strict=True)
                known.statuses = [min(pair, key=_WORST_FIRST.index) for pair in pairs]
            if not known.unanswered:
                known.owner.settled(job, known.statuses)
        if not known.unfinished:
            del self._open[job.number]
            known.owner.over(job)

    def count_items(self, kind: Kind) -> int:
        """Return how many items of a kind are under way."""
        jobs = (known.job for known in self._open.values())
        return sum(len(job.items) for job in jobs if job.kind is kind)

    def __len__(self) -> int:
        """How many jobs are under way."""
        return len(self._open)

    def check_integrity(self) -> None:
        """Assert the invariant of this table."""
        for number, known in self._open.items():
            assert known.unfinished, f"job {number} is over"
            assert known.unanswered <= known.unfinished, f"job {number} is over before it settled"
