"""Tensors of a plan: one allocation, shared storage, and the views that a plan describes."""

import pytest
import torch
from kvbraid.errors import InvalidValueError
from kvbraid.layout import (
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    from_grouping,
    geometry_of,
    plan_memory,
)
from kvbraid.layout.connectors import BlockDescriptors, OneTensor, register
from kvbraid.layout.descriptors import Descriptors, descriptors
from kvbraid.layout.tensors import DTYPES, Tensors, allocate
from kvbraid.models import EngineOptions, Grouping, group_config, read_config
from kvbraid.models.pages import Page
from kvbraid.models.shapes import ELEMENT_BYTES, Heads, RecurrentState
from kvbraid.spec import SpecKind

from tests.torch.colours import same
from tests.unit.fresh_process import PLANNED, blocked, fresh
from tests.unit.layout.worked_models import MODELS, planned

HEADS = Heads(num=2, key_dim=8, value_dim=8, dtype="bfloat16")
PAGE = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=HEADS)


def dense(layout: Layout, names: str = "abc", aliases: dict[str, str] | None = None) -> MemoryPlan:
    geometry = geometry_of(layout, HEADS, 16)
    layers = tuple(LayoutLayer(name=name, page=PAGE, geometry=geometry) for name in names)
    group = LayoutGroup(kind=PAGE.kind, block_size=16, layers=layers)
    return plan_memory([group], num_blocks=3, options=PlanOptions(aliases=aliases or {}))


def test_every_element_type_of_a_plan_is_one_of_torch_with_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == dict(ELEMENT_BYTES)
    assert all(str(dtype) == f"torch.{name}" for name, dtype in DTYPES.items())


def test_all_tensors_share_one_allocation_that_starts_aligned() -> None:
    plan = planned("qwen3-next-80b-a3b")
    tensors = allocate(plan, zero=True)
    assert tensors.memory.dtype == torch.int8
    assert tensors.memory.data_ptr() % 512 == 0
    assert tensors.memory.numel() >= plan.size_bytes
    assert not tensors.memory.any()
    (buffer,) = tensors.buffers
    assert buffer.shape == (4, plan.block_bytes)
    storages = {
        tensor.untyped_storage().data_ptr() for tensor in (buffer, *tensors.views.values())
    }
    assert len(storages) == 1
    for name, view in plan.views.items():
        tensor = tensors.views[name]
        assert (tuple(tensor.shape), tensor.stride()) == (view.shape, view.stride)
        assert tensor.dtype == DTYPES[view.dtype]
        assert tensor.data_ptr() == buffer.data_ptr() + view.offset


def test_buffers_start_where_the_plan_says() -> None:
    plan = two_buffers()
    tensors = allocate(plan)
    base = tensors.memory.data_ptr()
    assert tensors.bases == [base + (buffer.start or 0) for buffer in plan.buffers]
    assert [tuple(buffer.shape) for buffer in tensors.buffers] == [(3, 1_024), (3, 2_048)]
    assert tensors.views["b"].data_ptr() == tensors.bases[1]


def two_buffers() -> MemoryPlan:
    wide = Page(kind=PAGE.kind, block_size=32, shape=HEADS)
    layers = (
        LayoutLayer(name="a", page=PAGE, geometry=geometry_of(Layout.NHD, HEADS, 16)),
        LayoutLayer(name="b", page=wide, geometry=geometry_of(Layout.NHD, HEADS, 32)),
    )
    group = LayoutGroup(kind=PAGE.kind, block_size=16, layers=layers)
    return plan_memory([group], num_blocks=3)


def test_blocks_in_pieces_have_a_flat_buffer() -> None:
    plan = dense(Layout.LHBNC)
    shapes = {tuple(buffer.shape) for buffer in allocate(plan).buffers}
    assert shapes == {(3 * 1_024,)}
    assert {buffer.axes for buffer in plan.buffers} == {("pieces", "blocks", "bytes")}


def test_a_layer_that_reads_anothers_cache_has_its_tensor() -> None:
    tensors = allocate(dense(Layout.NHD, aliases={"d": "b"}))
    assert tensors.views["d"] is tensors.views["b"]


def test_a_plan_without_a_number_of_blocks_is_not_allocated() -> None:
    with pytest.raises(InvalidValueError, match="plan with num_blocks or memory_bytes"):
        allocate(plan_memory(from_one_layer()))


def from_one_layer() -> list[LayoutGroup]:
    layer = LayoutLayer(name="a", page=PAGE, geometry=geometry_of(Layout.NHD, HEADS, 16))
    return [LayoutGroup(kind=PAGE.kind, block_size=16, layers=(layer,))]


def grouping_of(name: str, options: EngineOptions) -> Grouping:
    return group_config(read_config(MODELS / f"{name}.json"), options).grouping


def as_stored(tensors: Tensors, layer: LayoutLayer, slot: int) -> torch.Tensor:
    """The backend's way: shape the buffer as it is stored, select the layer, permute back."""
    geometry = layer.geometry
    assert geometry is not None
    assert tensors.plan.num_blocks is not None
    buffer = tensors.plan.buffers[0]
    sizes = [buffer.slots, *(each or tensors.plan.num_blocks for each in geometry.shape)]
    stored = tensors.buffers[0].view(DTYPES[geometry.dtype])
    stored = stored.view([sizes[each] for each in geometry.layer_order])
    mine = stored.select(geometry.layer_order.index(0), slot)
    order = [each - 1 for each in geometry.layer_order if each != 0]
    return mine.permute([order.index(each) for each in range(len(order))])


def state_as_stored(tensors: Tensors, state: RecurrentState, slot: int) -> list[torch.Tensor]:
    """A slot of pages of bytes, cut into the state's tensors."""
    buffer = tensors.plan.buffers[0]
    pages = tensors.buffers[0].view(*tensors.buffers[0].shape[:1], buffer.slots, -1)[:, slot]
    found, begin = [], 0
    for tensor in state.tensors:
        mine = pages[:, begin : begin + tensor.size_bytes].view(DTYPES[tensor.dtype])
        found.append(mine.unflatten(1, tensor.dims))
        begin += tensor.size_bytes
    return found


@pytest.mark.parametrize(
    ("name", "options", "layout"),
    [
        ("gemma-2-2b", EngineOptions(), Layout.NHD),
        ("gpt-oss-20b", EngineOptions(), Layout.NHD),
        ("gpt-oss-20b", EngineOptions(num_ranks=2), Layout.HND),
        ("gpt-oss-20b", EngineOptions(), Layout.BLNHC),
        ("gpt-oss-20b", EngineOptions(), Layout.BLHNC),
        ("gpt-oss-20b", EngineOptions(), Layout.BHLNC),
        ("gemma-3-27b", EngineOptions(), Layout.NHD),
        ("deepseek-v3", EngineOptions(), Layout.NHD),
    ],
)
def test_views_are_what_selecting_and_permuting_gives(
    name: str, options: EngineOptions, layout: Layout
) -> None:
    groups = from_grouping(grouping_of(name, options), layout=layout)
    tensors = allocate(plan_memory(groups, num_blocks=2))
    for group in groups:
        for slot, layer in enumerate(group.layers):
            assert same(tensors.views[layer.name], as_stored(tensors, layer, slot))


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "jamba-v0.1"])
def test_states_are_the_cuts_of_a_page(name: str) -> None:
    groups = from_grouping(grouping_of(name, EngineOptions()))
    tensors = allocate(plan_memory(groups, num_blocks=2))
    compared = 0
    for group in groups:
        for slot, layer in enumerate(group.layers):
            if layer.state is not None:
                names = [f"{layer.name}.{each.name}" for each in layer.state.tensors]
                theirs = state_as_stored(tensors, layer.state, slot)
                compared += len(names)
                for mine, other in zip(names, theirs, strict=True):
                    assert same(tensors.views[mine], other)
    assert compared > 0


def test_one_tensor_of_all_layers_is_the_buffer_as_its_type() -> None:
    taken: list[torch.Tensor] = []
    plan = dense(Layout.HND)
    tensors = allocate(plan)
    register(plan, tensors, OneTensor(lambda tensor, axes: taken.append(tensor)))
    (whole,) = taken
    assert whole.is_contiguous()
    assert whole.shape == (3, 2, 3, 2, 16, 8)
    assert whole.data_ptr() == tensors.bases[0]


def test_descriptors_of_a_pool_have_its_addresses() -> None:
    taken: list[Descriptors] = []
    plan = two_buffers()
    tensors = allocate(plan)
    register(plan, tensors, BlockDescriptors(taken.append))
    rows = taken[0].chunks([[2]]).tolist()
    assert rows == [[tensors.bases[0] + 2_048, 1_024, 0], [tensors.bases[1] + 4_096, 2_048, 0]]
    assert rows == descriptors(plan, [[2]], bases=tensors.memory.data_ptr()).tolist()


def test_tensors_need_no_native_core_and_no_numpy() -> None:
    program = f"""{blocked("kvbraid._native", "numpy")}
import warnings
warnings.simplefilter("ignore")  # torch says that it finds no numpy.
{PLANNED}
from kvbraid.layout.tensors import allocate
tensors = allocate(plan, zero=True)
print(tuple(tensors.views["b"].shape), tensors.views["b"].stride())
"""
    assert fresh(program) == ["3072", "(3, 2, 16, 2, 8) (1536, 128, 8, 768, 1)"]
