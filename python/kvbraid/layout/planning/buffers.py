"""From slots to buffers: the bytes of a block, and where in it each layer's page starts.

    place_slots    slots of one page size (or one slot alone): page i at i * page
    place_packed   pages of several sizes: each at the end of the one before, rounded up

Invariant: a block's bytes are the widest group's, rounded up to what its layers and the user ask
for; whatever a rounding adds is at the end of a block and belongs to no layer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Final

from kvbraid.layout.plan import Buffer
from kvbraid.layout.planning.geometry import Geometry
from kvbraid.layout.planning.layers import LayoutLayer, Split
from kvbraid.layout.planning.slots import Key, Member, Order, num_pieces
from kvbraid.models.shapes import ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlace:
    """Where a layer of group `group` stands: in slot `slot` of `num_slots` of a buffer.

    The first byte of its page is `base` bytes into each block of `block_bytes`. Where heads come
    before layers, `num_slots` are those that the group fills: a group of fewer layers than the
    buffer has slots is cut as if there were no others, so that its block is one shorter range.
    """

    group: int
    layer: LayoutLayer
    buffer: int
    order: Order
    slot: int
    num_slots: int
    base: int
    block_bytes: int


def place_slots(
    key: Key,
    slots: Sequence[Sequence[Member]],
    buffer: int,
    alignment: int,
    split: Split | None,
) -> tuple[Buffer, list[LayerPlace]]:
    """Lay slots of one page size side by side; `split` says how kernel blocks lie in them."""
    layers = [layer for members in slots for _, layer in members]
    page = key.page_bytes
    step = page // prod(key.prefix)  # From a slot's first byte to the next slot's.
    block_bytes = rounded(page * len(slots), lcm(alignment, *(each.alignment for each in layers)))
    filled = {group: len(slots) for members in slots for group, _ in members}
    if key.order is Order.HEADS and not any(layer.is_split for layer in layers):
        filled = Counter(group for members in slots for group, _ in members)
    places = [
        LayerPlace(
            group=group,
            layer=layer,
            buffer=buffer,
            order=key.order,
            slot=slot,
            num_slots=filled[group],
            base=slot * step,
            block_bytes=block_bytes,
        )
        for slot, members in enumerate(slots)
        for group, layer in members
    ]
    axes, shape, why = _DESCRIBED[key.order](key, layers, len(slots))
    if len(set(filled.values())) > 1:
        axes, shape = ("blocks", "bytes"), (None, page * len(slots))
    if split is Split.INTERLEAVED and key.order is not Order.ALONE:
        axes, shape, why = _interleaved(layers, (axes, shape, why))
    return (
        Buffer(block_bytes=block_bytes, slots=len(slots), axes=axes, shape=shape, why=why),
        places,
    )


def place_packed(
    groups: Sequence[Sequence[LayoutLayer]], alignment: int
) -> tuple[Buffer, list[LayerPlace]]:
    """Lay each group's pages side by side, whatever their sizes; a group may have no layers."""
    layers = [layer for mine in groups for layer in mine]
    placed = [(index, *each) for index, mine in enumerate(groups) for each in _packed(mine)]
    widest = max(base + layer.page.page_bytes for _, _, layer, base in placed)
    block_bytes = rounded(widest, lcm(alignment, *(_alignment(each) for each in layers)))
    num_slots = max(len(mine) for mine in groups)
    places = [
        LayerPlace(
            group=group,
            layer=layer,
            buffer=0,
            order=Order.PACKED,
            slot=slot,
            num_slots=num_slots,
            base=base,
            block_bytes=block_bytes,
        )
        for group, slot, layer, base in placed
    ]
    buffer = Buffer(
        block_bytes=block_bytes,
        slots=num_slots,
        axes=("blocks", "bytes"),
        shape=(None, block_bytes),
        why="pages of several sizes, packed side by side into one block",
    )
    return buffer, places


def rounded(size: int, alignment: int) -> int:
    """Return the least multiple of `alignment` that is no less than `size`."""
    return -(-size // alignment) * alignment


def _alignment(layer: LayoutLayer) -> int:
    """Return what a packed page's offset is a multiple of: as asked for, and whole elements."""
    if layer.state is not None:
        dtypes = [tensor.dtype for tensor in layer.state.tensors]
    else:
        dtypes = [] if layer.geometry is None else [layer.geometry.dtype]
    return lcm(layer.alignment, *(ELEMENT_BYTES[dtype] for dtype in dtypes))


def _packed(layers: Sequence[LayoutLayer]) -> list[tuple[int, LayoutLayer, int]]:
    """Give each layer of one group its slot, and the first fitting place after the one before.

    Layers with equal pages stand together, in the order in which the group has them, as vLLM 0.32
    places them.
    """
    placed, end = [], 0
    first: dict[object, int] = {}
    for number, layer in enumerate(layers):
        first.setdefault(layer.page, number)
    for slot, layer in enumerate(sorted(layers, key=lambda layer: first[layer.page])):
        base = rounded(end, _alignment(layer))
        placed.append((slot, layer, base))
        end = base + layer.page.page_bytes
    return placed


_Described = tuple[tuple[str, ...], tuple[int | None, ...], str]


def _pages(key: Key, layers: Sequence[LayoutLayer], num_slots: int) -> _Described:
    why = f"{num_slots} slots with pages of {key.page_bytes:,} bytes"
    if not any(layer.is_split for layer in layers):
        why += ", each page in one piece"
    return ("blocks", "layers", "bytes"), (None, num_slots, key.page_bytes), why


def _heads(key: Key, layers: Sequence[LayoutLayer], num_slots: int) -> _Described:
    """Blocks, what stands before the layers, layers, and the rest of a page."""
    geometries = {layer.geometry for layer in layers if layer.geometry is not None}
    geometry, *others = geometries  # Only a geometry stores heads before layers.
    names = _axes(geometry, geometry.before_layers)
    if any(_axes(other, other.before_layers) != names for other in others):
        names = tuple(f"size {size}" for size in key.prefix)
    why = (
        f"{num_slots} slots with pages of {key.page_bytes:,} bytes, {' and '.join(names)} before "
        "layers"
    )
    inside = geometry.inside_layers
    if others or not inside:
        rest = key.page_bytes // prod(key.prefix)
        return ("blocks", *names, "layers", "bytes"), (None, *key.prefix, num_slots, rest), why
    sizes = [geometry.shape[each] or 1 for each in inside]
    sizes[-1] *= ELEMENT_BYTES[geometry.dtype]
    axes = ("blocks", *names, "layers", *_axes(geometry, inside[:-1]), "bytes")
    return axes, (None, *key.prefix, num_slots, *sizes), why


def _axes(geometry: Geometry, dimensions: Iterable[int]) -> tuple[str, ...]:
    """Name dimensions by their meaning, or by their number."""
    named = {geometry.heads: "heads", geometry.tokens: "tokens"}
    return tuple(named.get(each, f"dimension {each}") for each in dimensions)


def _interleaved(layers: Sequence[LayoutLayer], described: _Described) -> _Described:
    """Where kernel blocks lie between blocks and layers, no other dimension has one place."""
    (_, shape, why) = described
    if not any(layer.is_split for layer in layers):
        return described
    size = prod(each for each in shape if each is not None)
    return ("blocks", "bytes"), (None, size), f"{why}, per kernel block"


def _alone(key: Key, layers: Sequence[LayoutLayer], num_slots: int) -> _Described:
    del num_slots
    pieces = num_pieces(layers[0])
    if pieces == 1:
        return ("blocks", "bytes"), (None, key.page_bytes), key.why
    return ("pieces", "blocks", "bytes"), (pieces, None, key.page_bytes // pieces), key.why


_DESCRIBED: Final[Mapping[Order, Callable[[Key, Sequence[LayoutLayer], int], _Described]]] = {
    Order.PAGES: _pages,
    Order.HEADS: _heads,
    Order.ALONE: _alone,
}
