"""A connector gets a pool in the best form that it and the plan support, and is told why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kvbraid.errors import InvalidValueError, LayoutError
from kvbraid.layout import (
    ConnectorForm,
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    Split,
    View,
    geometry_of,
    plan_memory,
)
from kvbraid.layout.connectors import (
    BlockDescriptors,
    BufferDimensions,
    Connector,
    LayerViews,
    OneTensor,
    Pool,
    PoolForm,
    by_layer,
    cross_layer_view,
    register,
    registration,
)
from kvbraid.layout.descriptors import Descriptors, descriptors
from kvbraid.models import EngineOptions
from kvbraid.models.pages import Page
from kvbraid.models.shapes import ELEMENT_BYTES, Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

from tests.unit.layout.worked_models import planned

HEADS = Heads(num=2, key_dim=8, value_dim=8, dtype="bfloat16")
PAGE = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=HEADS)
STATE = RecurrentState(
    tensors=(
        StateTensor(name="conv", dims=(3, 64), dtype="bfloat16"),
        StateTensor(name="ssm", dims=(2, 8, 16), dtype="bfloat16"),
    )
)
STATES = Page(kind=SpecKind.MAMBA, block_size=16, shape=STATE, padded_bytes=1_024)

ONE_STATE = replace(STATES, shape=RecurrentState(tensors=STATE.tensors[:1]), padded_bytes=None)


class ArrayPool:
    """A pool of numpy arrays, with unsigned numbers for elements."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.memory = np.arange(plan.size_bytes, dtype=np.uint64).astype(np.uint8)
        self._starts = [buffer.start or 0 for buffer in plan.buffers]
        views = {name: self.strided(view) for name, view in plan.views.items()}
        self.views: Mapping[str, Any] = views | {
            alias: views[owner] for alias, owner in plan.aliases.items()
        }

    @property
    def bases(self) -> Sequence[int]:
        return [self.memory.ctypes.data + start for start in self._starts]

    def strided(self, view: View) -> np.ndarray[Any, Any]:
        size = ELEMENT_BYTES[view.dtype]
        return np.ndarray(
            [each or 0 for each in view.shape],
            dtype=f"u{size}",
            buffer=self.memory.data,
            offset=self._starts[view.buffer] + view.offset,
            strides=[each * size for each in view.stride],
        )


def attention(name: str, layout: Layout = Layout.NHD, page: Page = PAGE) -> LayoutLayer:
    assert isinstance(page.shape, Heads)
    return LayoutLayer(name=name, page=page, geometry=geometry_of(layout, page.shape, 16))


def group(*layers: LayoutLayer) -> LayoutGroup:
    assert isinstance(layers[0].page, Page)
    return LayoutGroup(kind=layers[0].page.kind, block_size=16, layers=layers)


def dense(layout: Layout = Layout.NHD, takes: ConnectorForm = ConnectorForm.HYBRID) -> MemoryPlan:
    layers = [attention(name, layout) for name in "abc"]
    return plan_memory([group(*layers)], num_blocks=3, options=PlanOptions(takes=takes))


def hybrid() -> MemoryPlan:
    padded = Page(kind=PAGE.kind, block_size=16, shape=HEADS, padded_bytes=1_024)
    states = [LayoutLayer(name=name, page=STATES) for name in ("d", "e")]
    groups = [group(attention("a", page=padded), attention("b", page=padded)), group(*states)]
    return plan_memory(groups, num_blocks=3, options=PlanOptions(aliases={"z": "a"}))


def test_every_kind_of_connector_gets_the_best_that_the_plan_has() -> None:
    forms = {
        (takes, name): registration(plan, takes).form
        for takes in ConnectorForm
        for name, plan in {"dense": dense(), "hybrid": hybrid()}.items()
    }
    assert forms == {
        (ConnectorForm.HYBRID, "dense"): PoolForm.REFERENCES,
        (ConnectorForm.HYBRID, "hybrid"): PoolForm.REFERENCES,
        (ConnectorForm.CROSS_LAYER, "dense"): PoolForm.ONE_TENSOR,
        (ConnectorForm.CROSS_LAYER, "hybrid"): PoolForm.VIEWS,
        (ConnectorForm.PER_LAYER, "dense"): PoolForm.VIEWS,
        (ConnectorForm.PER_LAYER, "hybrid"): PoolForm.VIEWS,
    }


def test_references_of_a_plan_that_does_not_run_across_layers_say_why() -> None:
    plan = dense(takes=ConnectorForm.PER_LAYER)
    assert registration(plan, ConnectorForm.HYBRID).why == plan.why
    assert "a view per layer" in plan.why


def test_a_connector_that_supports_nothing_hybrid_is_told_so() -> None:
    taken: list[Any] = []
    chosen = register(
        hybrid(), ArrayPool(hybrid()), OneTensor(lambda *each: taken.append(each), taken.append)
    )
    assert chosen.form is PoolForm.VIEWS
    assert "the plan has 2 groups, so nothing hybrid can be one tensor" in chosen.why
    assert [sorted(views) for views in taken] == [["a", "b", "d", "e", "z"]]
    with pytest.raises(
        LayoutError, match=r"nothing hybrid.*takes none; give it register_kv_caches"
    ):
        register(hybrid(), ArrayPool(hybrid()), OneTensor(lambda *each: taken.append(each)))


def test_a_connector_of_views_gets_a_tensor_a_layer_and_a_list_for_a_state() -> None:
    taken: dict[str, Any] = {}
    plan, pool = hybrid(), ArrayPool(hybrid())
    register(plan, pool, LayerViews(taken.update))
    assert list(taken) == ["a", "b", "d", "e", "z"]
    assert taken["a"] is taken["z"] is pool.views["a"]
    assert taken["e"] == [pool.views["e.conv"], pool.views["e.ssm"]]


def test_two_layers_of_one_name_cannot_be_in_one_dictionary() -> None:
    plan = planned("falcon-h1-0.5b")  # Each layer has attention and a state.
    with pytest.raises(LayoutError, match="layer 0 has a cache of keys and values and a state"):
        by_layer(plan, plan.views)


@pytest.mark.parametrize(
    ("layout", "axes"),
    [
        (Layout.NHD, ("blocks", "layers", "dimension 0", "tokens", "heads", "dimension 4")),
        (Layout.HND, ("blocks", "heads", "layers", "dimension 1", "tokens", "dimension 4")),
        (Layout.BLHNC, ("blocks", "layers", "heads", "tokens", "dimension 3")),
        (Layout.BHLNC, ("blocks", "heads", "layers", "tokens", "dimension 3")),
    ],
)
def test_one_tensor_has_the_bytes_of_all_layers_in_the_order_of_its_axes(
    layout: Layout, axes: tuple[str, ...]
) -> None:
    plan = dense(layout, ConnectorForm.CROSS_LAYER)
    pool = ArrayPool(plan)
    taken: list[Any] = []
    chosen = register(plan, pool, OneTensor(lambda tensor, names: taken.extend((tensor, names))))
    assert chosen.form is PoolForm.ONE_TENSOR
    tensor, names = taken
    assert names == axes
    assert tensor.flags.c_contiguous
    assert tensor.nbytes == plan.size_bytes
    view = cross_layer_view(plan).view
    assert axes.index("tokens") == view.tokens
    assert axes.index("heads") == view.heads
    order = [axes.index(name) for name in _logical(plan)]
    for number, name in enumerate("abc"):
        layer = tensor.transpose(axes.index("layers"), *order)[number]
        assert np.array_equal(layer, pool.views[name])


def _logical(plan: MemoryPlan) -> list[str]:
    view = plan.views["a"]
    names = {view.blocks: "blocks", view.heads: "heads", view.tokens: "tokens"}
    return [names.get(each, f"dimension {each}") for each in range(len(view.shape))]


def test_one_tensor_of_one_layer_and_of_latents_has_a_layers_dimension() -> None:
    single = plan_memory([group(attention("a"))], num_blocks=3)
    assert cross_layer_view(single).view.shape == (3, 1, 2, 16, 2, 8)
    latent = cross_layer_view(planned("deepseek-v3"))
    assert latent.axes == ("blocks", "layers", "tokens", "dimension 2")
    assert latent.view.heads is None


def split_plan() -> MemoryPlan:
    geometry = geometry_of(Layout.NHD, HEADS, 8)
    layers = [
        LayoutLayer(name=name, page=PAGE, geometry=geometry, kernel_block=8) for name in "ab"
    ]
    options = PlanOptions(split=Split.INTERLEAVED)
    return plan_memory([group(*layers)], num_blocks=3, options=options)


def two_types(*, packed: bool) -> MemoryPlan:
    wide = Heads(num=2, key_dim=8, value_dim=8, dtype="float32")
    layers = [attention("a"), attention("b", page=replace(PAGE, shape=wide))]
    return plan_memory([group(*layers)], num_blocks=3, options=PlanOptions(packed=packed))


def uneven() -> MemoryPlan:
    plan = dense()
    moved = replace(plan.views["c"], offset=plan.views["c"].offset + 64)
    return replace(plan, views={**plan.views, "c": moved})


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (hybrid(), "the plan has 2 groups"),
        (
            dense(takes=ConnectorForm.PER_LAYER),
            r"blocks do not run across layers \(the connector takes",
        ),
        (
            plan_memory([group(LayoutLayer(name="d", page=STATES))], num_blocks=3),
            "its layers have several geometries",
        ),
        (
            plan_memory([group(LayoutLayer(name="d", page=ONE_STATE))], num_blocks=3),
            "its layers keep no keys and values",
        ),
        (split_plan(), "its blocks are cut into kernel blocks"),
        (two_types(packed=True), "its layers have several geometries"),
        (two_types(packed=False), "its layers are in 2 buffers"),
        (uneven(), "its layers are not evenly spaced"),
    ],
)
def test_layers_that_are_no_one_tensor_say_why(plan: MemoryPlan, reason: str) -> None:
    with pytest.raises(LayoutError, match=f"no one tensor has all layers: {reason}"):
        cross_layer_view(plan)


def test_a_transfer_library_gets_the_descriptors_of_the_pool() -> None:
    taken: list[Descriptors] = []
    plan, pool = hybrid(), ArrayPool(hybrid())
    chosen = register(plan, pool, BlockDescriptors(taken.append, device=1))
    assert chosen.form is PoolForm.REFERENCES
    expected = descriptors(plan, [[1], [2]], bases=pool.bases, device=1)
    assert np.array_equal(taken[0].chunks([[1], [2]]), expected)
    whole: list[Descriptors] = []
    register(plan, pool, BlockDescriptors(whole.append, how="whole"))
    assert len(whole[0].chunks([[1], [2]])) == 2


def test_a_connector_of_ones_own_needs_two_names() -> None:
    class Recorder:
        takes = ConnectorForm.HYBRID

        def register(self, plan: MemoryPlan, tensors: Pool) -> None:
            self.rows = [plan.groups[0].references, tensors.bases]

    recorder = Recorder()
    connector: Connector = recorder
    plan, pool = dense(), ArrayPool(dense())
    assert register(plan, pool, connector).form is PoolForm.REFERENCES
    assert recorder.rows == [plan.groups[0].references, pool.bases]


def test_dimensions_of_buffers_are_the_true_ones() -> None:
    ordered = planned("gpt-oss-20b", EngineOptions(num_ranks=2), layout=Layout.HND)
    assert BufferDimensions.of(ordered.buffers[0]) == BufferDimensions(
        blocks=0, layers=2, heads=1, tokens=4
    )
    assert BufferDimensions.of(dense().buffers[0]) == BufferDimensions(
        blocks=0, layers=1, heads=None, tokens=None
    )


def test_a_buffer_of_one_layer_has_no_layers_and_its_own_blocks_dimension() -> None:
    geometry = Geometry(shape=(2, None, 16, 2, 8), dtype="bfloat16", order=(0, 1, 2, 3, 4))
    alone = LayoutLayer(name="a", page=PAGE, geometry=geometry)
    plan = plan_memory([group(alone)], num_blocks=3)
    assert BufferDimensions.of(plan.buffers[0]) == BufferDimensions(
        blocks=1, layers=None, heads=None, tokens=None
    )


@pytest.mark.parametrize("layout", [Layout.HND, Layout.BHLNC])
def test_a_slice_of_heads_is_one_range_with_those_heads_of_all_layers(layout: Layout) -> None:
    plan = dense(layout)
    pool = ArrayPool(plan)
    pool.memory[:] = 0
    for name, view in plan.views.items():
        assert view.heads is not None
        block = pool.views[name][2]  # Blocks are the first dimension of both layouts.
        block[(slice(None),) * (view.heads - 1) + (1,)] = 0xFFFF
    start, length = plan.buffers[0].head_slice(1, 1)
    first = 2 * plan.block_bytes + start
    assert (pool.memory[first : first + length] == 0xFF).all()
    assert np.count_nonzero(pool.memory) == length
    assert plan.buffers[0].head_slice(0, 2) == (0, plan.block_bytes)


@pytest.mark.parametrize(
    ("plan", "first", "count", "message"),
    [
        (dense(), 0, 1, "heads do not come before layers"),
        (dense(Layout.HND), 1, 2, "2 heads from 1 on; the buffer has heads 0 to 1"),
        (dense(Layout.HND), -1, 1, "1 heads from -1 on"),
        (dense(Layout.HND), 0, 0, "0 heads from 0 on"),
    ],
)
def test_heads_that_are_no_range_are_refused(
    plan: MemoryPlan, first: int, count: int, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        plan.buffers[0].head_slice(first, count)
