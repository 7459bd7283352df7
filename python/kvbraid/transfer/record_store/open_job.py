"""A job that is not answered yet, and the tasks that it is made of."""

from dataclasses import dataclass
from enum import Enum, auto

from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.status import Status


class Stage(Enum):
    """How far a task is."""

    QUEUED = auto()
    RUNNING = auto()
    OVER = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class OpenJob:
    """A job that is not answered yet, or whose calls still hang.

    Attributes:
        number: Its number.
        kind: What it does.
        started: When it came.
        deadline: When it is to be given up.
        tasks: One per block.
        num_open: Those that wait or run.
        num_bytes: What has been moved.
        statuses: One per block once it has been answered, and none before.
    """

    number: int
    kind: Kind
    started: float
    deadline: float = 0.0
    tasks: "tuple[Task, ...]" = ()
    num_open: int = 0
    num_bytes: int = 0
    statuses: tuple[Status, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Task:
    """One block of a job; its payload is empty if it is dropped."""

    job: OpenJob
    key: BlockKey
    payload: memoryview
    stage: Stage = Stage.QUEUED
    status: Status | None = None
