"""Which slots there are, and which of them share a buffer.

    slot   one position in a block that one layer of each group may take: layer i of every group
           with pages of one size stands in slot i of that size
    key    what slots must have in common to lie in one buffer

    PAGES   a slot's page is in one piece                 block: | page 0 | page 1 | ...
    HEADS   heads come before layers, a page is cut       block: | head 0: all layers | head 1 ...
    PACKED  pages of several sizes side by side           block: | page 0 | page 1 |...| pad |
    ALONE   a buffer of its own, with the reason

Invariant: the key belongs to the slot: if its layers disagree, their heads stay inside the page;
and if one slot's do, those of all slots of its page size do, as one range is worth more. Layers
that cannot overlay each other block by block never share a buffer. Slots keep their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TypeAlias

from kvbraid.layout.planning.layers import LayoutLayer, Split, UnknownPage


class Order(Enum):
    """How the layers of a buffer's block lie."""

    PAGES = "pages"
    HEADS = "heads"
    PACKED = "packed"
    ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What slots of one buffer have in common; `prefix`: the sizes between blocks and layers."""

    order: Order
    page_bytes: int
    prefix: tuple[int, ...] = ()
    why: str = ""


Member: TypeAlias = tuple[int, LayoutLayer]
"""A layer, and the index of its group."""


def key_of(layer: LayoutLayer, split: Split | None) -> Key:
    """Return what one layer asks of its slot."""
    page_bytes, geometry = layer.page.page_bytes, layer.geometry
    if isinstance(layer.page, UnknownPage):
        why = f"layer {layer.name} keeps a {layer.page.type_name}, which is not known"
        return Key(order=Order.ALONE, page_bytes=page_bytes, why=why)
    if layer.state is not None:
        return Key(order=Order.PAGES, page_bytes=page_bytes)
    if geometry is None:
        why = f"layer {layer.name}: {layer.unprobed or 'its backend told no geometry'}"
        return Key(order=Order.ALONE, page_bytes=page_bytes, why=why)
    if not geometry.blocks_come_first:
        told = layer.unprobed or "in its backend's order blocks do not come first"
        why = f"layer {layer.name}: {told}"
        return Key(order=Order.ALONE, page_bytes=page_bytes, why=why)
    prefix = tuple(geometry.shape[each] or 1 for each in geometry.before_layers)
    whole = layer.page.content_bytes == page_bytes and split is not Split.INTACT
    if prod(prefix) == 1 or not whole:
        return Key(order=Order.PAGES, page_bytes=page_bytes)
    return Key(order=Order.HEADS, page_bytes=page_bytes, prefix=prefix)


def slot_key(keys: Sequence[Key]) -> Key:
    """Return the key of a slot whose layers have these keys."""
    alone = next((key for key in keys if key.order is Order.ALONE), None)
    if alone is not None:
        return alone
    if all(key == keys[0] for key in keys):
        return keys[0]
    return Key(order=Order.PAGES, page_bytes=keys[0].page_bytes)


def in_slots(groups: Sequence[Sequence[LayoutLayer]]) -> list[list[Member]]:
    """Return the layers of each slot: slot i of a page size holds layer i of every group."""
    found: dict[tuple[int, int], list[Member]] = {}
    for index, layers in enumerate(groups):
        taken: dict[int, int] = {}
        for layer in layers:
            size = layer.page.page_bytes
            number = taken[size] = taken.get(size, -1) + 1
            found.setdefault((size, number), []).append((index, layer))
    return list(found.values())


def in_buffers(
    groups: Sequence[Sequence[LayoutLayer]], split: Split | None, *, apart: str | None
) -> Iterator[tuple[Key, list[list[Member]]]]:
    """Yield each buffer's key and slots; `apart` is why every slot gets a buffer of its own."""
    slots = in_slots(groups)
    keys = [slot_key([key_of(layer, split) for _, layer in members]) for members in slots]
    whole = {key.page_bytes for key in keys if key.order is Order.PAGES}
    together: dict[Key, list[list[Member]]] = {}
    alone: list[tuple[Key, list[list[Member]]]] = []
    for key, members in zip(keys, slots, strict=True):
        if apart is not None or key.order is Order.ALONE:
            lone = replace(key, order=Order.ALONE, prefix=(), why=key.why or apart or "")
            alone += [(lone, [each]) for each in overlays(members)]
        else:
            joined = Key(order=Order.PAGES, page_bytes=key.page_bytes)
            mine = joined if key.page_bytes in whole else key
            together.setdefault(mine, []).append(members)
    yield from together.items()
    yield from alone


def overlays(members: Sequence[Member]) -> list[list[Member]]:
    """Part the layers of a slot that is alone: those whose blocks are the same bytes share."""
    found: dict[int, list[Member]] = {}
    for index, layer in members:
        found.setdefault(num_pieces(layer), []).append((index, layer))
    return list(found.values())


def num_pieces(layer: LayoutLayer) -> int:
    """Return the pieces in which a layer alone stores one block: 1 if blocks come first."""
    geometry = layer.geometry
    if geometry is None:
        return 1
    order = geometry.alone_order
    return prod(geometry.shape[each] or 1 for each in order[: order.index(geometry.blocks)])
