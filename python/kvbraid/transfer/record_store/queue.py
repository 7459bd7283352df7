"""What waits for a thread: loads before drops before stores, and one task of a key at a time.

Invariant: the tasks of one key run one after the other, in the order in which they came. So a
record that is dropped after it was stored is gone, however many threads there are.
"""

from collections import deque
from typing import Final

from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.record_store.open_job import Stage, Task

ORDER: Final = (Kind.PROMOTE, Kind.DROP, Kind.WRITE)


class TaskQueue:
    """Tasks that wait, each kind with a limit of its own. It knows neither threads nor time."""

    def __init__(self, *, max_items: int, max_bytes: int) -> None:
        self._max_items: Final = max_items
        self._max_bytes: Final = max_bytes
        self._ready: Final[dict[Kind, deque[Task]]] = {kind: deque() for kind in ORDER}
        self._later: Final[dict[BlockKey, deque[Task]]] = {}
        """Of each key with a task that is ready or runs: those that come after it."""
        self._items: Final = dict.fromkeys(ORDER, 0)
        self._bytes: Final = dict.fromkeys(ORDER, 0)

    @property
    def num_items(self) -> int:
        """The tasks that wait."""
        return sum(self._items.values())

    @property
    def num_bytes(self) -> int:
        """The bytes of the tasks that wait."""
        return sum(self._bytes.values())

    def put(self, task: Task) -> bool:
        """Append a task; return False, and leave it, if its kind has no room for it."""
        kind = task.job.kind
        room = self._items[kind] < self._max_items
        if not room or self._bytes[kind] + task.payload.nbytes > self._max_bytes:
            return False
        self._account(task, 1)
        if task.key in self._later:
            self._later[task.key].append(task)
        else:
            self._later[task.key] = deque()
            self._ready[kind].append(task)
        return True

    def take(self) -> Task | None:
        """Take out the next task, or None; `release` its key when it has ended."""
        for kind in ORDER:
            ready = self._ready[kind]
            while ready:
                task = ready.popleft()
                if task.stage is Stage.QUEUED:
                    task.stage = Stage.RUNNING
                    self._account(task, -1)
                    return task
                self.release(task.key)
        return None

    def cancel(self, task: Task) -> None:
        """Let a task that waits never run."""
        task.stage = Stage.OVER
        self._account(task, -1)

    def release(self, key: BlockKey) -> None:
        """Let the next task of a key run."""
        later = self._later[key]
        while later:
            task = later.popleft()
            if task.stage is Stage.QUEUED:
                self._ready[task.job.kind].append(task)
                return
        del self._later[key]

    def _account(self, task: Task, sign: int) -> None:
        self._items[task.job.kind] += sign
        self._bytes[task.job.kind] += sign * task.payload.nbytes

    def check_integrity(self) -> None:
        """Assert that the counts are those of the tasks, and that each key has one task ahead."""
        ready = [task for tasks in self._ready.values() for task in tasks]
        later = [task for tasks in self._later.values() for task in tasks]
        waiting = [task for task in (*ready, *later) if task.stage is Stage.QUEUED]
        assert len({task.key for task in ready}) == len(ready)
        assert {task.key for task in ready} <= self._later.keys()
        for kind in ORDER:
            tasks = [task for task in waiting if task.job.kind is kind]
            assert self._items[kind] == len(tasks) <= self._max_items
            assert self._bytes[kind] == sum(t.payload.nbytes for t in tasks) <= self._max_bytes
