"""What every plan keeps, whoever made it: views and references lie in their buffers, and agree.

Invariant: a plan that passes can be allocated, read and moved without leaving its memory, and
following its references takes time in proportion to its bytes' pieces, of which there is a limit.
This module mends nothing, and says what is wrong first: buffers, then views, then references.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Final

from kvbraid.errors import LayoutError, one_line
from kvbraid.layout.plan import (
    Buffer,
    Chunk,
    MemoryPlan,
    PlannedGroup,
    Reference,
    View,
    num_rows,
    starts,
)
from kvbraid.models.shapes import ELEMENT_BYTES

MAX_PIECES: Final = 1 << 20
"""Pieces of all chunks of a plan; real plans have some thousands."""
MAX_RANK: Final = 16
"""Dimensions of a view; real views have five or six."""


def check_integrity(plan: MemoryPlan) -> None:
    """Refuse a plan that contradicts itself.

    Raises:
        LayoutError: With the buffer, view or chunk, and the rule.
    """
    pieces = sum(chunk.count for _, _, chunk in _chunks(plan))
    if pieces > MAX_PIECES:
        raise LayoutError(f"the chunks are in {pieces:,} pieces; expected at most {MAX_PIECES:,}")
    for fault in _faults(plan):
        raise LayoutError(f"the plan contradicts itself: {one_line(fault)}; write it anew")


def _chunks(plan: MemoryPlan) -> Iterator[tuple[PlannedGroup, Reference, Chunk]]:
    for group in plan.groups:
        for reference in group.references:
            yield from ((group, reference, chunk) for chunk in reference.chunks)


def _faults(plan: MemoryPlan) -> Iterator[str]:
    sizes = [buffer.block_bytes for buffer in plan.buffers]
    if not sizes or min(sizes) < 1:
        yield f"buffers with blocks of {sizes} bytes; expected one at least, and 1 byte or more"
        return
    yield from _starts(plan.buffers, plan.num_blocks)
    for index, buffer in enumerate(plan.buffers):
        yield from (f"buffer {index}: {fault}" for fault in _buffer(buffer, plan.num_blocks))
    for name, view in plan.views.items():
        yield from (f"view {name}: {fault}" for fault in _view(view, plan))
    yield from _names(plan)
    for _, reference, chunk in _chunks(plan):
        view = plan.views[chunk.name]
        yield from (f"chunk {chunk.name}: {fault}" for fault in _chunk(chunk, reference, view))
    for index, group in enumerate(plan.groups):
        yield from (f"group {index}: {fault}" for fault in _group(group, plan))


def _starts(buffers: Sequence[Buffer], num_blocks: int | None) -> Iterator[str]:
    found = [buffer.start for buffer in buffers]
    if num_blocks is None:
        if found != starts([buffer.block_bytes for buffer in buffers], None):
            yield f"buffers start at {found} for an unknown number of blocks"
        return
    end = 0
    for index, buffer in enumerate(buffers):
        if buffer.start is None or buffer.start < end:
            yield f"buffer {index} starts at {buffer.start}, and the one before ends at {end:,}"
            return
        end = buffer.start + buffer.block_bytes * num_blocks


def _buffer(buffer: Buffer, num_blocks: int | None) -> Iterator[str]:
    if len(buffer.axes) != len(buffer.shape) or buffer.axes.count("blocks") != 1:
        yield f"axes {buffer.axes} for sizes {buffer.shape}; expected one name each, blocks once"
    elif buffer.shape[buffer.axes.index("blocks")] != num_blocks:
        yield f"shape {buffer.shape}; expected {num_blocks} blocks"
    elif _product(buffer.shape, buffer.axes.index("blocks")) > buffer.block_bytes:
        yield f"shape {buffer.shape}; expected at most {buffer.block_bytes:,} bytes of a block"


def _product(sizes: Sequence[int | None], blocks: int) -> int:
    return prod(each or 1 for axis, each in enumerate(sizes) if axis != blocks)


def _view(view: View, plan: MemoryPlan) -> Iterator[str]:
    rank = len(view.shape)
    meant = [each for each in (view.blocks, view.heads, view.tokens) if each is not None]
    if rank > MAX_RANK:
        yield f"{rank} dimensions; expected at most {MAX_RANK}"
    elif len(view.stride) != rank or len(set(meant)) < len(meant) or max(meant) >= rank:
        yield f"{rank} dimensions, {len(view.stride)} strides, meanings {meant}"
    elif view.buffer >= len(plan.buffers):
        yield f"buffer {view.buffer} of {len(plan.buffers)}"
    elif view.shape[view.blocks] != _rows(view, plan) or any(
        size is None for axis, size in enumerate(view.shape) if axis != view.blocks
    ):
        yield f"shape {view.shape} for {plan.num_blocks} blocks"
    elif plan.num_blocks is not None:
        size = ELEMENT_BYTES[view.dtype]
        last = sum(
            (each or 1) * step - step for each, step in zip(view.shape, view.stride, strict=True)
        )
        end = view.offset + (last + 1) * size
        held = plan.buffers[view.buffer].block_bytes * plan.num_blocks
        if end > held:
            yield f"it ends {end:,} bytes into a buffer of {held:,}"


def _rows(view: View, plan: MemoryPlan) -> int | None:
    return num_rows(plan.num_blocks, view.kernel_blocks, view.rows_per_block)


def _names(plan: MemoryPlan) -> Iterator[str]:
    named = [chunk.name for _, _, chunk in _chunks(plan)]
    if sorted(named) != sorted(plan.views):
        yield f"{len(plan.views)} views and chunks named {named[:8]}; expected one of each"
    for alias, owner in plan.aliases.items():
        if owner not in plan.views or alias in plan.views:
            yield f"{alias} reads the cache of {owner}; expected a view's name, and not its own"


def _chunk(chunk: Chunk, reference: Reference, view: View) -> Iterator[str]:
    size = ELEMENT_BYTES[view.dtype]
    seen = _product(view.shape, view.blocks) * view.kernel_blocks * size
    if view.buffer != reference.buffer or seen != chunk.used_bytes:
        yield (
            f"{chunk.used_bytes:,} bytes in buffer {reference.buffer}, and its view "
            f"has {seen:,} in buffer {view.buffer}"
        )
    step = view.stride[view.blocks] * size * view.rows_per_block
    if (chunk.offset, reference.block_stride) != (view.offset, step):
        yield (
            f"it starts at {chunk.offset:,}, and blocks are {reference.block_stride:,} bytes "
            f"apart; its view starts at {view.offset:,}, and they are {step:,} apart"
        )


def _group(group: PlannedGroup, plan: MemoryPlan) -> Iterator[str]:
    named = set(group.layers_of_views().values())
    if named != set(group.layers) or len(named) < len(group.layers):
        yield f"its layers are {group.layers[:8]}; expected each once, and those of its chunks"
    for reference in group.references:
        if not reference.chunks:
            yield "a reference without chunks; expected at least one"
            return
        runs, step = reference.exact(), reference.block_stride
        if any(sum(run) > following for run, (following, _) in pairwise(runs)):
            yield f"its chunks in buffer {reference.buffer} overlap"
        end, num_blocks = sum(runs[-1]), plan.num_blocks or 1
        held = plan.buffers[reference.buffer].block_bytes * num_blocks
        last = step * (num_blocks - 1) + (step if reference.is_whole else end)
        if last > held or (reference.is_whole and end > step):
            yield (
                f"a block ends at {end:,}, the next starts at {step:,} and the last ends at "
                f"{last:,} of buffer {reference.buffer} of {held:,} bytes"
            )
