"""How an attention backend views one layer's cache: the logical shape, and the order in memory.

    logical shape     (2, blocks, tokens, heads, size)      what kernels index
    stride order      (2, 0, 1, 3, 4, 5)                    blocks, layers, 2, tokens, heads, size
                       | +-- layers                         0 = layers, d + 1 = logical dimension d
                       +---- logical dimension 1, blocks

Invariant: a geometry is one layer's, of blocks as the kernel sees them. Where layers come before
heads (or there are no heads), a layer's page stays in one piece; where heads come before layers,
it is cut per head. This module holds the geometries of known layouts; probe.py asks a backend.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.models.shapes import ELEMENT_BYTES, Heads
from kvbraid.reading import SIZE, check, one_of

LAYERS: Final = 0
"""The layers' dimension in a stride order; logical dimension d is d + 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """One layer's logical shape, and the orders in which its dimensions are stored.

    `shape` has None for the blocks; all other sizes are those of one kernel block. `heads` and
    `tokens` are the dimensions with that meaning, if there are any. `order` stores one layer
    alone: logical dimensions from the outside to the inside. `with_layers` stores all layers
    together, in the numbering drawn above; None: the backend has no such order, so the layers'
    dimension comes first.

    Raises:
        InvalidValueError: An unknown type, no blocks dimension, a size below 1, one dimension with
            two meanings, or an order that is no order of the dimensions.
    """

    shape: tuple[int | None, ...]
    dtype: str
    order: tuple[int, ...]
    with_layers: tuple[int, ...] | None = None
    heads: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse a geometry that describes no memory."""
        check("dtype", self.dtype, one_of(ELEMENT_BYTES))
        if self.shape.count(None) != 1:
            raise InvalidValueError(f"shape = {self.shape}; expected one None, for the blocks")
        rank = len(self.shape)
        meant = [each for each in (self.heads, self.tokens) if each is not None]
        if not all(size is None or SIZE.fits(size) for size in self.shape):
            msg = f"shape = {self.shape}; expected sizes of at least 1, in whole numbers"
            raise InvalidValueError(msg)
        if len({self.blocks, *meant}) <= len(meant) or not set(meant) <= set(range(rank)):
            raise InvalidValueError(
                f"heads = {self.heads}, tokens = {self.tokens}; expected dimensions of their own "
                f"among the {rank} of the shape, and not the blocks' {self.blocks}"
            )
        if sorted(self.order) != list(range(rank)):
            msg = f"order = {self.order}; expected an order of the {rank} dimensions of the shape"
            raise InvalidValueError(msg)
        if sorted(self.layer_order) != list(range(rank + 1)):
            raise InvalidValueError(
                f"with_layers = {self.with_layers}; expected an order of 0 (the layers) "
                f"and the {rank} dimensions of the shape, 1 to {rank}"
            )

    @property
    def blocks(self) -> int:
        """The logical dimension of the blocks."""
        return self.shape.index(None)

    @property
    def layer_order(self) -> tuple[int, ...]:
        """The order of all layers together; layers come first if the backend has none."""
        if self.with_layers is not None:
            return self.with_layers
        return (LAYERS, *(each + 1 for each in self.order))

    @property
    def alone_order(self) -> tuple[int, ...]:
        """The order of one layer alone: that of all layers, if blocks come first in it."""
        if self.blocks_come_first:
            return tuple(each - 1 for each in self.layer_order if each != LAYERS)
        return self.order

    @property
    def num_elements(self) -> int:
        """Elements of one kernel block."""
        return prod(size for size in self.shape if size is not None)

    @property
    def before_layers(self) -> tuple[int, ...]:
        """Logical dimensions between blocks and layers in memory: usually none, or the heads."""
        order = self.layer_order
        between = order[order.index(self.blocks + 1) + 1 : order.index(LAYERS)]
        return tuple(each - 1 for each in between)

    @property
    def inside_layers(self) -> tuple[int, ...]:
        """Logical dimensions after the layers in memory."""
        order = self.layer_order
        return tuple(each - 1 for each in order[order.index(LAYERS) + 1 :])

    @property
    def blocks_come_first(self) -> bool:
        """Whether a block of all layers is one range: blocks outermost, layers inside."""
        return self.layer_order[0] == self.blocks + 1


class Layout(Enum):
    """Orders of layers, blocks, heads, tokens and content that engines have names for.

    `NHD` and `HND` are those of vLLM's backends before its layout refactor, with keys and values
    apart; the others are vLLM 0.32's, with the content of a token's head in one piece.
    """

    NHD = "nhd"
    HND = "hnd"
    BLNHC = "blnhc"
    BLHNC = "blhnc"
    BHLNC = "bhlnc"
    LBNHC = "lbnhc"
    LBHNC = "lbhnc"
    LHBNC = "lhbnc"


PACKED_AXES: Final = "lbhnc"
"""The numbering of vLLM's stride orders: layers, blocks, heads, tokens (N), content."""


def geometry_of(layout: Layout, heads: Heads, kernel_block: int) -> Geometry:
    """Return how backends of a layout view a layer with these heads.

    `kernel_block` is in tokens. Keys and values of different sizes, latents and inline scales
    have one content dimension in every layout.

    Raises:
        InvalidValueError: No `Layout`, or a kernel block that is no whole number of at least 1.
    """
    check("layout", layout, Layout)
    if layout not in _APART:
        return _packed(layout, heads, kernel_block)
    if heads.replicated and heads.value_dim == 0:
        return _latent(heads, kernel_block)
    apart, in_one_piece = _APART[layout]
    if heads.key_dim != heads.value_dim or heads.scale_bytes:
        return _packed(in_one_piece, heads, kernel_block)
    return apart(heads, kernel_block)


def _packed(layout: Layout, heads: Heads, kernel_block: int) -> Geometry:
    """[blocks, heads, tokens, content], stored as the layout's name spells it."""
    with_layers = tuple(PACKED_AXES.index(letter) for letter in layout.value)
    content, dtype = _content(heads)
    return Geometry(
        shape=(None, heads.num, kernel_block, content),
        dtype=dtype,
        order=tuple(each - 1 for each in with_layers if each != LAYERS),
        with_layers=with_layers,
        heads=1,
        tokens=2,
    )


def _flash(heads: Heads, kernel_block: int) -> Geometry:
    """(2, blocks, tokens, heads, size): FlashAttention's, stored blocks, layers, 2, ..."""
    return Geometry(
        shape=(2, None, kernel_block, heads.num, heads.key_dim),
        dtype=heads.dtype,
        order=(0, 1, 2, 3, 4),
        with_layers=(2, 0, 1, 3, 4, 5),
        heads=3,
        tokens=2,
    )


def _triton(heads: Heads, kernel_block: int) -> Geometry:
    """(blocks, 2, tokens, heads, size): Triton's and FlashInfer's, stored blocks, heads, ..."""
    return Geometry(
        shape=(None, 2, kernel_block, heads.num, heads.key_dim),
        dtype=heads.dtype,
        order=(0, 3, 1, 2, 4),
        with_layers=(1, 4, 0, 2, 3, 5),
        heads=3,
        tokens=2,
    )


def _latent(heads: Heads, kernel_block: int) -> Geometry:
    """(blocks, tokens, size): a latent has no heads."""
    content, dtype = _content(heads)
    return Geometry(
        shape=(None, kernel_block, content),
        dtype=dtype,
        order=(0, 1, 2),
        with_layers=(1, 0, 2, 3),
        tokens=1,
    )


def _content(heads: Heads) -> tuple[int, str]:
    """Return the content of a token's head in elements, and their type; scales make it bytes."""
    size = heads.key_dim + heads.value_dim
    if heads.scale_bytes:
        return size * heads.element_bytes + heads.scale_bytes, "uint8"
    return size, heads.dtype


_APART: Final[Mapping[Layout, tuple[Callable[[Heads, int], Geometry], Layout]]] = {
    Layout.NHD: (_flash, Layout.BLNHC),
    Layout.HND: (_triton, Layout.BHLNC),
}
"""How a layout views keys and values apart, and as which one if they are no two equal halves."""
