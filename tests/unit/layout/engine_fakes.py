"""An engine of our own that lays memory out as vLLM 0.32 does, in numpy: one allocation, views.

Views are made by reshaping, slicing and transposing the allocation, never from strides; tensors
have the numbers that the engine writes down. Classes have the names and fields of the engine's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Final

import numpy as np
from kvbraid.layout import MemoryPlan, from_engine
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(kw_only=True)
class AttentionSpec:
    block_size: int = 16
    num_heads: int = 2
    content: int = 8
    dtype: str = "torch.float16"
    page_size_padded: int | None = None

    @property
    def element(self) -> int:
        return np.dtype(self.dtype.removeprefix("torch.")).itemsize

    @property
    def num_states(self) -> int:
        return self.block_size

    @property
    def state_content_size_bytes(self) -> int:
        return self.content * self.element

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.block_size, self.content

    @property
    def used(self) -> int:
        return prod(self.shape) * self.element

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or self.used


class FullAttentionSpec(AttentionSpec):
    pass


class SlidingWindowSpec(AttentionSpec):
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SinkFullAttentionSpec(FullAttentionSpec):
    pass


@dataclass(kw_only=True)
class MambaSpec:
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    block_size: int = 16
    page_size_padded: int | None = None
    dtype: ClassVar[str] = "int8"  # Of its views.

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, 1, self.used

    @property
    def used(self) -> int:
        sizes = [np.dtype(each.removeprefix("torch.")).itemsize for each in self.dtypes]
        return sum(prod(shape) * size for shape, size in zip(self.shapes, sizes, strict=True))

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or self.used


Spec = AttentionSpec | MambaSpec


@dataclass(kw_only=True)
class UniformTypeKVCacheSpecs:
    kv_cache_specs: dict[str, Spec]
    block_size: int = 16


@dataclass(kw_only=True)
class Tensor:
    size: int
    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0
    host_resident: bool = False


@dataclass(kw_only=True)
class Group:
    layer_names: list[str]
    kv_cache_spec: Any


@dataclass(kw_only=True)
class Config:
    num_blocks: int
    kv_cache_tensors: list[Tensor]
    kv_cache_groups: list[Group]
    kv_cache_layout: str | None = None


@dataclass(kw_only=True)
class Engine:
    """A config, its allocation (bytes), and the views that the engine registers."""

    config: Config
    memory: Array
    views: dict[str, Array] = field(default_factory=dict)

    def plan(self) -> MemoryPlan:
        return from_engine(self.config, self.views)


def group(spec: Spec, *names: str) -> Group:
    return Group(layer_names=list(names), kv_cache_spec=spec)


def mixed(block_size: int = 16, **specs: Spec) -> Group:
    spec = UniformTypeKVCacheSpecs(kv_cache_specs=specs, block_size=block_size)
    return Group(layer_names=list(specs), kv_cache_spec=spec)


def lay_out(
    layout: str,
    groups: Sequence[Group],
    *,
    num_blocks: int = 3,
    kernel_block: int | None = None,
    alignment: int = 1,
) -> Engine:
    """Allocate memory and place all layers: the groups from byte 0, each over the others.

    `kernel_block` splits layer-outer blocks of attention; `alignment` rounds block-outer ones up.
    """
    is_block_outer = layout.startswith("B")
    sizes = [sum(page * len(names) for page, _, names in _parts(each)) for each in groups]
    block_bytes = -(-max(sizes) // alignment) * alignment
    memory = np.zeros((num_blocks, block_bytes), dtype=np.uint8)
    config = Config(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=list(groups))
    engine = Engine(config=config, memory=memory.reshape(-1))
    for each in groups:
        base = 0
        for page, spec, names in _parts(each):
            if is_block_outer:
                end = base + page * len(names)
                views, steps = _block_outer(layout, memory[:, base:end], spec, len(names))
            else:
                end = base + page * len(names) * num_blocks
                region = engine.memory[base:end].reshape(len(names), num_blocks, page)
                views, steps = _layer_outer(layout, region, spec, kernel_block)
            config.kv_cache_tensors.append(
                Tensor(
                    size=memory.nbytes,
                    layers=list(names),
                    layer_stride=steps[0],
                    block_stride=steps[1],
                    offset=base,
                )
            )
            dtype = spec.dtype.removeprefix("torch.")
            engine.views |= {
                name: view.view(dtype) for name, view in zip(names, views, strict=True)
            }
            base = end
    return engine


def _parts(each: Group) -> list[tuple[int, Spec, list[str]]]:
    """Page, spec and layers of each spec of a group, in order of appearance."""
    spec = each.kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return [(spec.page_size_bytes, spec, each.layer_names)]
    parts: list[tuple[int, Spec, list[str]]] = []
    for name, own in spec.kv_cache_specs.items():
        found = next((names for _, other, names in parts if other == own), None)
        if found is None:
            parts.append((own.page_size_bytes, own, [name]))
        else:
            found.append(name)
    return parts


def _layer_outer(
    layout: str, region: Array, spec: Spec, kernel_block: int | None
) -> tuple[Array, tuple[int, int]]:
    num_layers, num_blocks, page = region.shape
    ratio = 1 if kernel_block is None else spec.block_size // kernel_block
    sizes = _sizes(spec, num_layers, num_blocks, ratio)
    stride = sizes["N"] * sizes["C"] if layout == "LHBNC" else page
    inside = region if layout == "LHBNC" else region[..., : spec.used]
    return _shaped(inside, layout, sizes), (page * num_blocks, stride)


def _block_outer(
    layout: str, blocks: Array, spec: Spec, num_layers: int
) -> tuple[Array, tuple[int, int]]:
    """`blocks`: the bytes of the spec's layers in each block."""
    num_blocks, page = len(blocks), spec.page_size_bytes
    sizes = _sizes(spec, num_layers, num_blocks, 1)
    stride = sizes["N"] * sizes["C"]
    if layout != "BHLNC" or sizes["H"] == 1:
        stride = page
        blocks = blocks.reshape(num_blocks, num_layers, page)[..., : spec.used]
    return _shaped(blocks, layout, sizes), (stride, blocks.strides[0])


def _sizes(spec: Spec, num_layers: int, num_blocks: int, ratio: int) -> dict[str, int]:
    heads, tokens, _ = spec.shape
    content = spec.used // (heads * tokens)
    return {
        "L": num_layers, "B": num_blocks * ratio, "H": heads, "N": tokens // ratio, "C": content
    }  # fmt: skip


def _shaped(memory: Array, order: str, sizes: Mapping[str, int]) -> Array:
    """Give bytes the dimensions of `order`, and order them as layers, blocks, heads, tokens."""
    found = memory.reshape(*(sizes[axis] for axis in order))
    return found.transpose([order.index(axis) for axis in "LBHNC"])


def colours(plan: MemoryPlan, views: Mapping[str, Array], memory: Array) -> tuple[int, int]:
    """Write a colour of its own into each layer's blocks, group by group; read by references.

    Returns the bytes that a view wrote and no reference has, and those that a reference has and
    the layer did not write. Views and memory are bytes.
    """
    assert plan.num_blocks is not None
    missed = foreign = 0
    for planned in plan.groups:
        memory[:] = 0
        colour: dict[tuple[str, int], int] = {}
        for name in planned.layers:
            view = views[name]
            rows = view.shape[0] // plan.num_blocks
            for block in range(plan.num_blocks):
                colour[name, block] = 1 + len(colour) % 255
                view[block * rows : (block + 1) * rows] = colour[name, block]
        named = np.zeros(memory.shape, dtype=bool)
        for reference in planned.references:
            start = plan.buffers[reference.buffer].start
            assert start is not None
            for chunk in reference.chunks:
                name = (
                    chunk.name if chunk.name in planned.layers else chunk.name.rpartition(".")[0]
                )
                for block in range(plan.num_blocks):
                    for offset, length in chunk.pieces():
                        first = start + block * reference.block_stride + offset
                        run = slice(first, first + length)
                        foreign += int((memory[run] != colour[name, block]).sum())
                        named[run] = True
        missed += int((memory[~named] != 0).sum())
    return missed, foreign


LAYOUTS: Final = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
COMPACT: Final = ["LBHNC", "LBNHC", "BLHNC", "BLNHC"]
FULL, WINDOW = FullAttentionSpec(), SlidingWindowSpec()
STATE = MambaSpec(
    shapes=((3, 16), (2, 4, 8)), dtypes=("torch.float16", "torch.float32"), page_size_padded=512
)


def two_groups() -> list[Group]:
    return [group(FULL, "f.0", "f.1", "f.2"), group(WINDOW, "w.0", "w.1", "w.2")]


def uneven() -> list[Group]:
    return [group(FULL, "f.0", "f.1", "f.2"), group(WINDOW, "w.0", "w.1")]


def with_states() -> list[Group]:
    return [group(FULL, "f.0", "f.1"), group(STATE, "s.0", "s.1"), group(STATE, "s.2")]


def padded() -> list[Group]:
    short = SlidingWindowSpec(num_heads=1, content=24, page_size_padded=1024)
    long = FullAttentionSpec(num_heads=4)
    return [group(long, "f.0", "f.1"), group(short, "w.0", "w.1")]


def latents() -> list[Group]:
    return [group(MLAAttentionSpec(num_heads=1, content=72), "m.0", "m.1", "m.2")]


def sinks() -> list[Group]:
    return [group(SinkFullAttentionSpec(), "s.0", "s.1"), group(WINDOW, "w.0", "w.1")]


def mixed_pages() -> list[Group]:
    long, short = MLAAttentionSpec(num_heads=1, content=72), MLAAttentionSpec(num_heads=1)
    return [mixed(a=long, b=short, c=long, d=short)]


CASES: Final[list[tuple[Callable[[], list[Group]], list[str]]]] = [
    (two_groups, LAYOUTS),
    (uneven, LAYOUTS),
    (latents, LAYOUTS),
    (sinks, LAYOUTS),
    (with_states, COMPACT),
    (padded, COMPACT),
    (mixed_pages, COMPACT),
]
