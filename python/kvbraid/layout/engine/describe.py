"""Memory that an engine laid out, described as a plan: from vLLM 0.32's config and its views.

    block-outer (B....)   one buffer: a block is the pages of a group's layers
    layer-outer (L....)   one buffer per region, in which a layer of each group keeps its blocks
                          LHBNC: per head, all blocks; so the buffer is in pieces before blocks

Invariant: config, specs and views say the same thing three times, and a plan is made only if they
agree: every shape, stride and offset of every view is checked. What cannot be explained is refused
with the layer, the value and the rule; nothing is guessed from a shape. The engine's objects are
read by the names of their fields: no engine, torch or numpy is imported.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from kvbraid.errors import LayoutError
from kvbraid.layout.engine.layers import (
    EngineLayer,
    check_config,
    is_block_outer,
    layout_of,
    read_layers,
)
from kvbraid.layout.engine.specs import group_kind
from kvbraid.layout.engine.views import EngineView, Foreign, read_view
from kvbraid.layout.plan import (
    Buffer,
    ByteRun,
    Chunk,
    MemoryPlan,
    PlannedGroup,
    Reference,
    View,
)
from kvbraid.layout.planning.buffers import LayerPlace
from kvbraid.layout.planning.geometry import Layout
from kvbraid.layout.planning.layers import LayoutLayer
from kvbraid.layout.planning.slots import Order
from kvbraid.layout.planning.views import views_of
from kvbraid.models.pages import Page
from kvbraid.models.shapes import RecurrentState

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Region:
    """A buffer's place: blocks of `block_stride` bytes one after another, `pieces` times over."""

    start: int
    block_stride: int
    pieces: int


def from_engine(config: Foreign, views: Mapping[str, Foreign]) -> MemoryPlan:
    """Describe the memory of an engine: its `KVCacheConfig`, and the views that it registers.

    Views are torch's tensors or numpy's arrays, by the layers' names. A layer that reads another's
    cache has the same view as that layer, and becomes its alias.

    Raises:
        LayoutError: Whatever config, specs and views do not agree about.
    """
    check_config(config)
    seen = {name: read_view(name, view) for name, view in views.items()}
    size_bytes = _allocation_bytes(config, seen)
    layers = read_layers(config, seen)
    named = getattr(config, "kv_cache_layout", None)
    layout = layout_of(layers.values(), size_bytes, named)
    regions = {name: _region(layer, layout) for name, layer in layers.items()}
    order = sorted(set(regions.values()))
    index = {region: number for number, region in enumerate(order)}
    _refuse_overlapping(order, regions, size_bytes, config.num_blocks)
    found = {
        name: list(_described(layer, layout, index[regions[name]], regions[name]))
        for name, layer in layers.items()
    }
    in_region = _by(lambda layer: regions[layer.name], layers.values())
    in_group = _by(lambda layer: layer.group, layers.values())
    return MemoryPlan(
        buffers=tuple(_buffer(each, layout, in_region[each]) for each in order),
        groups=tuple(
            _group(group, in_group.get(number, []), found, order)
            for number, group in enumerate(config.kv_cache_groups)
        ),
        views={chunk.name: view for pairs in found.values() for view, chunk in pairs},
        num_blocks=config.num_blocks,
        aliases=dict(_aliases(config, views, seen, layers)),
        is_cross_layer=is_block_outer(layout),
        why=f"the engine laid its memory out as {layout.name}",
    )


def _by(
    key: Callable[[EngineLayer], Key], layers: Iterable[EngineLayer]
) -> dict[Key, list[EngineLayer]]:
    """Part layers by a key, in their order."""
    found: dict[Key, list[EngineLayer]] = {}
    for layer in layers:
        found.setdefault(key(layer), []).append(layer)
    return found


def _allocation_bytes(config: Foreign, seen: Mapping[str, EngineView]) -> int:
    """Return the size of the one allocation in which all tensors and views lie."""
    sizes = sorted({tensor.size for tensor in config.kv_cache_tensors})
    if len(sizes) != 1 or not seen:
        msg = f"{len(seen)} views, and tensors of {sizes} bytes; expected one allocation for all"
        raise LayoutError(msg)
    (first, expected), *others = seen.items()
    for name, view in others:
        if view.allocation != expected.allocation:
            msg = f"layers {first} and {name} are in two allocations; expected one for all"
            raise LayoutError(msg)
    if expected.allocation_bytes < sizes[0]:
        raise LayoutError(
            f"layer {first}: an allocation of {expected.allocation_bytes:,} bytes; expected the "
            f"config's {sizes[0]:,}; give the views of this config"
        )
    return int(sizes[0])


def _aliases(
    config: Foreign,
    views: Mapping[str, Foreign],
    seen: Mapping[str, EngineView],
    layers: Mapping[str, EngineLayer],
) -> Iterator[tuple[str, str]]:
    """Yield each layer that no tensor places, and the layer whose view it has.

    Views of several groups may be equal, as groups lie over each other: then only the very same
    object, or being in the owner's group, tells whose cache it is.
    """
    groups = {
        name: index
        for index, group in enumerate(config.kv_cache_groups)
        for name in group.layer_names
    }
    with_view = _by(lambda layer: layer.view, layers.values())
    for name in dict.fromkeys([*groups, *seen]):
        if name in layers:
            continue
        owners = [
            layer.name
            for layer in (with_view.get(seen[name], []) if name in seen else [])
            if groups.get(name, layer.group) == layer.group
        ]
        owners = [owner for owner in owners if views[owner] is views[name]] or owners
        if len(owners) != 1:
            raise LayoutError(
                f"layer {name} has no tensor, and its view is that of {len(owners)} layers "
                f"{owners}; expected the view of the one layer whose cache it reads"
            )
        yield name, owners[0]


def _region(layer: EngineLayer, layout: Layout) -> Region:
    """Return the buffer in which a layer's blocks lie."""
    pieces = layer.page.heads if layout is Layout.LHBNC else 1
    start = 0 if is_block_outer(layout) else layer.start
    return Region(start=start, block_stride=layer.block_stride, pieces=pieces)


def _refuse_overlapping(
    order: Sequence[Region], regions: Mapping[str, Region], size_bytes: int, num_blocks: int
) -> None:
    """Refuse buffers that share bytes: a block would be overwritten by one of another number."""
    names = {region: name for name, region in regions.items()}
    ends = [each.start + each.block_stride * each.pieces * num_blocks for each in order]
    following = [(each.start, f"layer {names[each]}") for each in order[1:]]
    following.append((size_bytes, "the end of the allocation"))
    for region, end, (limit, what) in zip(order, ends, following, strict=True):
        if end > limit:
            raise LayoutError(
                f"layer {names[region]}: its blocks take bytes {region.start:,} to {end:,} of the "
                f"allocation, over {what} at {limit:,}; expected regions that are equal or apart"
            )


def _described(
    layer: EngineLayer, layout: Layout, buffer: int, region: Region
) -> Iterator[tuple[View, Chunk]]:
    """Yield each view of a layer with its chunk; a state has one of each per tensor."""
    offset = layer.start - region.start
    if not layer.page.tensors:
        yield _attention(layer, layout, buffer, offset)
        return
    state = RecurrentState(tensors=layer.page.tensors)
    page = Page(kind=layer.page.kind, block_size=1, shape=state)
    place = LayerPlace(
        group=layer.group,
        layer=LayoutLayer(name=layer.name, page=page),
        buffer=buffer,
        order=Order.PAGES,
        slot=0,
        num_slots=1,
        base=offset,
        block_bytes=layer.block_stride,
    )
    yield from views_of(place, None, layer.num_blocks)


def _attention(layer: EngineLayer, layout: Layout, buffer: int, offset: int) -> tuple[View, Chunk]:
    """Take over the engine's view, with the strides that dimensions of size 1 have in a page."""
    seen, ratio = layer.view, layer.kernel_blocks
    sizes = dict(zip("bhnc", seen.shape, strict=True))
    dense, step = {}, seen.element_bytes
    for axis in reversed(layout.value.replace("l", "").replace("b", "")):
        dense[axis] = step
        step *= sizes[axis]
    strides = {
        axis: found if sizes[axis] > 1 else dense.get(axis, layer.block_stride // ratio)
        for axis, found in zip("bhnc", seen.strides, strict=True)
    }
    view = View(
        buffer=buffer,
        shape=seen.shape,
        stride=tuple(each // seen.element_bytes for each in strides.values()),
        offset=offset,
        dtype=seen.dtype,
        heads=1,
        tokens=2,
        kernel_blocks=ratio,
        rows_per_block=ratio,
    )
    runs = [(sizes["c"], strides["c"]), (sizes["n"], strides["n"]), (sizes["h"], strides["h"])]
    length, count, stride = _gathered(
        layer, [(seen.element_bytes, 1), *runs, (ratio, strides["b"])]
    )
    chunk = Chunk(
        name=layer.name,
        offset=offset,
        length=length,
        count=count,
        stride=stride,
        heads_stride=strides["h"],
    )
    return view, chunk


def _gathered(layer: EngineLayer, dimensions: Iterable[ByteRun]) -> tuple[int, int, int]:
    """Join dimensions (sizes and strides) to `count` pieces of `length` bytes, `stride` apart."""
    length, count, stride = 1, 1, 0
    for size, step in sorted(dimensions, key=lambda each: each[1]):
        if size == 1:
            continue
        if count == 1 and step == length:
            length *= size
        elif count == 1 and step > length:
            count, stride = size, step
        else:
            raise LayoutError(
                f"layer {layer.name}: strides {layer.view.strides} bytes in a block of shape "
                f"{layer.view.shape[1:]}; expected pieces of one size at one distance"
            )
    return length, count, stride


def _buffer(region: Region, layout: Layout, members: Sequence[EngineLayer]) -> Buffer:
    slots = max(Counter(layer.group for layer in members).values())
    axes, shape = _axes(region, layout, members, slots)
    return Buffer(
        block_bytes=region.block_stride * region.pieces,
        slots=slots,
        axes=axes,
        shape=shape,
        why=f"the engine's {layout.name}, with {slots} layers of a group side by side",
        start=region.start,
    )


def _axes(
    region: Region, layout: Layout, members: Sequence[EngineLayer], slots: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Name a buffer's dimensions: down to the layers if all pages are equal, else blocks."""
    blocks, first = members[0].num_blocks, members[0]
    if region.pieces > 1:
        return ("pieces", "blocks", "bytes"), (region.pieces, blocks, region.block_stride)
    heads = first.page.heads if layout is Layout.BHLNC else 1
    pages = {(each.layer_stride, each.page.heads if heads > 1 else 1) for each in members}
    is_full = first.layer_stride * slots * heads == region.block_stride
    is_even = heads == 1 or {each.num_layers for each in members} == {slots}
    if not is_block_outer(layout) or len(pages) > 1 or not is_full or not is_even:
        return ("blocks", "bytes"), (blocks, region.block_stride)
    if heads > 1:
        return ("blocks", "heads", "layers", "bytes"), (blocks, heads, slots, first.layer_stride)
    return ("blocks", "layers", "bytes"), (blocks, slots, first.layer_stride)


def _group(
    group: Foreign,
    layers: Sequence[EngineLayer],
    found: Mapping[str, Sequence[tuple[View, Chunk]]],
    order: Sequence[Region],
) -> PlannedGroup:
    """Describe one group, with one reference for each buffer that it touches.

    `layers` are its layers in the order of the tensors, which is that of their bytes.
    """
    chunks: dict[int, list[Chunk]] = {}
    for layer in layers:
        for view, chunk in found[layer.name]:
            chunks.setdefault(view.buffer, []).append(chunk)
    references = tuple(
        Reference(
            buffer=index,
            block_stride=order[index].block_stride,
            chunks=tuple(mine),
            is_whole=order[index].pieces == 1,
        )
        for index, mine in sorted(chunks.items())
    )
    for reference in references:
        _refuse_shared(reference)
    return PlannedGroup(
        kind=group_kind([layer.page.kind for layer in layers]),
        block_size=group.kv_cache_spec.block_size,
        layers=tuple(name for name in group.layer_names if name in found),
        references=references,
    )


def _refuse_shared(reference: Reference) -> None:
    """Refuse layers of one group that share bytes, and bytes that belong to the next block."""
    runs = sorted((*run, chunk.name) for chunk in reference.chunks for run in chunk.pieces())
    for (offset, length, name), (limit, _, other) in pairwise(runs):
        if offset + length > limit:
            raise LayoutError(
                f"layers {name} and {other} of one group overlap {limit:,} bytes into a block; "
                "expected each to have bytes of its own"
            )
    offset, length, name = runs[-1]
    if reference.is_whole and offset + length > reference.block_stride:
        raise LayoutError(
            f"layer {name}: its page ends {offset + length:,} bytes into a block of "
            f"{reference.block_stride:,}; expected it to end inside"
        )
