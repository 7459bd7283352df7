"""Closed formulas of strides and offsets against selecting and permuting the buffer's bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from hypothesis import given, settings
from kvbraid.errors import InvalidValueError
from kvbraid.layout import LayoutGroup, LayoutLayer, MemoryPlan, Split

from tests.reference import layout_model as model
from tests.reference.layout_arrays import Bytes, Elements, allocate, arrays_of
from tests.reference.layout_strategies import Case, cases


@dataclass(frozen=True, kw_only=True)
class Stand:
    """Where a layer stands: a slot of a buffer, and the layers that it shares the buffer with."""

    buffer: int
    slot: int
    neighbours: tuple[LayoutLayer, ...]
    num_filled: int

    @property
    def is_cut(self) -> bool:
        """Whether heads, or what else all have there, come before layers."""
        geometries = [layer.geometry for layer in self.neighbours]
        found = {
            tuple(each.shape[axis] for axis in each.before_layers)
            if each is not None and each.blocks_come_first
            else ()
            for each in geometries
        }
        padded = any(each.page.content_bytes < each.page.page_bytes for each in self.neighbours)
        return len(found) == 1 and not padded and prod(size or 1 for size in found.pop()) > 1


def stands(case: Case, plan: MemoryPlan) -> dict[str, Stand]:
    """Count the slots of each page size; a buffer's slots are side by side."""
    places: dict[str, tuple[int, int, int]] = {}
    groups: dict[str, LayoutGroup] = {}
    for group in case.groups:
        taken: dict[int, int] = {}
        for layer in group.layers:
            size = layer.page.page_bytes
            number = taken[size] = taken.get(size, -1) + 1
            groups[layer.view_names[0]] = group
            places[layer.view_names[0]] = plan.views[layer.view_names[0]].buffer, size, number
    slots = sorted(set(places.values()))
    found = {}
    for name, (buffer, size, number) in places.items():
        mine = [each for each in slots if each[:2] == (buffer, size)]
        neighbours = [layer for layer in case.layers if places[layer.view_names[0]][0] == buffer]
        slot = mine.index((buffer, size, number))
        found[name] = Stand(
            buffer=buffer,
            slot=slot,
            neighbours=tuple(neighbours),
            num_filled=sum(each in neighbours for each in groups[name].layers),
        )
    return found


def modelled(
    case: Case, plan: MemoryPlan, layer: LayoutLayer, stand: Stand, memory: Bytes
) -> Iterator[Elements]:
    """Yield what each view of a layer should be."""
    buffer = plan.buffers[stand.buffer]
    if buffer.axis("pieces") is not None:
        assert layer.geometry is not None
        yield model.of_one_layer(memory, layer.geometry)
        return
    is_packed = len({each.page.page_bytes for each in stand.neighbours}) > 1
    base = stand.slot * layer.page.page_bytes
    if is_packed:  # Where pages start is the plan's to say; how they are viewed is not.
        base = plan.views[layer.view_names[0]].offset
    rows = memory.reshape(-1, buffer.block_bytes)
    content = rows[:, base : base + layer.page.content_bytes]
    if layer.state is not None:
        tensors = layer.state.tensors
        yield from (model.of_state(content, tensors, index) for index in range(len(tensors)))
    elif layer.geometry is None:
        yield content
    else:
        yield attention(case, layer, stand, rows, (base, buffer.slots, is_packed))


def attention(
    case: Case, layer: LayoutLayer, stand: Stand, rows: Bytes, place: tuple[int, int, bool]
) -> Elements:
    """What the view of a layer with blocks first should be."""
    base, num_slots, is_packed = place
    geometry = layer.geometry
    assert geometry is not None
    size = model.kernel_bytes(geometry)
    ratio = layer.page.content_bytes // size
    if case.options.split is Split.INTACT and ratio > 1:
        num_rows = (rows.size - rows.shape[1]) // size + ratio
        content = rows.reshape(-1)[base : base + num_rows * size]
        return model.in_a_page(content.reshape(num_rows, size), geometry)
    rows = rows.reshape(len(rows) * ratio, -1)
    is_together = num_slots > 1 and case.options.split is not Split.INTACT and not is_packed
    if is_together and stand.is_cut:
        is_split = any(each.is_split for each in stand.neighbours)
        filled = num_slots if is_split else stand.num_filled
        return model.among_layers(rows, geometry, stand.slot, filled)
    return model.in_a_page(rows[:, base // ratio : base // ratio + size], geometry)


@settings(max_examples=3 * settings().max_examples)
@given(case=cases())
def test_views_are_those_of_selecting_a_layer_and_permuting(case: Case) -> None:
    try:
        plan = case.plan()
    except InvalidValueError:
        return
    buffers = allocate(plan)
    arrays = arrays_of(plan, buffers)
    for layer in case.layers:
        stand = stands(case, plan)[layer.view_names[0]]
        wanted = modelled(case, plan, layer, stand, buffers[stand.buffer])
        for name, expected in zip(layer.view_names, wanted, strict=True):
            assert model.same_place(arrays[name], expected), name
