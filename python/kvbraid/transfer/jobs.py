"""What the scheduler's side tells the workers, and what they answer: numbers and keys, no bytes.

    STORE     device block  ->  host slot
    LOAD      host slot     ->  device block
    COPY      device block  ->  device block        a position whose block the pool holds already
    WRITE     host slot     ->  record of a tier
    PROMOTE   record        ->  host slot           verified before anybody hears of it
    DROP      record        ->  nothing

Invariant: every job is answered by each rank, with one status per item in the order of the items,
whatever happens. Its blocks and slots belong to the job until an answer that `is_over`: there is
exactly one, and at most one before it, from a rank that has given up waiting.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from kvbraid.ids import BlockId
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.status import Status


class Kind(StrEnum):
    """What a job does; each moves a block from `Item.source` to `Item.target`."""

    STORE = "store"
    LOAD = "load"
    COPY = "copy"
    WRITE = "write"
    PROMOTE = "promote"
    DROP = "drop"


class Item(NamedTuple):
    """One block of a job.

    `source` and `target` are device blocks or host slots, as the job's kind says; 0 where the kind
    has none. `key` names the record of `WRITE`, `PROMOTE` and `DROP`, None for the others.
    """

    group: int
    source: BlockId
    target: BlockId
    key: BlockKey | None = None


_as_item: Final = partial(tuple.__new__, Item)  # A third of the time of a call.


def items_of(rows: Iterable[tuple[int, BlockId, BlockId, BlockKey | None]]) -> list[Item]:
    """Return the items of many blocks: a long prompt has thousands."""
    return [*map(_as_item, rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Blocks that move the same way.

    Attributes:
        number: The job's number; jobs are numbered in the order in which they are given.
        kind: The way.
        items: The blocks.
        tier: The tier's name, for the kinds that have records.
    """

    number: int
    kind: Kind
    items: tuple[Item, ...]
    tier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended at one rank.

    Attributes:
        number: The job's number.
        statuses: One per item. An item without `OK` leaves its target's bytes undefined.
        is_over: Nothing of the job is read or written any more. If not, a call still hangs, and
            an answer with the same statuses follows when it has ended.
        num_bytes: The bytes that were moved.
        seconds: How long it took, from its start to its end.
    """

    number: int
    statuses: tuple[Status, ...]
    is_over: bool = True
    num_bytes: int = 0
    seconds: float = 0.0
