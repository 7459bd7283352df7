"""The only caller of a tier: threads that store, load and drop its records, and verify them.

Invariant: `OK` of a load says that the bytes are those that were stored under the key in this
namespace. A call that hangs costs its thread, and its buffers stay the job's until it has ended.
No call of this class waits for the tier but the constructor, `keys`, `close`, and `wait`, which
may be given up.
"""

import time
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread
from typing import Final

from kvbraid.errors import InvalidValueError, one_line
from kvbraid.reading import POSITIVE, check_each
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.record_store.counts import TierCounts
from kvbraid.transfer.record_store.open_job import Task
from kvbraid.transfer.record_store.options import StoreOptions
from kvbraid.transfer.record_store.queue import ORDER
from kvbraid.transfer.record_store.schedule import Schedule
from kvbraid.transfer.records import padded, pages, verify, write_header
from kvbraid.transfer.status import Status
from kvbraid.transfer.tier import SharedTier, TierBackend, TierChanges

_EMPTY: Final = memoryview(b"")
_LEAVING_S: Final = 5.0
"""How long threads are given that have nothing to do any more."""
_ANSWERS: Final = {
    Kind.WRITE: frozenset({Status.OK, Status.FULL, Status.IO_ERROR}),
    Kind.PROMOTE: frozenset({Status.OK, Status.MISS, Status.SHORT, Status.IO_ERROR}),
    Kind.DROP: frozenset({Status.OK, Status.IO_ERROR}),
}


class RecordStore:
    """The records of one tier and namespace. All calls are safe from any thread.

    The constructor opens the tier and starts its threads.

    Args:
        name: The tier's name.
        tier: What keeps the records; nobody else may call it from now on.
        namespace: Whose records they are.
        used_bytes: Bytes of a block of each group. A buffer has these, rounded up to whole pages.
        options: Limits and deadlines.
        clock: Seconds that never go back.

    Raises:
        InvalidValueError: A value is out of its range, or the tier cannot be used.
    """

    def __init__(
        self,
        name: str,
        tier: TierBackend,
        *,
        namespace: Namespace,
        used_bytes: Sequence[int],
        options: StoreOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_each("size of a block", used_bytes, POSITIVE)
        options = options or StoreOptions()
        self.name: Final = name
        self._tier: Final = tier
        self._digest: Final = bytes.fromhex(namespace.digest)
        self._used: Final = tuple(used_bytes)
        self._clock: Final = clock
        self._lock: Final = Lock()
        self._work: Final = Condition(self._lock)
        self._answered: Final = Condition(self._lock)
        self._schedule: Final = Schedule(options)
        self._is_closing = False
        self._errors = 0
        self._last_error = ""
        self._changes: Final[dict[BlockKey, bool]] = {}
        tier.open(namespace)
        self._num_working = self._num_alive = options.num_threads
        self._threads: Final = tuple(
            Thread(target=self._run, name=f"kvbraid-{name}-{number}", daemon=True)
            for number in range(options.num_threads)
        )
        for thread in self._threads:
            thread.start()

    def keys(self) -> list[BlockKey]:
        """Return the keys of the records that are there now; waits for the tier."""
        return list(self._tier.keys())

    def submit(self, job: Job, payloads: Sequence[memoryview] = ()) -> None:
        """Take a job; `poll` returns its answer. Blocks that do not fit are answered `FULL`.

        Args:
            job: A `WRITE`, `PROMOTE` or `DROP`, whose items have keys.
            payloads: A buffer per item, none for `DROP`: writable, contiguous, at a page, of the
                group's bytes rounded up to whole pages. They belong to the job until an answer
                that `is_over`. A `WRITE` sets their padding to zeros.

        Raises:
            InvalidValueError: The job or a buffer is not such.
        """
        tasks = self._check(job, payloads)
        with self._lock:
            now = self._clock()
            self._schedule.expire(now)
            self._schedule.submit(job, tasks, now)
            self._work.notify(len(tasks))

    def poll(self) -> list[JobResult]:
        """Return the answers since the last call, and those of jobs past their deadlines."""
        with self._lock:
            self._schedule.expire(self._clock())
            return self._schedule.take_results()

    def wait(self, timeout_s: float) -> list[JobResult]:
        """As `poll`, but wait once for an answer or a deadline, at most that many seconds."""
        if results := self.poll():
            return results
        with self._lock:
            if not self._schedule.has_results:
                deadline = self._schedule.next_deadline
                rest = timeout_s if deadline is None else deadline - self._clock()
                self._answered.wait(max(0.0, min(timeout_s, rest)))
        return self.poll()

    def refresh(self) -> None:
        """Let a thread look for what others stored or evicted; call it every few seconds."""
        with self._lock:
            if isinstance(self._tier, SharedTier):
                self._schedule.ask_refresh()
                self._work.notify()

    def take_changes(self) -> TierChanges:
        """Return what others stored and what was evicted, as the last `refresh` found it.

        A key may be among them that a job of the caller's stores, or drops, at the same time.
        """
        with self._lock:
            changes = TierChanges.of(self._changes)
            self._changes.clear()
            return changes

    def counts(self) -> TierCounts:
        """Return what became of all blocks so far."""
        with self._lock:
            now = self._clock()
            self._schedule.expire(now)
            return self._schedule.counts(now, errors=self._errors, last_error=self._last_error)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Finish what waits, at most that many seconds; answer the rest `TIMEOUT`.

        `poll` returns the last answers afterwards. A thread whose call hangs ends with its call,
        and the last one closes the tier.

        Returns:
            Whether all threads have ended, and the tier is closed.
        """
        with self._lock:
            self._is_closing = True
            self._work.notify_all()
            self._answered.wait_for(self._is_quiet, timeout_s)
            self._schedule.close(self._clock())
            self._answered.wait_for(self._is_quiet, _LEAVING_S)
            is_closed = self._num_alive == 0
        for thread in self._threads if is_closed else ():
            thread.join()
        return is_closed

    def _is_quiet(self) -> bool:
        """Whether no thread is left but those whose calls hang."""
        return self._num_alive <= self._schedule.num_hung

    def check_integrity(self) -> None:
        """Assert that all tasks wait or run, and are counted."""
        with self._lock:
            self._schedule.check_integrity()

    # What a job is made of.

    def _check(
        self, job: Job, payloads: Sequence[memoryview]
    ) -> list[tuple[BlockKey, memoryview]]:
        """Return the key and the buffer of each item."""
        if job.kind not in ORDER:
            raise InvalidValueError(f"job {job.number} is a {job.kind}; a tier has no such jobs")
        expected = 0 if job.kind is Kind.DROP else len(job.items)
        if len(payloads) != expected:
            msg = f"job {job.number} has {len(payloads)} buffers; expected {expected}"
            raise InvalidValueError(msg)
        buffers = payloads or [_EMPTY] * len(job.items)
        return [
            (self._check_item(job, item, buffer), buffer)
            for item, buffer in zip(job.items, buffers, strict=True)
        ]

    def _check_item(self, job: Job, item: Item, buffer: memoryview) -> BlockKey:
        if item.key is None or not 0 <= item.key.group < len(self._used):
            msg = f"job {job.number} names {item.key}; expected a key of {len(self._used)} groups"
            raise InvalidValueError(msg)
        size = padded(self._used[item.key.group])
        fits = buffer.nbytes == size and buffer.c_contiguous and not buffer.readonly
        if job.kind is not Kind.DROP and not fits:
            msg = (
                f"a buffer of job {job.number} has {buffer.nbytes} bytes; expected {size}, as a "
                f"block of group {item.key.group} has in whole pages, writable and contiguous"
            )
            raise InvalidValueError(msg)
        return item.key

    # On the threads.

    def _run(self) -> None:
        page = pages()
        while (task := self._next()) is not None:
            started = self._clock()
            status = self._perform(task, page)
            with self._lock:
                now = self._clock()
                self._schedule.finish(task, status, now - started, now)
                self._work.notify()
                self._tell()
        self._leave()

    def _next(self) -> Task | None:
        """Wait for a task, and look for changes meanwhile; None: there will be no more."""
        while True:
            with self._lock:
                while not self._schedule.takes_refresh(self._clock()):
                    task = self._schedule.take(self._clock())
                    if task is not None or self._is_closing:
                        return task
                    self._tell()  # Some may have been refused.
                    self._work.wait()
            self._attempt(Kind.DROP, self._look_for_changes)
            with self._lock:
                self._schedule.finish_refresh()

    def _tell(self) -> None:
        if self._schedule.has_results:
            self._answered.notify_all()

    def _perform(self, task: Task, page: memoryview) -> Status:
        """Make the call of a task, and verify what it brought."""
        key, payload, kind = task.key, task.payload, task.job.kind
        if kind is Kind.DROP:
            return self._attempt(kind, self._drop, key)
        used = self._used[key.group]
        if kind is Kind.WRITE:
            payload[used:] = bytes(payload.nbytes - used)
            write_header(page, key, self._digest, payload[:used])
            return self._attempt(kind, self._tier.store, key, page, payload)
        status = self._attempt(kind, self._tier.load, key, page, payload)
        if status is Status.OK:
            status = verify(page, key, self._digest, payload[:used])
        if status in {Status.SHORT, Status.CORRUPT}:
            self._attempt(Kind.DROP, self._drop, key)
        return status

    def _drop(self, key: BlockKey) -> Status:
        self._tier.drop(key)
        return Status.OK

    def _attempt(self, kind: Kind, call: Callable[..., object], *arguments: object) -> Status:
        """Call the tier; an exception, or what is no answer of such a call, is `IO_ERROR`."""
        try:
            answer = call(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a tier does, its thread lives on.
            problem = f"{type(error).__name__}: {error}"
        else:
            if isinstance(answer, Status) and answer in _ANSWERS[kind]:
                return answer
            problem = f"the answer {answer!r}"
        with self._lock:
            self._errors += 1
            name = getattr(call, "__name__", kind).strip("_")
            self._last_error = one_line(f"{name}: {problem}")
        return Status.IO_ERROR

    def _look_for_changes(self) -> Status:
        """Ask a tier that others use what has changed."""
        assert isinstance(self._tier, SharedTier)
        found = self._tier.refresh()
        with self._lock:
            self._changes.update(dict.fromkeys(found.removed, False))
            self._changes.update(dict.fromkeys(found.added, True))
        return Status.OK

    def _leave(self) -> None:
        """End a thread; the last one closes the tier."""
        with self._lock:
            self._num_working -= 1
            is_last = self._num_working == 0
        if is_last:
            self._attempt(Kind.DROP, self._close_tier)
        with self._lock:
            self._num_alive -= 1
            self._answered.notify_all()

    def _close_tier(self) -> Status:
        self._tier.close()
        return Status.OK
