"""From a layer's place to its view and its chunks.

    page in one piece     strides run through the page; block stride = bytes of a block
    heads before layers   block | head | layer | the rest: strides jump over the other layers
    interleaved           kernel block k of all layers is together: block stride / r
    intact                kernel blocks follow each other inside the page; tables are scaled
    pieces before blocks  a layer alone whose blocks are not first: strides depend on their number

Invariant: every byte that a view can touch in a block is in exactly one chunk of the view's name,
and no padding is. Views are closed formulas; tests compare them with selecting and permuting.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from kvbraid.errors import LayoutError
from kvbraid.layout.plan import Chunk, View, num_rows
from kvbraid.layout.planning.buffers import LayerPlace
from kvbraid.layout.planning.geometry import Geometry
from kvbraid.layout.planning.layers import LayoutLayer, Split, UnknownPage
from kvbraid.layout.planning.slots import Order, num_pieces
from kvbraid.models.shapes import ELEMENT_BYTES


def views_of(
    place: LayerPlace, split: Split | None, num_blocks: int | None
) -> list[tuple[View, Chunk]]:
    """Return each view of a placed layer with its chunk; a state has one of each per tensor.

    Raises:
        LayoutError: Bytes that no view of the layer's type can have, with the layer and the rule.
    """
    layer = place.layer
    if layer.state is not None:
        found = list(_state_views(place, num_blocks))
    elif layer.geometry is None:
        found = [_bytes_view(place, num_blocks)]
    elif num_pieces(layer) > 1 and place.order is Order.ALONE:
        found = [_pieces_view(place, layer.geometry, split, num_blocks)]
    else:
        found = [_attention_view(place, layer.geometry, split, num_blocks)]
    _refuse_unaligned(layer, found[0][0])
    return found


def _bytes_view(place: LayerPlace, num_blocks: int | None) -> tuple[View, Chunk]:
    """Rows of bytes: all that is known of a page without a geometry."""
    size = place.layer.page.content_bytes
    view = View(
        buffer=place.buffer,
        shape=(num_blocks, size),
        stride=(place.block_bytes, 1),
        offset=place.base,
        dtype="uint8",
    )
    return view, Chunk(name=place.layer.name, offset=place.base, length=size)


def _state_views(place: LayerPlace, num_blocks: int | None) -> Iterator[tuple[View, Chunk]]:
    assert place.layer.state is not None
    offset = place.base
    for name, tensor in zip(place.layer.view_names, place.layer.state.tensors, strict=True):
        size = ELEMENT_BYTES[tensor.dtype]
        _refuse_misaligned(name, tensor.dtype, size, offset, place.block_bytes)
        view = View(
            buffer=place.buffer,
            shape=(num_blocks, *tensor.dims),
            stride=(place.block_bytes // size, *_contiguous(tensor.dims)),
            offset=offset,
            dtype=tensor.dtype,
        )
        yield view, Chunk(name=name, offset=offset, length=tensor.size_bytes)
        offset += tensor.size_bytes


def _attention_view(
    place: LayerPlace, geometry: Geometry, split: Split | None, num_blocks: int | None
) -> tuple[View, Chunk]:
    """A view whose blocks come first, with pages in one piece or cut per head."""
    layer, size = place.layer, ELEMENT_BYTES[geometry.dtype]
    ratio = kernel_blocks(layer, split)
    kernel_bytes = geometry.num_elements * size
    intact = ratio > 1 and split is Split.INTACT
    row_bytes = kernel_bytes if intact else _divided(place, ratio)
    offset = place.base if intact else place.base // ratio
    _refuse_misaligned(layer.name, geometry.dtype, size, offset, row_bytes)
    strides = _inside(place, geometry) | {geometry.blocks: row_bytes // size}
    rows_per_block = _rows(place, kernel_bytes) if intact else ratio
    rows = num_rows(num_blocks, ratio, rows_per_block)
    view = _kernel_view(place, geometry, strides, offset, (rows, ratio, rows_per_block))
    return view, _attention_chunk(place, geometry, view, row_bytes, intact=intact)


def _kernel_view(
    place: LayerPlace,
    geometry: Geometry,
    strides: Mapping[int, int],
    offset: int,
    rows: tuple[int | None, int, int],
) -> View:
    """A view of a geometry; `rows` are all of them, kernel blocks in a block, rows per block."""
    num, ratio, per_block = rows
    return View(
        buffer=place.buffer,
        shape=tuple(num if each is None else each for each in geometry.shape),
        stride=tuple(strides[each] for each in range(len(geometry.shape))),
        offset=offset,
        dtype=geometry.dtype,
        blocks=geometry.blocks,
        heads=geometry.heads,
        tokens=geometry.tokens,
        kernel_blocks=ratio,
        rows_per_block=per_block,
    )


def _inside(place: LayerPlace, geometry: Geometry) -> dict[int, int]:
    """Return the strides inside a block, in elements, of all dimensions but the blocks'."""
    if place.order is not Order.HEADS:
        inside = [each for each in geometry.alone_order if each != geometry.blocks]
        return _strides(geometry, inside)
    before = geometry.before_layers
    rest = geometry.inside_layers
    step = place.num_slots * prod(geometry.shape[each] or 1 for each in rest)
    outer = {each: stride * step for each, stride in _strides(geometry, before).items()}
    return outer | _strides(geometry, rest)


def _attention_chunk(
    place: LayerPlace, geometry: Geometry, view: View, row_bytes: int, *, intact: bool
) -> Chunk:
    size = ELEMENT_BYTES[geometry.dtype]
    kernel_bytes = geometry.num_elements * size
    pieces = 1
    if place.order is Order.HEADS:
        pieces = prod(geometry.shape[each] or 1 for each in geometry.before_layers)
    length, count = kernel_bytes // pieces, pieces * view.kernel_blocks
    stride = length * place.num_slots if pieces > 1 else row_bytes
    if intact or (count > 1 and stride == length):
        length, count = length * count, 1
    return Chunk(
        name=place.layer.name,
        offset=view.offset,
        length=length,
        count=count,
        stride=stride if count > 1 else 0,
        heads_stride=view.heads_stride,
    )


def _pieces_view(
    place: LayerPlace, geometry: Geometry, split: Split | None, num_blocks: int | None
) -> tuple[View, Chunk]:
    """A layer alone, stored as its backend does, with something before its blocks."""
    layer, size = place.layer, ELEMENT_BYTES[geometry.dtype]
    if num_blocks is None:
        raise LayoutError(
            f"layer {layer.name}: its blocks are not its first dimension, so its strides depend "
            "on their number; plan with num_blocks or memory_bytes"
        )
    if layer.page.content_bytes != layer.page.page_bytes:
        raise LayoutError(
            f"layer {layer.name}: pages padded from {layer.page.content_bytes:,} to "
            f"{layer.page.page_bytes:,} bytes, and blocks that are not the first dimension; "
            "padding needs blocks first"
        )
    ratio = kernel_blocks(layer, split)
    rows = num_blocks * ratio
    shape = tuple(rows if each is None else each for each in geometry.shape)
    strides = _strides_of(shape, geometry.alone_order)
    pieces = num_pieces(layer)
    row_bytes = strides[geometry.blocks] * size
    view = _kernel_view(place, geometry, strides, 0, (rows, ratio, ratio))
    chunk = Chunk(
        name=layer.name,
        offset=0,
        length=row_bytes * ratio,
        count=pieces,
        stride=row_bytes * rows,
        heads_stride=view.heads_stride,
    )
    return view, chunk


def kernel_blocks(layer: LayoutLayer, split: Split | None) -> int:
    """Return the kernel blocks of one block, and check that they fill the page's content.

    Raises:
        LayoutError: A geometry that does not fill the page, or a split that cannot be.
    """
    assert layer.geometry is not None
    assert not isinstance(layer.page, UnknownPage)
    tokens = layer.page.block_size
    kernel_block = layer.kernel_block or tokens
    ratio, rest = divmod(tokens, kernel_block)
    if rest:
        raise LayoutError(
            f"layer {layer.name}: kernel blocks of {kernel_block} tokens do not divide its blocks "
            f"of {tokens}; choose a block size that is a multiple"
        )
    kernel_bytes = layer.geometry.num_elements * ELEMENT_BYTES[layer.geometry.dtype]
    if kernel_bytes * ratio != layer.page.content_bytes:
        raise LayoutError(
            f"layer {layer.name}: {ratio} kernel blocks of {kernel_bytes:,} bytes, as its backend "
            f"shapes them, are not the {layer.page.content_bytes:,} bytes of its page; give the "
            "geometry of the same heads, block and type"
        )
    if ratio > 1 and split is None:
        raise LayoutError(
            f"layer {layer.name}: blocks of {tokens} tokens for kernel blocks of {kernel_block}; "
            "say how to split them: interleaved or intact"
        )
    if ratio > 1 and layer.page.content_bytes != layer.page.page_bytes:
        raise LayoutError(
            f"layer {layer.name}: its page is padded from {layer.page.content_bytes:,} to "
            f"{layer.page.page_bytes:,} bytes, and a padded page cannot be split into kernel "
            "blocks; use blocks of the kernel's size"
        )
    return ratio


def _divided(place: LayerPlace, ratio: int) -> int:
    """Return the bytes from one kernel block to the next, if they are interleaved."""
    row_bytes, rest = divmod(place.block_bytes, ratio)
    padded = place.block_bytes != place.num_slots * place.layer.page.page_bytes
    if rest or (ratio > 1 and (place.order is Order.PACKED or padded)):
        raise LayoutError(
            f"layer {place.layer.name}: {ratio} kernel blocks cannot be interleaved in a block of "
            f"{place.block_bytes:,} bytes that is not full of equal pages; split it intact"
        )
    return row_bytes


def _rows(place: LayerPlace, kernel_bytes: int) -> int:
    """Return the kernel blocks' worth of bytes from one block to the next, if pages are intact."""
    rows, rest = divmod(place.block_bytes, kernel_bytes)
    if rest:
        raise LayoutError(
            f"layer {place.layer.name}: kernel blocks of {kernel_bytes:,} bytes do not divide the "
            f"block's {place.block_bytes:,}, so no one stride reaches them all; do not split it"
        )
    return rows


def _strides(geometry: Geometry, order: Sequence[int]) -> dict[int, int]:
    """Return the strides of dimensions that are stored in this order without gaps."""
    return _strides_of(tuple(each or 1 for each in geometry.shape), order)


def _strides_of(shape: Sequence[int], order: Sequence[int]) -> dict[int, int]:
    strides, step = {}, 1
    for each in reversed(order):
        strides[each] = step
        step *= shape[each]
    return strides


def _contiguous(dims: Sequence[int]) -> tuple[int, ...]:
    strides: Mapping[int, int] = _strides_of(dims, range(len(dims)))
    return tuple(strides[each] for each in range(len(dims)))


def _refuse_unaligned(layer: LayoutLayer, view: View) -> None:
    """Refuse a first byte, or a step to the next block, that is not as the layer asks for."""
    step = view.stride[view.blocks] * ELEMENT_BYTES[view.dtype]
    if view.offset % layer.alignment or step % layer.alignment:
        raise LayoutError(
            f"layer {layer.name}: its page starts {view.offset:,} bytes into a block and the next "
            f"{step:,} later, but the layer asks for multiples of {layer.alignment:,}; pad "
            f"its pages of {layer.page.page_bytes:,} bytes to one, or pack them"
        )


def _refuse_misaligned(name: str, dtype: str, size: int, offset: int, stride: int) -> None:
    """Refuse an offset or a block stride that is no whole number of elements."""
    for what, value in (("offset", offset), ("block stride", stride)):
        if value % size:
            raise LayoutError(
                f"{name}: its {what} of {value:,} bytes is no multiple of the {size} bytes of a "
                f"{dtype}; pad the page to a multiple of {size}"
            )
