"""What to move, as arrays: an address, a length and a device for every run of every block.

    row of `chunks`    address | length | device                       one run
    row of `strided`   address | length | device | stride | count      `count` runs, `stride` apart

    address = base + start of the buffer + block id * stride of the reference + offset of the run

Invariant: rows go group by group, block by block in the order of the ids given, and run by run in
the order of addresses (buffer by buffer). The null block never moves. Tables are made once per
plan and pool; a call is a few numpy operations per group, fastest if ids are arrays already. This
module needs numpy and moves nothing.
"""

from collections.abc import Iterable, Sequence, Sized
from typing import Final, Literal, TypeAlias, get_args

from kvbraid.errors import InvalidValueError, LayoutError, shortened
from kvbraid.extras import require
from kvbraid.layout.plan import NULL_BLOCK, ByteRun, MemoryPlan, PlannedGroup, Reference
from kvbraid.reading import OFFSET, check, check_each, one_of

require("torch", "kvbraid.layout.descriptors", "numpy")

import numpy as np  # noqa: E402 - the line before it names the extra if numpy is missing.
from numpy.typing import ArrayLike, NDArray  # noqa: E402

How: TypeAlias = Literal["exact", "whole"]
"""`exact` moves the bytes that layers use; `whole` a block as one range, slack included."""

Array: TypeAlias = NDArray[np.uint64]
"""Rows of unsigned 64-bit numbers, as NIXL's lists of descriptors take them."""

Progression: TypeAlias = tuple[int, int, int, int]
"""Offset and length of the first run, and stride (0 if it is the only one) and count of runs."""

_ADDRESS: Final = 0
_CHUNK_COLUMNS: Final = 3


class Descriptors:
    """The descriptors of one plan's blocks in one pool: its tables, made once.

    `bases` is the address of the allocation, or of each buffer where they are apart. Whoever
    holds a pool keeps it alive; descriptors are numbers and hold nothing.

    Raises:
        InvalidValueError: A plan without a number of blocks, bases that are no addresses or not
            as many as buffers, or a negative device.
        LayoutError: `whole` of a block whose bytes are not together, with its layer.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        *,
        bases: int | Sequence[int],
        how: How = "exact",
        device: int = 0,
    ) -> None:
        if plan.num_blocks is None:
            msg = "the plan has no number of blocks; plan with num_blocks or memory_bytes"
            raise InvalidValueError(msg)
        check("how", how, one_of(get_args(How)))
        check("device", device, OFFSET)
        self.num_blocks: Final = plan.num_blocks
        self._starts = _starts(plan, bases)
        self._sizes = [buffer.block_bytes * plan.num_blocks for buffer in plan.buffers]
        self._device = device
        runs = [_runs(plan, group, how) for group in plan.groups]
        self._chunks = [
            self._table((each, [(*run, 0, 1) for run in found]) for each, found in of_group)
            for of_group in runs
        ]
        self._strided = [
            self._table((each, progressions(found)) for each, found in of_group)
            for of_group in runs
        ]

    def chunks(self, block_ids: Sequence[ArrayLike]) -> Array:
        """Return one row per run: (address, length, device); `block_ids` has a row per group.

        Raises:
            InvalidValueError: The null block, an id that the pool does not have, or ids of more
                or fewer groups than the plan's.
        """
        return _filled(
            [(table[:, :_CHUNK_COLUMNS], steps) for table, steps in self._chunks],
            self._checked(block_ids),
        )

    def strided(self, block_ids: Sequence[ArrayLike]) -> Array:
        """Return one row per evenly spaced runs: (address, length, device, stride, count).

        Raises:
            InvalidValueError: As `chunks` does.
        """
        return _filled(self._strided, self._checked(block_ids))

    def owners(self, block_ids: Sequence[ArrayLike]) -> Array:
        """Return the group and the block id of each row of `chunks`, in two columns.

        Raises:
            InvalidValueError: As `chunks` does.
        """
        rows = [
            np.stack((np.full_like(ids, group), ids), axis=1).repeat(len(table), axis=0)
            for group, (ids, (table, _)) in enumerate(
                zip(self._checked(block_ids), self._chunks, strict=True)
            )
        ]
        return np.concatenate(rows)

    def all_blocks(self, group: int) -> Array:
        """Return one strided row per run of a group, over all blocks of the pool.

        A transfer list prepared from these rows has block b of run r at `r * num_blocks + b`. The
        null block stands in the list so that ids are indexes; it is not to be moved.

        Raises:
            InvalidValueError: A group that the plan does not have.
        """
        if group not in range(len(self._chunks)):
            msg = f"group = {shortened(group)}; the plan has groups 0 to {len(self._chunks) - 1}"
            raise InvalidValueError(msg)
        table, steps = self._chunks[group]
        rows = np.empty((len(table), 5), np.uint64)
        rows[:, :_CHUNK_COLUMNS] = table[:, :_CHUNK_COLUMNS]
        rows[:, 3] = steps
        rows[:, 4] = self.num_blocks
        return rows

    def regions(self) -> Array:
        """Return the memory to register, one row per buffer: (address, length, device)."""
        rows = [
            (start, size, self._device)
            for start, size in zip(self._starts, self._sizes, strict=True)
        ]
        return np.array(rows, np.uint64)

    def _table(
        self, found: Iterable[tuple[Reference, Iterable[Progression]]]
    ) -> tuple[Array, Array]:
        """Return the rows of a group's block 0, and what each address grows by per block id."""
        rows, steps = [], []
        for reference, of_block in found:
            start = self._starts[reference.buffer]
            for offset, length, stride, count in of_block:
                rows.append((start + offset, length, self._device, stride, count))
                steps.append(reference.block_stride)
        return np.array(rows, np.uint64).reshape(-1, 5), np.array(steps, np.uint64)

    def _checked(self, block_ids: Sequence[ArrayLike]) -> list[Array]:
        given = len(block_ids) if isinstance(block_ids, Sized) else "no"
        if given != len(self._chunks):
            raise InvalidValueError(
                f"block ids of {given} groups; the plan has {len(self._chunks)}: give a "
                "sequence per group, empty where nothing moves"
            )
        return [self._ids(group, ids) for group, ids in enumerate(block_ids)]

    def _ids(self, group: int, given: ArrayLike) -> Array:
        try:
            ids = np.asarray(given)
        except ValueError:  # Rows of several lengths.
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            msg = (
                f"block ids of group {group} = {shortened(given)}; expected a sequence of integers"
            )
            raise InvalidValueError(msg)
        if ids.size and (ids.min() <= NULL_BLOCK or ids.max() >= self.num_blocks):
            wrong = ids[(ids <= NULL_BLOCK) | (ids >= self.num_blocks)][0]
            what = "is the null block, which never moves" if wrong == NULL_BLOCK else "is not held"
            msg = f"block id {wrong} of group {group} {what}; ids are 1 to {self.num_blocks - 1}"
            raise InvalidValueError(msg)
        return ids.astype(np.uint64, copy=False)


def descriptors(
    plan: MemoryPlan,
    block_ids: Sequence[ArrayLike],
    *,
    bases: int | Sequence[int],
    how: How = "exact",
    device: int = 0,
) -> Array:
    """Return `Descriptors(...).chunks(block_ids)`, for whoever asks once.

    Raises:
        InvalidValueError: As `Descriptors` and its `chunks` do.
        LayoutError: As `Descriptors` does.
    """
    return Descriptors(plan, bases=bases, how=how, device=device).chunks(block_ids)


def progressions(runs: Iterable[ByteRun]) -> list[Progression]:
    """Join runs of one length that follow each other at one distance."""
    found: list[Progression] = []
    for offset, length in runs:
        if found:
            first, size, stride, count = found[-1]
            gap = offset - (first + stride * (count - 1))
            if size == length and (count == 1 or stride == gap):
                found[-1] = (first, size, gap, count + 1)
                continue
        found.append((offset, length, 0, 1))
    return found


def _starts(plan: MemoryPlan, bases: int | Sequence[int]) -> list[int]:
    """Return the address of each buffer."""
    given = list(bases) if isinstance(bases, Sequence) else [bases]
    check_each("base", given, OFFSET)
    if isinstance(bases, Sequence):
        if len(given) != len(plan.buffers):
            msg = f"{len(given)} bases for {len(plan.buffers)} buffers; give one, or one for each"
            raise InvalidValueError(msg)
        return given
    return [bases + (buffer.start or 0) for buffer in plan.buffers]


def _runs(
    plan: MemoryPlan, group: PlannedGroup, how: How
) -> list[tuple[Reference, tuple[ByteRun, ...]]]:
    if how == "exact":
        return [(each, each.exact()) for each in group.references]
    found: list[tuple[Reference, tuple[ByteRun, ...]]] = []
    for reference in group.references:
        whole = reference.whole()
        if whole is None:
            name, why = reference.chunks[0].name, plan.buffers[reference.buffer].why
            msg = f"{name}: a block is not one range, so it cannot move whole ({why}); use 'exact'"
            raise LayoutError(msg)
        found.append((reference, (whole,)))
    return found


def _filled(tables: Sequence[tuple[Array, Array]], ids: Sequence[Array]) -> Array:
    """Repeat each group's rows for each of its ids, and move their addresses."""
    num_rows = sum(len(mine) * len(table) for (table, _), mine in zip(tables, ids, strict=True))
    rows = np.empty((num_rows, tables[0][0].shape[1]), np.uint64)
    begin = 0
    for (table, steps), mine in zip(tables, ids, strict=True):
        end = begin + len(mine) * len(table)
        block = rows[begin:end].reshape(len(mine), *table.shape)
        block[:] = table
        block[:, :, _ADDRESS] += mine[:, None] * steps
        begin = end
    return rows
