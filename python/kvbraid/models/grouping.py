"""Grouping: which layers share a block table, in the order and sizes of the reference engine.

    all layers alike, or of one type and block size   ->  one group
    otherwise: make pages equal (pages.py), put equal layers into buckets in order of first
    appearance, and cut each bucket into groups of as many layers as the smallest bucket has:

    bucket of 5 and bucket of 2, group size 2     L0 L3 | L1 L4 | L2 -  and  F0 F1     1 free slot

Invariant: a group's layers have one kind, block size and reach; its i-th layer of n groups is
every n-th of the bucket (so that pipeline stages stay balanced). The rules are those of vLLM 0.32
(`get_kv_cache_groups`) with a layer-outer layout and no draft layers. This module reads no config:
models come in through engine_groups.py.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Final

from kvbraid.errors import TopologyError
from kvbraid.models.pages import CacheLayer, Page, unified
from kvbraid.models.shapes import RecurrentState
from kvbraid.spec import GroupSpec, SpecKind, Topology, told_apart

_KEPT_IN_FULL: Final[Mapping[SpecKind, SpecKind]] = {
    SpecKind.SLIDING_WINDOW: SpecKind.FULL_ATTENTION,
    SpecKind.SLIDING_WINDOW_MLA: SpecKind.MLA_ATTENTION,
    SpecKind.CHUNKED_LOCAL_ATTENTION: SpecKind.FULL_ATTENTION,
}
_CLOSE_BUCKETS: Final = 1.5  # Below this ratio of sizes, padding costs less than another group.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share one block table; their pages are equal, or of one type and block size."""

    layers: tuple[CacheLayer, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The layers' places in the model, in the engine's order."""
        return tuple(layer.number for layer in self.layers)

    @property
    def page(self) -> Page:
        """The first layer's page; kind, block size and reach are the same for all layers."""
        return self.layers[0].page

    @property
    def kind(self) -> SpecKind:
        """The kind of the group on the wire."""
        kinds = {layer.page.kind for layer in self.layers}
        return self.page.kind if len(kinds) == 1 else SpecKind.FULL_ATTENTION

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: the pages of all its layers."""
        return sum(layer.page.page_bytes for layer in self.layers)

    @property
    def padding_bytes(self) -> int:
        """Bytes of one block that no layer uses."""
        return sum(layer.page.page_bytes - layer.page.content_bytes for layer in self.layers)

    def spec(self) -> GroupSpec:
        """Return the group for a topology; a window that is kept in full is left out."""
        limited = not self.kind.is_full
        return GroupSpec(
            kind=self.kind,
            block_size=self.page.block_size,
            window=self.page.window if limited else None,
            chunk=self.page.chunk if limited else None,
        )

    def to_json(self) -> dict[str, object]:
        """Return the object that `kvbraid model --groups --json` prints for the group."""
        spec = self.spec()
        return {
            "kind": spec.kind.value,
            "layers": list(self.numbers),
            "block_size": spec.block_size,
            "window": spec.window,
            "chunk": spec.chunk,
            "page_bytes": [layer.page.page_bytes for layer in self.layers],
            "padding_bytes": self.padding_bytes,
            "block_bytes": self.block_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """All groups of one model on one rank, in the engine's order.

    Invariant: layer i of every group stands in slot i, and a group with fewer layers leaves the
    last slots empty. The layers of a slot use the same bytes, because a block belongs to one group
    at a time. Each page size has slots of its own; i counts the layers of that size in the group.

    The null block (block 0) has bytes like every other: kernels read it and write padding to it.
    The number of blocks counts it, and no transfer moves it.

    Raises:
        TopologyError: Groups that the engine cannot search for a common prefix.
    """

    groups: tuple[LayerGroup, ...]

    def __post_init__(self) -> None:
        """Refuse groups on which no request could run."""
        if not self.groups:
            msg = "no layer keeps a cache, so there is nothing to group; give at least one layer"
            raise TopologyError(msg)
        for index, group in enumerate(self.groups):
            size = group.page.block_size
            if group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and size != self.alignment:
                raise TopologyError(
                    f"group {index} (chunked_local_attention, layers {group.numbers[0]} to "
                    f"{group.numbers[-1]}) has blocks of {size} tokens, but all groups agree "
                    f"only every {self.alignment}; chunked layers need one block size in all "
                    "groups, so disable the hybrid cache manager or give the layers equal heads"
                )

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the shared pool: the largest group's."""
        return max(group.block_bytes for group in self.groups)

    @property
    def slots(self) -> tuple[tuple[CacheLayer, ...], ...]:
        """The layers of each slot, in the order of their groups; slots in the order of layers."""
        found: dict[tuple[int, int], list[CacheLayer]] = {}
        for group in self.groups:
            taken: Counter[int] = Counter()
            for layer in group.layers:
                size = layer.page.page_bytes
                found.setdefault((size, taken[size]), []).append(layer)
                taken[size] += 1
        return tuple(map(tuple, found.values()))

    @property
    def padding_slots(self) -> int:
        """Pages that still fit into the blocks of groups that are smaller than the largest."""
        block = self.block_bytes
        return sum((block - each.block_bytes) // each.page.page_bytes for each in self.groups)

    @property
    def alignment(self) -> int:
        """Tokens at which all groups have a block boundary."""
        return lcm(*(group.page.block_size for group in self.groups))

    @property
    def hash_block_size(self) -> int:
        """Tokens of one engine hash; every group's block is a multiple of this size."""
        return gcd(*(group.page.block_size for group in self.groups))

    @property
    def partial_hits(self) -> bool:
        """Whether hits may end inside a block, because a state's block is longer than a hash.

        Every other group must allow it too: full groups do, others only at hash granularity.
        """
        unit = self.hash_block_size
        states = [group for group in self.groups if group.kind is SpecKind.MAMBA]
        others = [group for group in self.groups if group.kind is not SpecKind.MAMBA]
        return any(group.page.block_size > unit for group in states) and all(
            group.kind.is_full or group.page.block_size == unit for group in others
        )

    def topology(self) -> Topology:
        """Return the topology from which a cache, or a fleet's index, is built."""
        return Topology(
            groups=told_apart(
                (group.spec() for group in self.groups),
                by=[(group.page.shape, group.page.padded_bytes) for group in self.groups],
            ),
            alignment=self.alignment,
            hash_block_size=self.hash_block_size,
            partial_hits=self.partial_hits,
        )


def form_groups(layers: Sequence[CacheLayer]) -> tuple[LayerGroup, ...]:
    """Split layers into groups, in the order in which the engine registers them.

    Raises:
        TopologyError: Pages that cannot be made equal.
    """
    if not layers:
        return ()
    if len(by_type(layers)) == 1:
        return (LayerGroup(layers=tuple(layers)),)
    try:
        equal = unified(layers)
    except TopologyError:
        kept_in_full = _windows_kept_in_full(layers)
        if len(by_type(kept_in_full)) > 1:
            raise
        return (LayerGroup(layers=kept_in_full),)
    return tuple(_cut(_buckets(equal)))


def kept_in_full(layers: Sequence[CacheLayer]) -> tuple[CacheLayer, ...]:
    """Keep windows and chunks for all tokens, as an engine without a hybrid cache manager does.

    They get the block size of the full layers; the layers still compute with their reach. Layers
    that form one group anyway stay as they are.

    Raises:
        TopologyError: Layers that need blocks at different times even so; or windows of several
            sizes, or chunks, which the engine refuses unless latents are beside them.
    """
    if len(by_type(layers)) < 2:
        return tuple(layers)
    sizes = {each.page.block_size for each in layers if each.page.kind.is_full}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    in_full = tuple(_in_full(each, size) if sizes else each for each in layers)
    types = by_type(in_full)
    if len(types) > 1:
        listed = ", ".join(sorted({each[0].page.kind.value for each in types}))
        raise TopologyError(
            f"layers of several types ({listed}) form no single group, which an engine without "
            "its hybrid cache manager needs; leave the manager on"
        )
    if not any(each.page.kind is SpecKind.MLA_ATTENTION for each in in_full):
        _refuse_several(in_full)
    return in_full


def _refuse_several(in_full: Sequence[CacheLayer]) -> None:
    for name in ("window", "chunk"):
        sizes = {getattr(each.page, name) for each in in_full} - {None}
        if len(sizes) > 1:
            listed = ", ".join(map(str, sorted(sizes)))
            raise TopologyError(
                f"{name}s of {listed} tokens: an engine without its hybrid cache manager takes "
                "one size in a group; leave the manager on"
            )


def _in_full(layer: CacheLayer, block_size: int | None) -> CacheLayer:
    kind = _KEPT_IN_FULL.get(layer.page.kind)
    if kind is None:
        return layer
    page = replace(layer.page, kind=kind, block_size=block_size or layer.page.block_size)
    return replace(layer, page=page)


def by_type(layers: Iterable[CacheLayer]) -> list[list[CacheLayer]]:
    """Collect layers that need the same number of blocks, of one size, at any time."""
    found: dict[object, list[CacheLayer]] = {}
    for layer in layers:
        found.setdefault((layer.page.block_size, _type_of(layer.page)), []).append(layer)
    return list(found.values())


def _type_of(page: Page) -> object:
    """Return what layers must have in common to need blocks at the same time."""
    if page.kind.is_full:
        return "full"
    state_bytes = isinstance(page.shape, RecurrentState) and page.page_bytes
    return page.kind, page.window, page.chunk, state_bytes


def _windows_kept_in_full(layers: Sequence[CacheLayer]) -> tuple[CacheLayer, ...]:
    """Keep windowed layers for all tokens, if latents prevent that pages are made equal.

    They get the block size of the full layers; the layers still compute with their window.
    """
    sizes = {each.page.block_size for each in layers if each.page.kind.is_full}
    if len(sizes) != 1:
        return tuple(layers)
    (size,) = sizes
    return tuple(
        replace(each, page=replace(each.page, kind=SpecKind.FULL_ATTENTION, block_size=size))
        if each.page.kind is SpecKind.SLIDING_WINDOW
        else each
        for each in layers
    )


def _buckets(layers: Sequence[CacheLayer]) -> list[list[CacheLayer]]:
    """Collect layers with equal pages, in order of first appearance."""
    found: dict[Page, list[CacheLayer]] = {}
    for layer in layers:
        found.setdefault(layer.page, []).append(layer)
    return list(found.values())


def _cut(buckets: Sequence[Sequence[CacheLayer]]) -> list[LayerGroup]:
    """Cut every bucket into n groups of limited size; each group takes every n-th layer."""
    sizes = [len(bucket) for bucket in buckets]
    size = max(sizes) if max(sizes) < min(sizes) * _CLOSE_BUCKETS else min(sizes)
    groups = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        groups += [LayerGroup(layers=tuple(bucket[i::count])) for i in range(count)]
    return groups
