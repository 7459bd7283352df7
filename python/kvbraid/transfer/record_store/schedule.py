"""Which task runs next, when a job is given up, and how each is answered: no threads, no clock.

Invariant: every job is answered by its deadline, if somebody asks then. Its statuses are one per
block; they do not change once they have been answered. With too many calls that hang, the tier is
off: what waits and what comes is answered at once.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.recovery.decision.policy import Cooldowns
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.record_store.counts import TierCounts
from kvbraid.transfer.record_store.open_job import OpenJob, Stage, Task
from kvbraid.transfer.record_store.options import StoreOptions
from kvbraid.transfer.record_store.queue import ORDER, TaskQueue
from kvbraid.transfer.status import Status

_BAD: Final = frozenset({Status.SHORT, Status.CORRUPT})
_TIER: Final = "tier"
"""Its name in cooldowns, which have no other."""


class Schedule:
    """The jobs of one tier. Times are seconds of one clock, which never goes back."""

    def __init__(self, options: StoreOptions) -> None:
        self._options: Final = options
        self._deadline_s: Final = dict.fromkeys(ORDER, options.store_deadline_s) | {
            Kind.PROMOTE: options.load_deadline_s
        }
        self._queue: Final = TaskQueue(
            max_items=options.max_queued_items, max_bytes=options.max_queued_bytes
        )
        self._jobs: Final[dict[int, OpenJob]] = {}
        self._deadlines: Final[list[tuple[float, int]]] = []
        self._results: Final[list[JobResult]] = []
        self._hung: Final[set[Task]] = set()
        self._full: Final = Cooldowns(failures=1, duration=options.pause_s)
        self._failing: Final = Cooldowns(
            failures=options.errors_in_a_row, duration=options.pause_s
        )
        self._is_closed = False
        self._is_refresh_due = False
        self._refresh_deadline: float | None = None
        self._is_refresh_hung = False
        self._blocks: Final[Counter[tuple[Kind, Status]]] = Counter()
        self._reasons: Final[Counter[str]] = Counter()
        self._bytes: Final = dict.fromkeys(ORDER, 0)
        self._seconds: Final = dict.fromkeys(ORDER, 0.0)

    def submit(self, job: Job, tasks: Iterable[tuple[BlockKey, memoryview]], now: float) -> None:
        """Take a job: a key and a buffer for each of its blocks.

        Raises:
            InvalidValueError: A job of this number is not over.
        """
        if job.number in self._jobs:
            raise InvalidValueError(f"job {job.number} is not over; give each job its own number")
        opened = OpenJob(number=job.number, kind=job.kind, started=now)
        opened.tasks = tuple(Task(job=opened, key=key, payload=payload) for key, payload in tasks)
        opened.num_open = len(opened.tasks)
        self._jobs[job.number] = opened
        self._set_deadline(opened, now)
        if not opened.tasks:
            self._answer(opened, now)
        for task in opened.tasks:
            self._put(task, now)

    def take(self, now: float) -> Task | None:
        """Take out the task that runs next; `finish` it."""
        while (task := self._queue.take()) is not None:
            refusal = self._pause(now) if task.job.kind is Kind.WRITE else None
            if refusal is None:
                return task
            self._refuse(task, refusal, "pause", now)
            self._queue.release(task.key)
        return None

    def finish(self, task: Task, status: Status, seconds: float, now: float) -> None:
        """Note how the call of a task ended."""
        kind = task.job.kind
        self._seconds[kind] += seconds
        self._reasons["bad"] += status in _BAD
        self._reasons["foreign"] += status is Status.FOREIGN
        self._reasons["late"] += task in self._hung
        self._hung.discard(task)
        if kind is Kind.WRITE:
            self._note_store(status, now)
        if status is Status.OK:
            self._bytes[kind] += task.payload.nbytes
            task.job.num_bytes += task.payload.nbytes
        self._end(task, status, now)
        self._queue.release(task.key)

    def ask_refresh(self) -> None:
        """Let a thread look for changes of the tier."""
        self._is_refresh_due = True

    def takes_refresh(self, now: float) -> bool:
        """Whether the caller is to look for changes now: one thread at a time does."""
        is_mine = self._is_refresh_due and self._refresh_deadline is None
        if is_mine:
            self._is_refresh_due = False
            self._refresh_deadline = now + self._options.store_deadline_s
        return is_mine

    def finish_refresh(self) -> None:
        """Note that the thread has looked."""
        self._refresh_deadline = None
        self._is_refresh_hung = False

    def expire(self, now: float) -> None:
        """Give up jobs past their deadlines; with too many calls that hang, all that waits."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heappop(self._deadlines)
            job = self._jobs.get(number)
            if job is not None and job.deadline <= now:
                self._give_up(job, now)
        refresh = self._refresh_deadline
        self._is_refresh_hung = refresh is not None and refresh <= now
        if self.is_off:
            for job in tuple(self._jobs.values()):
                for task in _waiting(job):
                    self._queue.cancel(task)
                    self._refuse(task, Status.TIMEOUT, "off", now)

    def close(self, now: float) -> None:
        """Give up all that waits, drops as well, and refuse what comes."""
        self._is_closed = True
        for job in tuple(self._jobs.values()):
            self._give_up(job, now)

    def take_results(self) -> list[JobResult]:
        """Return the answers since the last call."""
        results = list(self._results)
        self._results.clear()
        return results

    @property
    def has_results(self) -> bool:
        """Whether there are answers to take."""
        return bool(self._results)

    @property
    def next_deadline(self) -> float | None:
        """When a job may have to be given up next."""
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def num_hung(self) -> int:
        """The calls that run past their deadlines."""
        return len(self._hung) + self._is_refresh_hung

    @property
    def is_off(self) -> bool:
        """Whether too many calls hang."""
        return self.num_hung >= self._options.max_hung_threads

    def counts(self, now: float, *, errors: int, last_error: str) -> TierCounts:
        """Return what became of all blocks so far, with the errors that the caller has seen."""
        return TierCounts(
            blocks={
                kind: {status: self._blocks[kind, status] for status in Status} for kind in ORDER
            },
            bytes=dict(self._bytes),
            seconds=dict(self._seconds),
            refused_by_queue=self._reasons["queue"],
            refused_by_pause=self._reasons["pause"],
            refused_while_off=self._reasons["off"],
            late=self._reasons["late"],
            num_bad=self._reasons["bad"],
            num_foreign=self._reasons["foreign"],
            errors=errors,
            last_error=last_error,
            queued_blocks=self._queue.num_items,
            queued_bytes=self._queue.num_bytes,
            hung_threads=self.num_hung,
            is_off=self.is_off,
            is_paused=self._pause(now) is not None,
        )

    def _put(self, task: Task, now: float) -> None:
        """Queue a task, or answer it at once. Drops wait even for a tier that is off."""
        kind = task.job.kind
        pause = self._pause(now) if kind is Kind.WRITE else None
        if self._is_closed or (self.is_off and kind is not Kind.DROP):
            self._refuse(task, Status.TIMEOUT, "off", now)
        elif pause is not None:
            self._refuse(task, pause, "pause", now)
        elif not self._queue.put(task):
            self._refuse(task, Status.FULL, "queue", now)

    def _refuse(self, task: Task, status: Status, reason: str, now: float) -> None:
        self._reasons[reason] += 1
        self._end(task, status, now)

    def _end(self, task: Task, status: Status, now: float) -> None:
        """Note how a task ended; the last one ends its job."""
        job = task.job
        task.stage = Stage.OVER
        job.num_open -= 1
        if not job.statuses:
            task.status = status
        if job.num_open == 0:
            self._answer(job, now)

    def _give_up(self, job: OpenJob, now: float) -> None:
        """Answer a job at its deadline. What waits never runs, but for drops: they still may."""
        self._hung.update(task for task in job.tasks if task.stage is Stage.RUNNING)
        for task in _waiting(job, and_drops=self._is_closed):
            self._queue.cancel(task)
            job.num_open -= 1
        if job.num_open == 0 or not job.statuses:
            self._answer(job, now)
        if job.num_open:
            self._set_deadline(job, now)

    def _answer(self, job: OpenJob, now: float) -> None:
        if not job.statuses:
            job.statuses = tuple(task.status or Status.TIMEOUT for task in job.tasks)
            self._blocks.update((job.kind, status) for status in job.statuses)
        if job.num_open == 0:
            del self._jobs[job.number]
            job.tasks = ()  # They name their job: a circle, which would keep their buffers.
        self._results.append(
            JobResult(
                number=job.number,
                statuses=job.statuses,
                is_over=job.num_open == 0,
                num_bytes=job.num_bytes,
                seconds=now - job.started,
            )
        )

    def _set_deadline(self, job: OpenJob, now: float) -> None:
        job.deadline = now + self._deadline_s[job.kind]
        heappush(self._deadlines, (job.deadline, job.number))

    def _pause(self, now: float) -> Status | None:
        """Return how stores are answered without a try, or None: they are tried."""
        if self._full.is_cooling(_TIER, now):
            return Status.FULL
        return Status.IO_ERROR if self._failing.is_cooling(_TIER, now) else None

    def _note_store(self, status: Status, now: float) -> None:
        if status is Status.FULL:
            self._full.failed(_TIER, now)
        elif status is Status.IO_ERROR:
            self._failing.failed(_TIER, now)
        else:
            self._failing.succeeded(_TIER)

    def check_integrity(self) -> None:
        """Assert that jobs have as many open tasks as they say, and that these wait or run."""
        self._queue.check_integrity()
        open_tasks = []
        for number, job in self._jobs.items():
            tasks = [task for task in job.tasks if task.stage is not Stage.OVER]
            assert job.number == number
            assert job.num_open == len(tasks) > 0
            assert (job.deadline, number) in self._deadlines
            open_tasks += tasks
        running = {task for task in open_tasks if task.stage is Stage.RUNNING}
        assert len(open_tasks) - len(running) == self._queue.num_items
        assert self._hung <= running
        assert len(running) <= self._options.num_threads


def _waiting(job: OpenJob, *, and_drops: bool = False) -> list[Task]:
    if job.kind is Kind.DROP and not and_drops:
        return []
    return [task for task in job.tasks if task.stage is Stage.QUEUED]
