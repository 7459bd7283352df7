"""From groups of layers to a plan: slots, buffers, places, views and references, in that order.

    groups --cross_layer--> one buffer per slot, or blocks across layers
           --slots--> which slots share a buffer --buffers--> where pages start --views--> plan

Invariant: everything that cannot work is refused here, before memory is allocated, with the layer
and the rule. A layer that cannot join a shared buffer is alone, and its buffer says why. Equal
input gives equal plans.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvbraid.errors import InvalidValueError, LayoutError, shortened
from kvbraid.layout.plan import (
    MIN_BLOCKS,
    NUM_BLOCKS,
    Buffer,
    Chunk,
    MemoryPlan,
    PlannedGroup,
    Reference,
    View,
    starts,
)
from kvbraid.layout.planning.buffers import LayerPlace, place_packed, place_slots
from kvbraid.layout.planning.cross_layer import ConnectorForm, decide_cross_layer
from kvbraid.layout.planning.layers import LayoutGroup, LayoutLayer, Split
from kvbraid.layout.planning.slots import Order, in_buffers, key_of
from kvbraid.layout.planning.views import kernel_blocks, views_of
from kvbraid.reading import MAX_SIZE, OFFSET, SIZE, check, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How a plan is made.

    `takes` is what the connector takes (None: no connector). `split` cuts blocks into kernel
    blocks. `packed` puts pages of several sizes into one buffer instead of one per size.
    `alignment` is the bytes that each buffer's blocks are a multiple of; whatever it adds is paid
    in every transfer. `aliases` maps layers without a cache to those whose cache they read.

    Raises:
        InvalidValueError: An alignment below 1, or what is no `ConnectorForm` or `Split`.
    """

    takes: ConnectorForm | None = ConnectorForm.HYBRID
    split: Split | None = None
    packed: bool = False
    alignment: int = 1
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        kinds = {"alignment": SIZE, "takes": ConnectorForm | None, "split": Split | None}
        check_fields(self, kinds, prefix="")


def plan_memory(
    groups: Sequence[LayoutGroup],
    *,
    num_blocks: int | None = None,
    memory_bytes: int | None = None,
    options: PlanOptions | None = None,
) -> MemoryPlan:
    """Decide where every byte of these groups' caches lies.

    `num_blocks` counts the null block. `memory_bytes` instead: as many blocks as fit, with the
    padding between buffers. Neither: a plan of one block, whose shapes have None for the blocks.

    Raises:
        LayoutError: A layer that cannot be laid out, by name; memory for fewer than 2 blocks.
        InvalidValueError: Both sizes given, or fewer than 2 blocks.
    """
    options = options or PlanOptions()
    _check(groups, options)
    decision = decide_cross_layer(options.takes, groups)
    buffers, places = _placed(groups, options, None if decision.is_cross_layer else decision.why)
    if decision.is_cross_layer and all(place.order is Order.ALONE for place in places):
        decision = replace(decision, is_cross_layer=False, why=buffers[0].why)
    _refuse_mixed_kernels(places, options.split)
    num_blocks = _num_blocks(buffers, num_blocks, memory_bytes)
    found = [(place, views_of(place, options.split, num_blocks)) for place in places]
    return MemoryPlan(
        buffers=_started(buffers, num_blocks),
        groups=tuple(_groups(groups, found, buffers)),
        views={chunk.name: view for _, pairs in found for view, chunk in pairs},
        num_blocks=num_blocks,
        aliases=dict(options.aliases),
        is_cross_layer=decision.is_cross_layer,
        why=decision.why,
        warnings=decision.warnings,
    )


def _check(groups: Sequence[LayoutGroup], options: PlanOptions) -> None:
    """Refuse no groups, names given twice, and aliases of nothing."""
    if not groups:
        raise LayoutError("no groups, so there is no memory to plan; give at least one group")
    layers = [layer for group in groups for layer in group.layers]
    views = Counter(name for layer in layers for name in layer.view_names)
    _refuse_repeated(views)
    for group in groups:  # Only in two groups may a state and keys and values have one name.
        _refuse_repeated(Counter(layer.name for layer in group.layers))
    names = {layer.name for layer in layers if layer.state is None}
    for alias, owner in options.aliases.items():
        if not alias or type(alias) is not str:
            msg = f"layer {shortened(alias)} reads the cache of layer {owner}"
            raise LayoutError(f"{msg}; its name must be a text")
        if owner not in names:
            raise LayoutError(
                f"layer {alias} reads the cache of layer {owner}, which has no keys and values; "
                "name its owner"
            )
        if alias in views:
            msg = f"layer {alias} has a cache and reads that of {owner}; leave one of them out"
            raise LayoutError(msg)


def _refuse_repeated(names: Counter[str]) -> None:
    name, times = names.most_common(1)[0]
    if times > 1:
        msg = f"layer {name} is given {times} times; give each layer a name of its own"
        raise LayoutError(msg)


def _placed(
    groups: Sequence[LayoutGroup], options: PlanOptions, apart: str | None
) -> tuple[list[Buffer], list[LayerPlace]]:
    """Place all layers: what is packed first, then slot by slot."""
    layers = [list(group.layers) for group in groups]
    buffers: list[Buffer] = []
    places: list[LayerPlace] = []
    if options.packed and apart is None:
        packed = [[each for each in mine if not _is_alone(each, options)] for mine in layers]
        if len({layer.page.page_bytes for mine in packed for layer in mine}) > 1:
            buffer, found = place_packed(packed, options.alignment)
            buffers.append(buffer)
            places += found
            layers = [[each for each in mine if _is_alone(each, options)] for mine in layers]
    for key, slots in in_buffers(layers, options.split, apart=apart):
        buffer, found = place_slots(key, slots, len(buffers), options.alignment, options.split)
        buffers.append(buffer)
        places += found
    return buffers, places


def _is_alone(layer: LayoutLayer, options: PlanOptions) -> bool:
    return key_of(layer, options.split).order is Order.ALONE


def _num_blocks(
    buffers: Sequence[Buffer], num_blocks: int | None, memory_bytes: int | None
) -> int | None:
    """Return the number of blocks, at least 2, and as many as fit into the memory given."""
    sizes = [buffer.block_bytes for buffer in buffers]
    if num_blocks is not None and memory_bytes is not None:
        raise InvalidValueError("num_blocks and memory_bytes are both given; give one of them")
    if memory_bytes is not None:
        check("memory_bytes", memory_bytes, OFFSET)
        num_blocks = memory_bytes // sum(sizes)
        while num_blocks >= MIN_BLOCKS and _end(sizes, num_blocks) > memory_bytes:
            num_blocks -= 1  # Padding between buffers is some hundred blocks of bytes at most.
        if num_blocks < MIN_BLOCKS:
            raise LayoutError(
                f"{memory_bytes:,} bytes hold {max(num_blocks, 0)} blocks of {sum(sizes):,}; at "
                f"least {MIN_BLOCKS} are needed, as block 0 is the null block; give more memory"
            )
    check("num_blocks", num_blocks, NUM_BLOCKS.or_none())
    if (end := _end(sizes, num_blocks or 1)) > MAX_SIZE:
        msg = f"{end:,} bytes for {num_blocks or 1:,} blocks; no memory has 2**63, so give less"
        raise LayoutError(msg)
    return num_blocks


def _end(sizes: Sequence[int], num_blocks: int) -> int:
    last = starts(sizes, num_blocks)[-1]
    assert last is not None
    return last + sizes[-1] * num_blocks


def _started(buffers: Sequence[Buffer], num_blocks: int | None) -> tuple[Buffer, ...]:
    found = starts([buffer.block_bytes for buffer in buffers], num_blocks)
    return tuple(
        replace(
            buffer,
            start=start,
            shape=tuple(num_blocks if each is None else each for each in buffer.shape),
        )
        for buffer, start in zip(buffers, found, strict=True)
    )


def _groups(
    groups: Sequence[LayoutGroup],
    found: Iterable[tuple[LayerPlace, list[tuple[View, Chunk]]]],
    buffers: Sequence[Buffer],
) -> Iterable[PlannedGroup]:
    """Yield each group with one reference for each buffer that it touches."""
    touched: list[dict[int, list[Chunk]]] = [{} for _ in groups]
    for place, pairs in found:
        touched[place.group].setdefault(place.buffer, []).extend(chunk for _, chunk in pairs)
    for group, by_buffer in zip(groups, touched, strict=True):
        yield PlannedGroup(
            kind=group.kind,
            block_size=group.block_size,
            layers=tuple(layer.name for layer in group.layers),
            references=tuple(
                _reference(index, buffers[index], chunks)
                for index, chunks in sorted(by_buffer.items())
            ),
        )


def _reference(index: int, buffer: Buffer, chunks: Sequence[Chunk]) -> Reference:
    is_whole = buffer.axis("pieces") is None
    return Reference(
        buffer=index,
        block_stride=buffer.block_bytes if is_whole else chunks[0].length,
        chunks=tuple(chunks),
        is_whole=is_whole,
    )


def _refuse_mixed_kernels(places: Iterable[LayerPlace], split: Split | None) -> None:
    """Refuse layers of one group that interleaved kernel blocks would lay over each other."""
    if split is not Split.INTERLEAVED:
        return
    found: dict[tuple[int, int], dict[int, str]] = {}
    for place in places:
        layer = place.layer
        ratio = 1 if layer.geometry is None else kernel_blocks(layer, split)
        found.setdefault((place.group, place.buffer), {})[ratio] = layer.name
    for ratios in found.values():
        if len(ratios) > 1:
            listed = ", ".join(f"{name} has {ratio}" for ratio, name in ratios.items())
            raise LayoutError(
                "layers of one group have several numbers of kernel blocks in a block "
                f"({listed}), which cannot be interleaved; split them intact"
            )
