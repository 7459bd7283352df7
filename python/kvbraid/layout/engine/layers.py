"""One layer of an engine: its spec, its place in the allocation and its view, which must agree.

    allocation   offset | + l * layer_stride: layer l | + b * block_stride: block b | heads, tokens

Invariant: a layer is in one tensor and one group, its view has the spec's shape and type and
starts at the tensor's place, and one layout of the engine explains the strides of all views.
Dimensions of size 1 have no stride, whatever a view says.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import LayoutError, shortened
from kvbraid.layout.engine.specs import EnginePage, layer_specs, read_page
from kvbraid.layout.engine.views import EngineView, Foreign, require
from kvbraid.layout.plan import NUM_BLOCKS
from kvbraid.layout.planning.geometry import Layout
from kvbraid.reading import check

LAYOUTS: Final = (
    Layout.BLNHC,
    Layout.BLHNC,
    Layout.BHLNC,
    Layout.LBNHC,
    Layout.LBHNC,
    Layout.LHBNC,
)
"""The engine's layouts. Where several explain all views, the first of them is taken."""

_CONFIG_FIELDS: Final = ("num_blocks", "kv_cache_tensors", "kv_cache_groups")
_TENSOR_FIELDS: Final = ("size", "layers", "offset", "layer_stride", "block_stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayer:
    """A layer of group `group`, one of `num_layers` in its tensor; all sizes are in bytes.

    `start` is where block 0 starts in the allocation.
    """

    name: str
    group: int
    page: EnginePage
    view: EngineView
    start: int
    layer_stride: int
    block_stride: int
    num_layers: int
    num_blocks: int

    @property
    def kernel_blocks(self) -> int:
        """Rows of the view for one block."""
        return self.view.shape[0] // self.num_blocks

    def strides(self, layout: Layout) -> tuple[int, ...]:
        """Return the strides that a layout gives to blocks, heads, tokens and content."""
        rows, heads, tokens, content = self.view.shape
        sizes = {"l": self.num_layers, "b": rows, "h": heads, "n": tokens, "c": content}
        given = {"l": self.layer_stride, "b": self.block_stride // self.kernel_blocks}
        strides: dict[str, int] = {}
        step = self.view.element_bytes
        for axis in reversed(layout.value):
            strides[axis] = given.get(axis, step)
            step = strides[axis] * sizes[axis]
        return tuple(strides[axis] for axis in "bhnc")

    def is_explained(self, layout: Layout) -> bool:
        """Whether a layout gives the view the strides that it has."""
        rows = zip(self.view.shape, self.view.strides, self.strides(layout), strict=True)
        return all(size == 1 or found == expected for size, found, expected in rows)


def check_config(config: Foreign) -> None:
    """Refuse the config of another engine, and one without blocks for requests.

    Raises:
        LayoutError: The field that is missing, or the number of blocks.
    """
    remedy = "from_engine reads the KVCacheConfig of vLLM 0.32"
    require("the config", config, _CONFIG_FIELDS, remedy)
    for tensor in config.kv_cache_tensors:
        require("a tensor of the config", tensor, _TENSOR_FIELDS, remedy)
    check("num_blocks of the config", config.num_blocks, NUM_BLOCKS, LayoutError)


def read_layers(config: Foreign, seen: Mapping[str, EngineView]) -> dict[str, EngineLayer]:
    """Return the layers that the tensors place, in the tensors' order.

    Raises:
        LayoutError: A layer without a group or a view, one that is placed twice, or one whose view
            has not the shape, type or offset that config and spec say.
    """
    layers: dict[str, EngineLayer] = {}
    for layer in _layers(config, seen):
        if layer.name in layers:
            raise LayoutError(f"layer {layer.name} is in two tensors; expected each layer in one")
        _check(layer)
        layers[layer.name] = layer
    return layers


def _layers(config: Foreign, seen: Mapping[str, EngineView]) -> Iterator[EngineLayer]:
    specs = {
        name: (index, spec)
        for index, group in enumerate(config.kv_cache_groups)
        for name, spec in layer_specs(group).items()
    }
    for tensor in config.kv_cache_tensors:
        for index, name in enumerate(tensor.layers):
            if name not in specs or name not in seen:
                missing = "view" if name in specs else "group"
                msg = f"layer {name} has a tensor and no {missing}; give the one of this config"
                raise LayoutError(msg)
            if getattr(tensor, "host_resident", False):
                msg = f"layer {name}: its tensor is in the host's memory; expected the device's"
                raise LayoutError(msg)
            group, spec = specs[name]
            yield EngineLayer(
                name=name,
                group=group,
                page=read_page(name, spec),
                view=seen[name],
                start=tensor.offset + index * tensor.layer_stride,
                layer_stride=tensor.layer_stride,
                block_stride=tensor.block_stride,
                num_layers=len(tensor.layers),
                num_blocks=config.num_blocks,
            )


def _check(layer: EngineLayer) -> None:
    """Refuse a view whose shape, type or offset is not what spec and tensor say."""
    page, view = layer.page, layer.view
    if view.dtype != page.dtype:
        msg = f"layer {layer.name}: elements of type {view.dtype}; its spec says {page.dtype}"
        raise LayoutError(msg)
    ratio = max(1, view.shape[0] // layer.num_blocks) if view.shape else 1
    tokens, rest = divmod(page.tokens, ratio)
    expected = (layer.num_blocks * ratio, page.heads, tokens, page.content)
    if rest or view.shape != expected:
        raise LayoutError(
            f"layer {layer.name}: a view of shape {view.shape}; expected {expected} from "
            f"{layer.num_blocks} blocks, and the heads, tokens and content of its spec"
        )
    if view.offset != layer.start:
        raise LayoutError(
            f"layer {layer.name}: its view starts {view.offset:,} bytes into the allocation; "
            f"expected {layer.start:,}, its tensor's offset and layer strides"
        )
    if layer.block_stride % (ratio * view.element_bytes):
        raise LayoutError(
            f"layer {layer.name}: a block stride of {layer.block_stride:,} bytes; expected a "
            f"multiple of {ratio} kernel blocks and of the {view.element_bytes} of an element"
        )


def layout_of(layers: Collection[EngineLayer], size_bytes: int, named: str | None) -> Layout:
    """Return the first layout that explains the strides of all views, or the one that is named.

    Raises:
        LayoutError: No layout does.
    """
    left = _candidates(layers, size_bytes, named)
    for layer in layers:
        before = left
        left = [each for each in before if layer.is_explained(each)]
        if not left:
            wanted = ", ".join(f"{layer.strides(each)} as {each.name}" for each in before)
            raise LayoutError(
                f"layer {layer.name}: a view of shape {layer.view.shape} with strides "
                f"{layer.view.strides} bytes; expected {wanted}"
            )
    return left[0]


def _candidates(
    layers: Collection[EngineLayer], size_bytes: int, named: str | None
) -> list[Layout]:
    """Return the layouts that may be: blocks across layers fill the allocation, others do not."""
    found = [each for each in LAYOUTS if each.name == named]
    if named is not None and not found:
        msg = f"layout {shortened(named)}; expected {', '.join(each.name for each in LAYOUTS)}"
        raise LayoutError(msg)
    other = next((x for x in layers if x.block_stride * x.num_blocks != size_bytes), None)
    found = found or [each for each in LAYOUTS if is_block_outer(each) == (other is None)]
    if other is not None and is_block_outer(found[0]):
        raise LayoutError(
            f"layer {other.name}: {other.num_blocks} blocks of {other.block_stride:,} bytes; "
            f"expected {size_bytes:,} in all, as {named} has blocks across layers"
        )
    return found


def is_block_outer(layout: Layout) -> bool:
    """Whether blocks run across layers."""
    return layout.value.startswith("b")
