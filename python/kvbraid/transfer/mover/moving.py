"""Blocks of one group from one place to another: ids and slots in, bytes moved.

    block ids  -> Descriptors -> addresses on the device  |
    slots      -> HostTier    -> addresses on the host    | -> rows, joined -> a `CopyEngine`

Invariant: exactly the bytes that `Reference.exact()` names move, and on the host they follow each
other in the order of `Descriptors.chunks`. Blocks are taken in ascending order of their ids on the
device, whatever order they are given in, so that neighbours are found and joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from kvbraid.layout.descriptors import Array, Descriptors
from kvbraid.layout.plan import MemoryPlan
from kvbraid.transfer.host import HostTier
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.rows import copy_rows
from kvbraid.transfer.mover.runs import Copies, Regions, joined

MOVES: Final = (Kind.STORE, Kind.LOAD, Kind.COPY)
"""The kinds of jobs that a mover carries out; the others have records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Blocks of one group that move the same way.

    Attributes:
        kind: One of `MOVES`.
        group: The group.
        blocks: Ids of blocks on the device, ascending: where `STORE` and `COPY` read, and `LOAD`
            writes.
        others: The slot of each of them, or the block that `COPY` writes.
        slots: Where each slot begins; empty for `COPY`.
        copies: The same as addresses and lengths.
        read: Where all sources are.
        written: Where all targets are.
    """

    kind: Kind
    group: int
    blocks: Array
    others: Array
    slots: Array
    copies: Copies
    read: Regions
    written: Regions


class Pending(Protocol):
    """Copies that were begun."""

    def is_over(self) -> bool:
        """Return whether they have ended. Any exception says that they ended badly."""


class CopyEngine(Protocol):
    """What carries out moves in one kind of memory."""

    @property
    def incidents(self) -> Mapping[str, int]:
        """What made moves slower than they could be, so far, by what happened."""

    def start(self, move: Move) -> Pending:
        """Begin to copy. After an exception nothing of this move is read or written any more."""

    def close(self) -> None:
        """Wait for all that was begun."""


class Done:
    """Copies that ended before they were asked about."""

    def is_over(self) -> bool:
        """Return True."""
        return True


class HostMemoryEngine:
    """Moves where the pool is memory of this process: synchronous copies of rows."""

    incidents: Mapping[str, int] = MappingProxyType({})

    def start(self, move: Move) -> Pending:
        """Copy all rows, and return when that is done."""
        copy_rows(move.copies, move.read, move.written)
        return Done()

    def close(self) -> None:
        """Nothing is left to wait for."""


class Mover:
    """Moves blocks between a pool and the slots of a host tier, and inside the pool.

    `bases` is the address of the pool's allocation, or of each buffer, as `Descriptors` takes it.
    Whoever owns the pool keeps it alive until `close`.

    Raises:
        InvalidValueError: As `Descriptors` does.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        *,
        bases: int | Sequence[int],
        host: HostTier,
        engine: CopyEngine | None = None,
    ) -> None:
        self.host: Final = host
        self.num_groups: Final = len(plan.groups)
        self._descriptors = Descriptors(plan, bases=bases)
        self.num_blocks: Final = self._descriptors.num_blocks
        self._engine = engine or HostMemoryEngine()
        self._pool = Regions(_ranges(self._descriptors.regions()))
        self._arena = Regions(())
        lengths = [self._rows(group, np.ones(1, np.uint64))[1] for group in range(self.num_groups)]
        self._offsets = [np.cumsum(each, dtype=np.uint64) - each for each in lengths]

    def start(self, kind: Kind, group: int, sources: Array, targets: Array) -> Pending:
        """Begin to move blocks of the pool or slots, as the kind says.

        No target may be among the sources or come twice.

        Raises:
            InvalidValueError: A block that the pool does not have, or a slot that is not ready.
        """
        is_load = kind is Kind.LOAD
        blocks, others = (targets, sources) if is_load else (sources, targets)
        order = np.argsort(blocks)
        blocks, others = blocks[order], others[order]
        here, lengths = self._rows(group, blocks)
        slots, there, elsewhere = self._other_side(kind, group, others)
        copies = Copies(there, here, lengths) if is_load else Copies(here, there, lengths)
        read, written = (elsewhere, self._pool) if is_load else (self._pool, elsewhere)
        move = Move(
            kind=kind,
            group=group,
            blocks=blocks,
            others=others,
            slots=slots,
            copies=joined(copies, read, written),
            read=read,
            written=written,
        )
        return self._engine.start(move)

    @property
    def incidents(self) -> Mapping[str, int]:
        """What made moves slower than they could be: `CopyEngine.incidents`."""
        return self._engine.incidents

    def close(self) -> None:
        """Wait for all copies that were begun."""
        self._engine.close()

    def _rows(self, group: int, blocks: Array) -> tuple[Array, Array]:
        """Return address and length of every run of a group's blocks."""
        ids: list[Array] = [blocks[:0]] * self.num_groups
        ids[group] = blocks
        rows = self._descriptors.chunks(ids)
        return rows[:, 0], rows[:, 1]

    def _other_side(self, kind: Kind, group: int, others: Array) -> tuple[Array, Array, Regions]:
        """Return where slots begin, the address of every run there, and the memory it is in."""
        if kind is Kind.COPY:
            return others[:0], self._rows(group, others)[0], self._pool
        if len(self._arena.ranges) <= self.host.num_pieces:  # The first range is empty.
            self._arena = Regions(self.host.regions())
        slots = self.host.addresses(others)
        return slots, (slots[:, None] + self._offsets[group]).reshape(-1), self._arena


def _ranges(regions: Array) -> list[tuple[int, int]]:
    return [(address, length) for address, length, _ in regions.tolist()]
