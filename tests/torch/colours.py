"""Colours written through tensors and read back where the references say that a block lies.

Every view of a group writes a colour of its own into each block, over zeros. What the references
miss of it, and what they hold that has another colour, is counted in bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from kvbraid.layout import Chunk, MemoryPlan, PlannedGroup, Reference, View

ELEMENTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""The number that stands for an element, by size in bytes."""
MAX_COLOURS = 255
"""Colours that a byte can have; 0 is no colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Bytes that views own, those of them in no chunk, and those of chunks that others own."""

    owned: int
    missed: int
    foreign: int


def coverage(
    plan: MemoryPlan, memory: torch.Tensor, views: Mapping[str, torch.Tensor]
) -> Coverage:
    """Compare, group by group, the bytes that views write with those that references hold.

    `memory` is the allocation as bytes, in which the buffers start where the plan says.
    """
    owned = held = right = 0
    for group in plan.groups:
        pieces = list(enumerate(_pieces(plan, group), start=1))
        assert len(pieces) <= MAX_COLOURS, "fewer blocks, else two pieces have one colour"
        memory.zero_()
        for colour, (_, chunk, block) in pieces:
            owned += paint(views[chunk.name], plan.views[chunk.name], block, colour)
        for colour, (reference, chunk, block) in pieces:
            found = chunk_bytes(plan, memory, reference, chunk, block)
            held += found.numel()
            right += int(torch.count_nonzero(found == colour))
    return Coverage(owned=owned, missed=owned - right, foreign=held - right)


def _pieces(plan: MemoryPlan, group: PlannedGroup) -> Iterator[tuple[Reference, Chunk, int]]:
    for reference in group.references:
        for chunk in reference.chunks:
            yield from ((reference, chunk, block) for block in range(plan.num_blocks or 0))


def paint(tensor: torch.Tensor, view: View, block: int, colour: int) -> int:
    """Fill one block of a view with a byte, and return how many bytes that were."""
    size = tensor.element_size()
    value = int.from_bytes(bytes([colour] * size), "little", signed=size > 1)
    rows = tensor.narrow(view.blocks, block * view.rows_per_block, view.kernel_blocks)
    rows.view(ELEMENTS[size]).fill_(value)
    return int(rows.numel() * size)


def chunk_bytes(
    plan: MemoryPlan, memory: torch.Tensor, reference: Reference, chunk: Chunk, block: int
) -> torch.Tensor:
    """Return what the memory has where one chunk of one block lies: a row for each piece."""
    start = plan.buffers[reference.buffer].start
    assert start is not None
    offset = memory.storage_offset() + start + block * reference.block_stride + chunk.offset
    rows = memory.as_strided((chunk.count, chunk.length), (chunk.stride, 1), offset)
    return rows.view(torch.uint8)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors are the same elements; a dimension of size 1 has any stride."""
    strides = [
        [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
        for tensor in (ours, theirs)
    ]
    places = [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in (ours, theirs)]
    return places[0] == places[1] and strides[0] == strides[1]
