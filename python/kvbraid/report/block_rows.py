"""One block of a group as rows of bytes, in the order in which they lie in memory.

    each page in one piece       a row per slot:           | layer 3        | padding |
    heads before layers          a row per head:           | layer 3 | layer 7 | ...
    interleaved kernel blocks    a row per kernel block:   | layer 3 | layer 7 | ...

Invariant: every byte of the block is in exactly one cell of one row, unless rows that are alike
are left out: then a row says how many. Everything comes from the references of a plan, whoever
made it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from kvbraid.layout.plan import Buffer, Chunk, MemoryPlan, PlannedGroup, Reference

MAX_ALIKE: Final = 8
"""Rows alike, one after the other, that are all shown; of more, the first three and the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCell:
    """Bytes of a row from `start` on: those of the view `name` of `layer`, or of no layer."""

    start: int
    length: int
    name: str
    layer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """Bytes of a block from `offset` on; `num_left_out` rows alike come after this one."""

    label: str
    offset: int
    length: int
    cells: tuple[BlockCell, ...]
    num_left_out: int = 0


def block_rows(plan: MemoryPlan, group: PlannedGroup) -> tuple[BlockRow, ...]:
    """Return the rows of one block of a group, buffer by buffer."""
    layers = group.layers_of_views()
    references = {reference.buffer: reference for reference in group.references}
    found: list[BlockRow] = []
    for number, buffer in enumerate(plan.buffers):
        if number in references:
            rows = _rows(plan, layers, references[number])
        else:
            rows = [_untouched(buffer.block_bytes)]
        if len(plan.buffers) > 1:
            rows = [replace(row, label=_in_buffer(number, row, len(rows))) for row in rows]
        found += rows
    return tuple(_without_alike(found))


def _rows(plan: MemoryPlan, layers: Mapping[str, str], reference: Reference) -> list[BlockRow]:
    buffer = plan.buffers[reference.buffer]
    if not reference.is_whole:
        return list(_pieces(layers, reference.chunks))
    striped = any(chunk.count > 1 for chunk in reference.chunks)
    starts = _stripes(buffer, reference) if striped else _slots(buffer, layers, reference)
    ends = (*starts[1:], buffer.block_bytes)
    cells: list[list[BlockCell]] = [[] for _ in starts]
    for row, offset, length, name in _cut(reference.chunks, starts, ends):
        start = offset - starts[row]
        cells[row].append(BlockCell(start=start, length=length, name=name, layer=layers[name]))
    return [
        BlockRow(
            label=_label(plan, reference, index),
            offset=start,
            length=end - start,
            cells=tuple(_filled(found, end - start, striped=striped)),
        )
        for index, (start, end, found) in enumerate(zip(starts, ends, cells, strict=True))
    ]


def _cut(
    chunks: Sequence[Chunk], starts: Sequence[int], ends: Sequence[int]
) -> Iterator[tuple[int, int, int, str]]:
    """Yield row, offset, length and name of all pieces in order; a row's end cuts them."""
    pieces = [(*piece, chunk.name) for chunk in chunks for piece in chunk.pieces()]
    for offset, length, name in sorted(pieces):
        row = bisect_right(starts, offset) - 1
        begin = offset
        while begin < offset + length:
            end = min(offset + length, ends[row])
            yield row, begin, end - begin, name
            begin, row = end, row + 1


def _untouched(block_bytes: int) -> BlockRow:
    """A buffer with no layer of the group."""
    nobody = BlockCell(start=0, length=block_bytes, name="no layer")
    return BlockRow(label="", offset=0, length=block_bytes, cells=(nobody,))


def _in_buffer(buffer: int, row: BlockRow, num_rows: int) -> str:
    return f"buffer {buffer}" if num_rows == 1 else f"buffer {buffer}, {row.label}"


def _pieces(layers: Mapping[str, str], chunks: Sequence[Chunk]) -> Iterator[BlockRow]:
    """A layer alone whose blocks are not first: each piece is far from the next."""
    for chunk in chunks:
        for index, (offset, length) in enumerate(chunk.pieces()):
            cell = BlockCell(start=0, length=length, name=chunk.name, layer=layers[chunk.name])
            yield BlockRow(label=f"piece {index}", offset=offset, length=length, cells=(cell,))


def _stripes(buffer: Buffer, reference: Reference) -> list[int]:
    """A row goes from one piece of a layer to its next, over all layers; the rest is one row."""
    chunk = next(chunk for chunk in reference.chunks if chunk.count > 1)
    full = chunk.stride * chunk.count
    return [*range(0, full, chunk.stride), *([full] if full < buffer.block_bytes else [])]


def _slots(buffer: Buffer, layers: Mapping[str, str], reference: Reference) -> list[int]:
    """A row is a slot, and whatever alignment adds; where there are no slots, a layer's page."""
    if buffer.axes == ("blocks", "layers", "bytes"):
        page_bytes = buffer.shape[-1]
        assert page_bytes is not None  # Only blocks may be unknown.
        full = page_bytes * buffer.slots
        return [*range(0, full, page_bytes), *([full] if full < buffer.block_bytes else [])]
    starts: dict[str, int] = {}
    for chunk in reference.chunks:
        starts.setdefault(layers[chunk.name], chunk.offset)
    return sorted({0, *starts.values()})


def _label(plan: MemoryPlan, reference: Reference, index: int) -> str:
    first = reference.chunks[0]
    if first.count == 1:
        return f"slot {index}" if index < plan.buffers[reference.buffer].slots else "the rest"
    view = plan.views[first.name]
    if index >= first.count:
        return "the rest"
    if view.kernel_blocks == first.count:
        return f"kernel block {index}"
    heads = 1 if view.heads is None else view.shape[view.heads]
    assert heads is not None  # Only blocks may be unknown.
    if view.kernel_blocks * heads != first.count:
        return f"part {index}"
    block, head = divmod(index, heads)
    return f"kernel block {block}, head {head}" if view.kernel_blocks > 1 else f"head {head}"


def _filled(cells: Sequence[BlockCell], length: int, *, striped: bool) -> Iterator[BlockCell]:
    """Yield the cells of a row, and one for each gap."""
    what = "padding" if cells and not striped else "no layer"
    end = 0
    for cell in cells:
        if cell.start > end:
            yield BlockCell(start=end, length=cell.start - end, name=what)
        yield cell
        end = cell.start + cell.length
    if end < length:
        yield BlockCell(start=end, length=length - end, name=what)


def _without_alike(rows: Sequence[BlockRow]) -> Iterator[BlockRow]:
    """Leave out rows in the middle of many that are alike but for where they start."""
    for _, found in groupby(rows, key=lambda row: (row.length, row.cells)):
        alike = list(found)
        if len(alike) > MAX_ALIKE:
            alike = [*alike[:2], replace(alike[2], num_left_out=len(alike) - 4), alike[-1]]
        yield from alike
