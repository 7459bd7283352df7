"""What a plan says: where every byte of a KV cache lies. Pure data, readable without torch.

    allocation   | buffer 0: block 0 | block 1 | ...   | pad | buffer 1: block 0 | ...
    block        | slot 0 | slot 1 | ... |          a slot holds one layer of each group
    chunk        the bytes of one layer (or of one state tensor) inside a block

Invariant: a block belongs to one group at a time, so groups lie over each other in the same slots,
and only a group's own references say which bytes of its block are its layers'. Offsets and lengths
are in bytes, strides of views in elements. This module decides nothing: planner.py makes plans.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Final, TypeAlias

from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.models.shapes import ELEMENT_BYTES
from kvbraid.reading import OFFSET, SIZE, size
from kvbraid.spec import SpecKind

NULL_BLOCK: Final = 0
"""The block that stands for positions that no layer reads: it has bytes, and it never moves."""

MIN_BLOCKS: Final = 2
"""The null block, and one that a request can have."""

NUM_BLOCKS: Final = size(MIN_BLOCKS)._replace(
    expected=f"a whole number below 2**63, at least {MIN_BLOCKS}, as block 0 is the null block"
)

BASE_ALIGNMENT: Final = 512
"""Bytes of which each buffer's start is a multiple: direct I/O to disks needs as much."""

ByteRun: TypeAlias = tuple[int, int]
"""An offset inside a block and a length, both in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a kernel sees one layer's cache, or one tensor of its state: what `as_strided` takes.

    `shape` has None for the blocks while their number is unknown; `stride` is in elements,
    `offset` in bytes from the start of the buffer. `blocks`, `heads` and `tokens` are the
    dimensions with that meaning (None if there is none). Where a block is split into kernel
    blocks, row j of block b is `b * rows_per_block + j`, for j below `kernel_blocks`.
    """

    buffer: int
    shape: tuple[int | None, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    blocks: int = 0
    heads: int | None = None
    tokens: int | None = None
    kernel_blocks: int = 1
    rows_per_block: int = 1

    @property
    def heads_stride(self) -> int:
        """Bytes between two heads, 0 if there are none."""
        return 0 if self.heads is None else self.stride[self.heads] * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The bytes of one view in one block: `count` pieces of `length` bytes, `stride` apart.

    The first piece starts `offset` bytes into the block. `heads_stride` is the distance in bytes
    between two heads of the layer, 0 if it has no heads. Padding belongs to no chunk.
    """

    name: str
    offset: int
    length: int
    count: int = 1
    stride: int = 0
    heads_stride: int = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all pieces."""
        return self.length * self.count

    def pieces(self) -> Iterable[ByteRun]:
        """Yield all pieces in order."""
        return ((self.offset + i * self.stride, self.length) for i in range(self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The bytes of one group's block in one buffer.

    Block b starts `b * block_stride` bytes into the buffer; chunks count from there. `is_whole`
    says whether [0, block_stride) of a block is the block's alone, so that it can move as one
    range; where blocks are not the buffer's first dimension it cannot.
    """

    buffer: int
    block_stride: int
    chunks: tuple[Chunk, ...]
    is_whole: bool = True

    @property
    def used_bytes(self) -> int:
        """Bytes of one block that layers use."""
        return sum(chunk.used_bytes for chunk in self.chunks)

    def exact(self) -> tuple[ByteRun, ...]:
        """Return the used bytes of a block as runs in ascending order, neighbours merged."""
        return merged(piece for chunk in self.chunks for piece in chunk.pieces())

    def whole(self) -> ByteRun | None:
        """Return the whole block as one run, or None if its bytes are not together."""
        return (0, self.block_stride) if self.is_whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One group: its layers' names in order, and its bytes in each buffer that it touches."""

    kind: SpecKind
    block_size: int
    layers: tuple[str, ...]
    references: tuple[Reference, ...]

    @property
    def used_bytes(self) -> int:
        """Bytes of one block, in all buffers, that the group's layers use."""
        return sum(reference.used_bytes for reference in self.references)

    @property
    def num_runs(self) -> int:
        """Copies that moving one block exactly takes."""
        return sum(len(reference.exact()) for reference in self.references)

    def layers_of_views(self) -> dict[str, str]:
        """Return the layer of each view, in the order of chunks: a state's are `layer.tensor`."""
        layers = set(self.layers)
        names = [chunk.name for each in self.references for chunk in each.chunks]
        return {name: name if name in layers else name.rpartition(".")[0] for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Blocks of one size, `block_bytes` from one to the next, with `slots` layers side by side.

    `axes` names the physical dimensions from the outside to the inside, as far as all layers of
    the buffer agree ("blocks", "heads", "layers", "tokens", ..., "bytes" for the rest), and
    `shape` has their sizes, in bytes at the end; the blocks' is None while unknown. What an
    alignment adds at the end of a block is in `block_bytes` alone. `start` is the distance from
    the start of the allocation. `why` says why these slots are together or alone.
    """

    block_bytes: int
    slots: int
    axes: tuple[str, ...]
    shape: tuple[int | None, ...]
    why: str
    start: int | None = None

    def axis(self, name: str) -> int | None:
        """Return the position of a physical dimension, or None if the buffer has none."""
        return self.axes.index(name) if name in self.axes else None

    def head_slice(self, first: int, count: int) -> ByteRun:
        """Return the range of a block with heads [first, first + count) of all its layers.

        Raises:
            InvalidValueError: Heads that the buffer does not have, or does not keep together.
        """
        where = self.axis("heads")
        if where != 1:
            raise InvalidValueError(
                "the heads of this buffer's layers are not together: heads do not come before "
                "layers in it, for all groups alike; plan groups of equal length, with a layout "
                "that orders them so (hnd, bhlnc)"
            )
        heads, *inside = [size or 1 for size in self.shape[1:]]
        if not (OFFSET.fits(first) and SIZE.fits(count) and first + count <= heads):
            msg = f"{count} heads from {first} on; the buffer has heads 0 to {heads - 1}"
            raise InvalidValueError(msg)
        each = prod(inside)  # Not a part of `block_bytes`, which may end in padding.
        return first * each, count * each


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Where every byte lives: buffers, one view per layer, references per group.

    `num_blocks` counts the null block, which has bytes as every block has; None: not known yet.
    `aliases` maps a layer that has no cache of its own to the layer whose cache it reads.
    `is_cross_layer` says whether blocks run across layers, and `why` the reason. `warnings` has
    what the plan could not do as it was asked.
    """

    buffers: tuple[Buffer, ...]
    groups: tuple[PlannedGroup, ...]
    views: Mapping[str, View]
    num_blocks: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    is_cross_layer: bool = True
    why: str = ""
    warnings: tuple[str, ...] = ()

    @cached_property
    def block_bytes(self) -> int:
        """Bytes that one more block takes, in all buffers."""
        return sum(buffer.block_bytes for buffer in self.buffers)

    @property
    def size_bytes(self) -> int:
        """Bytes of the allocation that holds all buffers.

        Raises:
            InvalidValueError: The number of blocks is not known.
        """
        last, num_blocks = self.buffers[-1], self.num_blocks
        if last.start is None or num_blocks is None:
            msg = "the plan has no number of blocks; plan with num_blocks or memory_bytes"
            raise InvalidValueError(msg)
        return last.start + last.block_bytes * num_blocks

    def view(self, name: str) -> View:
        """Return the view of a layer, or of the layer whose cache it reads.

        Raises:
            UnknownError: The plan has no such view.
        """
        name = self.aliases.get(name, name)
        if name not in self.views:
            known = ", ".join(list(self.views)[:8])
            raise UnknownError(f"the plan has no view {name!r}; it has {known}, ...")
        return self.views[name]


def merged(pieces: Iterable[ByteRun]) -> tuple[ByteRun, ...]:
    """Sort runs and join those that touch."""
    joined: list[ByteRun] = []
    for offset, length in sorted(pieces):
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((offset, length))
    return tuple(joined)


def num_rows(num_blocks: int | None, kernel_blocks: int, rows_per_block: int) -> int | None:
    """Return the rows of a view: the last block has only its own. None: blocks are not counted."""
    return None if num_blocks is None else (num_blocks - 1) * rows_per_block + kernel_blocks


def starts(block_bytes: Sequence[int], num_blocks: int | None) -> list[int | None]:
    """Return where each buffer starts in the allocation, None if later ones cannot be known."""
    found: list[int | None] = []
    start: int | None = 0
    for each in block_bytes:
        found.append(start)
        if start is not None:
            end = None if num_blocks is None else start + each * num_blocks
            start = None if end is None else -(-end // BASE_ALIGNMENT) * BASE_ALIGNMENT
    return found
