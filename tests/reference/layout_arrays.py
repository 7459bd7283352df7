"""A plan's memory as numpy bytes: its views, and whose every byte is.

Colours are written through the views, one per view and block, and read back byte by byte where the
references say that the block lies. What the references miss, and what they hold that is not the
view's, is counted. Elements are unsigned numbers of the view's size; `np.ndarray` refuses a view
that leaves its buffer. Tests of tensors bring the same arrays, over memory of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from kvbraid.layout import MemoryPlan, PlannedGroup, Reference, View
from kvbraid.models.shapes import ELEMENT_BYTES
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Elements = NDArray[np.unsignedinteger]
Owners = NDArray[np.integer]

ELEMENTS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
"""The number that stands for an element, by size in bytes."""
REPEAT = {1: 0x01, 2: 0x0101, 4: 0x01010101}
DIGITS = 255
"""Colours that a byte can have; 0 is no colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Bytes that views own, those in no chunk, and bytes of chunks that are another's."""

    owned: int
    missed: int
    foreign: int


def allocate(plan: MemoryPlan, fill: int | None = 0) -> list[Bytes]:
    """Return each buffer's bytes, all of one allocation; `fill` None: arbitrary bytes."""
    memory = np.full(plan.size_bytes, fill or 0, dtype=np.uint8)
    if fill is None:
        memory = np.random.default_rng(plan.size_bytes).integers(
            0, 256, size=plan.size_bytes, dtype=np.uint8
        )
    assert plan.num_blocks is not None
    found = []
    for buffer in plan.buffers:
        assert buffer.start is not None
        found.append(memory[buffer.start : buffer.start + buffer.block_bytes * plan.num_blocks])
    return found


def array_of(view: View, buffers: Sequence[Bytes]) -> Elements:
    """Return a view over its buffer, as `as_strided` would; one that leaves it is refused."""
    size = ELEMENT_BYTES[view.dtype]
    assert None not in view.shape
    return np.ndarray(
        shape=[each or 0 for each in view.shape],
        dtype=ELEMENTS[size],
        buffer=buffers[view.buffer].data,
        offset=view.offset,
        strides=[each * size for each in view.stride],
    )


def arrays_of(plan: MemoryPlan, buffers: Sequence[Bytes]) -> dict[str, Elements]:
    """Return all views of a plan over its buffers."""
    return {name: array_of(view, buffers) for name, view in plan.views.items()}


def rows_of(view: View, block: int) -> tuple[slice, ...]:
    """Return the index of one block's rows in a view."""
    first = block * view.rows_per_block
    everything = [slice(None)] * len(view.shape)
    everything[view.blocks] = slice(first, first + view.kernel_blocks)
    return tuple(everything)


def names_of(group: PlannedGroup) -> list[str]:
    """Return the names of a group's views."""
    return [chunk.name for reference in group.references for chunk in reference.chunks]


def owners(
    plan: MemoryPlan,
    group: PlannedGroup,
    buffers: Sequence[Bytes],
    arrays: Mapping[str, Elements],
) -> list[Owners]:
    """Return whose each byte is, after all views of one group wrote all their blocks.

    Owner 1 + i * blocks + b is block b of the group's i-th view, 0 is nobody. A byte has too few
    colours for all of them, so they are written digit by digit.
    """
    assert plan.num_blocks is not None
    names = names_of(group)
    found: list[Owners] = []
    digit = 1
    while digit <= len(names) * plan.num_blocks:
        for buffer in buffers:
            buffer[:] = 0
        for i, name in enumerate(names):
            array, view = arrays[name], plan.views[name]
            for block in range(plan.num_blocks):
                colour = (1 + i * plan.num_blocks + block) // digit % DIGITS
                array[rows_of(view, block)] = colour * REPEAT[array.itemsize]
        if digit == 1:
            found = [buffer.copy() for buffer in buffers]
        else:
            found = [
                mine.astype(np.int32) + buffer.astype(np.int32) * digit
                for mine, buffer in zip(found, buffers, strict=True)
            ]
        digit *= DIGITS
    return found


def chunk_bytes(reference: Reference, index: int, block: int, buffer: Owners) -> Owners:
    """Return what a buffer has where one chunk of one block lies: a row for each piece."""
    chunk, start = reference.chunks[index], block * reference.block_stride
    return np.ndarray(
        shape=(chunk.count, chunk.length),
        dtype=buffer.dtype,
        buffer=buffer.data,
        offset=(start + chunk.offset) * buffer.itemsize,
        strides=(chunk.stride * buffer.itemsize, buffer.itemsize),
    )


def coverage(
    plan: MemoryPlan, buffers: Sequence[Bytes], arrays: Mapping[str, Elements]
) -> Coverage:
    """Compare, group by group, the bytes that views write with those that references hold."""
    assert plan.num_blocks is not None
    owned = held = right = 0
    for group in plan.groups:
        found = owners(plan, group, buffers, arrays)
        colour = 0
        for reference in group.references:
            for index, chunk in enumerate(reference.chunks):
                array, view = arrays[chunk.name], plan.views[chunk.name]
                owned += plan.num_blocks * array[rows_of(view, 0)].nbytes
                for block in range(plan.num_blocks):
                    colour += 1
                    got = chunk_bytes(reference, index, block, found[reference.buffer])
                    held += got.size
                    right += int(np.count_nonzero(got == colour))
    return Coverage(owned=owned, missed=owned - right, foreign=held - right)


def covered(plan: MemoryPlan) -> Coverage:
    """Return the coverage of a plan over numpy's memory."""
    buffers = allocate(plan)
    return coverage(plan, buffers, arrays_of(plan, buffers))


def runs_of(reference: Reference, block: int) -> Iterator[slice]:
    """Yield the ranges of a buffer that hold one block exactly."""
    for offset, length in reference.exact():
        start = block * reference.block_stride + offset
        yield slice(start, start + length)
