"""Which layers share a buffer: every branch of the decision, and the cases of hybrid models."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    UnknownPage,
    decide_cross_layer,
    fingerprint,
    from_grouping,
    geometry_of,
    plan_memory,
)
from kvbraid.models import CacheLayer, Grouping, form_groups
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

HEADS = Heads(num=4, key_dim=64, value_dim=64, dtype="bfloat16")
FULL = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=HEADS)
WINDOW = replace(FULL, kind=SpecKind.SLIDING_WINDOW, window=64)
WIDE = replace(FULL, shape=replace(HEADS, num=8))
STATE = RecurrentState(
    tensors=(
        StateTensor(name="conv", dims=(3, 512), dtype="bfloat16"),
        StateTensor(name="ssm", dims=(8, 16, 16), dtype="float32"),
    )
)
MAMBA = Page(kind=SpecKind.MAMBA, block_size=16, shape=STATE, padded_bytes=FULL.page_bytes)
RING = UnknownPage(type_name="RingSpec", page_bytes=FULL.page_bytes)
ODD = Geometry(  # Heads, blocks, tokens, size: nothing that a layout has.
    shape=(4, None, 16, 128), dtype="bfloat16", order=(0, 1, 2, 3), heads=0, tokens=2
)


def layer(name: str, page: Page | UnknownPage = FULL, layout: Layout = Layout.NHD) -> LayoutLayer:
    shape = page.shape if isinstance(page, Page) else None
    if not isinstance(shape, Heads) or not isinstance(page, Page):
        return LayoutLayer(name=name, page=page)
    return LayoutLayer(name=name, page=page, geometry=geometry_of(layout, shape, page.block_size))


def group(*layers: LayoutLayer) -> LayoutGroup:
    page = layers[0].page
    kind = page.kind if isinstance(page, Page) else SpecKind.FULL_ATTENTION
    return LayoutGroup(kind=kind, block_size=16, layers=layers)


def planned(
    *groups: LayoutGroup,
    takes: ConnectorForm | None = ConnectorForm.HYBRID,
    split: Split | None = None,
) -> MemoryPlan:
    return plan_memory(groups, num_blocks=4, options=PlanOptions(takes=takes, split=split))


TWO_GROUPS = (group(layer("0"), layer("2")), group(layer("1", WINDOW), layer("3", WINDOW)))
WITH_STATES = (group(layer("0")), group(layer("1", MAMBA)))
UNKNOWN = (group(layer("0")), group(layer("1", RING)))
NO_ORDER = replace(layer("0"), geometry=replace(ODD, shape=(4, None, 16, 128)))


@pytest.mark.parametrize(
    ("takes", "groups", "answer", "why"),
    [
        (None, TWO_GROUPS, False, "no connector takes blocks"),
        (ConnectorForm.HYBRID, (), False, "there are no groups"),
        (ConnectorForm.HYBRID, TWO_GROUPS, True, "takes whole blocks of several groups"),
        (ConnectorForm.HYBRID, WITH_STATES, True, "takes whole blocks of several groups"),
        (ConnectorForm.HYBRID, UNKNOWN, False, "layer 1 keeps a RingSpec, which is not known"),
        (ConnectorForm.CROSS_LAYER, TWO_GROUPS[:1], True, "takes whole blocks of one group"),
        (ConnectorForm.CROSS_LAYER, TWO_GROUPS, False, "blocks of one group, and there are 2"),
        (ConnectorForm.CROSS_LAYER, WITH_STATES[1:], False, "layer 1 keeps no keys and values"),
        (ConnectorForm.CROSS_LAYER, UNKNOWN[1:], False, "layer 1 keeps no keys and values"),
        (ConnectorForm.CROSS_LAYER, (group(NO_ORDER),), False, "has no order with layers"),
        (
            ConnectorForm.CROSS_LAYER,
            (group(replace(layer("0"), geometry=None, unprobed="NotImplementedError")),),
            False,
            "layer 0: NotImplementedError",
        ),
        (
            ConnectorForm.CROSS_LAYER,
            (group(layer("0"), layer("1", WIDE)),),
            False,
            "the layers have several geometries",
        ),
        (ConnectorForm.PER_LAYER, TWO_GROUPS, False, "takes a view per layer"),
    ],
)
def test_the_gate_tells_whether_blocks_run_across_layers_and_why(
    takes: ConnectorForm | None, groups: Sequence[LayoutGroup], answer: bool, why: str
) -> None:
    found = decide_cross_layer(takes, groups)
    assert found.is_cross_layer is answer
    assert why in found.why
    if groups:
        plan = planned(*groups, takes=takes)
        assert (plan.is_cross_layer, plan.why) == (answer, found.why)
        if not answer:
            assert {buffer.slots for buffer in plan.buffers} == {1}


def test_an_unknown_page_warns_with_its_type_and_every_slot_falls_back() -> None:
    (warning,) = planned(*UNKNOWN).warnings
    assert "layer 1 keeps a RingSpec" in warning
    assert "describe the layer" in warning
    assert {buffer.slots for buffer in planned(*UNKNOWN).buffers} == {1}


def test_layers_of_equal_backends_share_a_buffer_and_their_groups_its_slots() -> None:
    plan = planned(*TWO_GROUPS)
    (buffer,) = plan.buffers
    assert (buffer.slots, buffer.block_bytes) == (2, 2 * FULL.page_bytes)
    assert buffer.axes == ("blocks", "layers", "bytes")
    assert [group.references[0].exact() for group in plan.groups] == [
        ((0, buffer.block_bytes),),
        ((0, buffer.block_bytes),),
    ]


def test_layers_of_unequal_pages_have_buffers_of_their_own() -> None:
    plan = planned(group(layer("0"), layer("1", WIDE), layer("2")))
    assert [(each.slots, each.block_bytes) for each in plan.buffers] == [
        (2, 2 * FULL.page_bytes),
        (1, WIDE.page_bytes),
    ]
    assert plan.block_bytes == 2 * FULL.page_bytes + WIDE.page_bytes


def test_layers_cut_by_unequal_heads_have_buffers_of_their_own() -> None:
    """Pages of one size: 4 heads of 16 tokens, and 8 heads of 8 tokens, each before layers."""
    other = Page(kind=SpecKind.FULL_ATTENTION, block_size=8, shape=replace(HEADS, num=8))
    plan = planned(group(layer("0", FULL, Layout.HND), layer("1", other, Layout.HND)))
    assert [buffer.shape for buffer in plan.buffers] == [
        (4, 4, 1, 2, 16, 128),
        (4, 8, 1, 2, 8, 128),
    ]


def test_heads_stay_in_the_page_where_sharers_of_a_slot_disagree() -> None:
    plan = planned(group(layer("0", FULL, Layout.HND)), group(layer("1", MAMBA)))
    assert plan.buffers[0].axes == ("blocks", "layers", "bytes")
    assert plan.groups[0].references[0].chunks[0].count == 1


def test_a_group_is_in_one_buffer_where_only_some_of_its_slots_have_a_state() -> None:
    full = group(*(layer(str(i), FULL, Layout.HND) for i in range(3)))
    plan = planned(full, group(layer("3", MAMBA)))
    assert [buffer.slots for buffer in plan.buffers] == [3]
    assert plan.groups[0].references[0].exact() == ((0, 3 * FULL.page_bytes),)


def test_two_caches_of_one_layer_are_named_with_their_kinds() -> None:
    caches = [CacheLayer(number=0, page=page) for page in (FULL, WINDOW)]
    caches.append(CacheLayer(number=1, page=FULL))
    grouping = Grouping(groups=form_groups(caches))
    for names, wanted in (({}, "0"), ({0: "model.layers.0"}, "model.layers.0")):
        found = [
            each.name for group in from_grouping(grouping, names=names) for each in group.layers
        ]
        assert sorted(found) == sorted(
            ["1", f"{wanted}.full_attention", f"{wanted}.sliding_window"]
        )


def test_a_layer_whose_blocks_are_not_first_is_alone_and_so_are_those_of_its_slot() -> None:
    """The window's slot is that of the odd layer; its blocks are in one piece, so it is apart."""
    odd = replace(layer("0"), geometry=ODD)
    plan = planned(group(odd, layer("2")), group(layer("1", WINDOW), layer("3", WINDOW)))
    assert [(each.slots, each.axes[0]) for each in plan.buffers] == [
        (1, "blocks"),
        (1, "pieces"),
        (1, "blocks"),
    ]
    assert "layer 0: in its backend's order blocks do not come first" in plan.buffers[1].why
    assert [each.whole() is None for each in plan.groups[0].references] == [False, True]
    assert plan.views["1"].buffer != plan.views["0"].buffer


def test_the_dimensions_of_an_ordered_layout_are_told() -> None:
    plan = planned(group(*(layer(str(i), FULL, Layout.HND) for i in range(3))))
    (buffer,) = plan.buffers
    assert buffer.axes == ("blocks", "heads", "layers", "dimension 1", "tokens", "bytes")
    assert buffer.shape == (4, 4, 3, 2, 16, 128)
    assert [buffer.axis(name) for name in ("blocks", "heads", "layers", "pieces")] == [
        0,
        1,
        2,
        None,
    ]
    assert buffer.head_slice(1, 2) == (12_288 * 1, 12_288 * 2)


def test_a_head_slice_has_no_padding_of_an_aligned_block() -> None:
    groups = [group(*(layer(str(i), FULL, Layout.HND) for i in range(3)))]
    plan = plan_memory(groups, num_blocks=4, options=PlanOptions(alignment=65_536))
    (buffer,) = plan.buffers
    assert buffer.block_bytes == 65_536
    assert buffer.head_slice(3, 1) == (3 * 12_288, 12_288)
    assert plan.groups[0].references[0].chunks[0].heads_stride == 12_288


def test_interleaved_kernel_blocks_leave_a_buffer_without_a_layers_dimension() -> None:
    """Bytes [slot * page, ...) of a block are those of several layers."""
    split = replace(layer("0"), kernel_block=8, geometry=geometry_of(Layout.NHD, HEADS, 8))
    both = group(split, replace(split, name="1"))
    assert planned(both, split=Split.INTERLEAVED).buffers[0].axes == ("blocks", "bytes")
    assert planned(both, split=Split.INTACT).buffers[0].axes == ("blocks", "layers", "bytes")


def test_a_state_beside_interleaved_kernel_blocks_in_one_group_is_refused() -> None:
    split = replace(layer("0"), kernel_block=8, geometry=geometry_of(Layout.NHD, HEADS, 8))
    mixed = group(split, layer("1", MAMBA))
    with pytest.raises(LayoutError, match=r"0 has 2, 1 has 1.*split them intact"):
        planned(mixed, split=Split.INTERLEAVED)
    planned(mixed, split=Split.INTACT)


@pytest.mark.parametrize("layout", [Layout.NHD, Layout.HND, Layout.BLHNC, Layout.BHLNC])
def test_a_model_of_one_group_keeps_the_layout_that_it_had(layout: Layout) -> None:
    """The older interface: one tensor in the backend's order with layers, blocks outermost."""
    layers = [layer(str(i), FULL, layout) for i in range(3)]
    plan = planned(group(*layers), takes=ConnectorForm.CROSS_LAYER)
    hybrid = planned(group(*layers))
    assert plan.is_cross_layer
    assert plan.buffers == hybrid.buffers
    assert fingerprint(plan) == fingerprint(hybrid)
    assert plan.groups[0].references[0].exact() == ((0, 3 * FULL.page_bytes),)


def test_a_layer_that_reads_anothers_cache_has_its_view() -> None:
    options = PlanOptions(aliases={"27": "0"})
    plan = plan_memory(TWO_GROUPS, num_blocks=4, options=options)
    assert plan.view("27") == plan.views["0"]
    assert "27" not in plan.views


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"27": "9"}, "layer 27 reads the cache of layer 9, which has no keys and values"),
        ({"27": "1"}, "layer 27 reads the cache of layer 1, which has no keys and values"),
        ({"0": "0"}, "layer 0 has a cache and reads that of 0"),
    ],
)
def test_a_layer_reads_a_cache_of_keys_and_values_and_has_none(
    aliases: dict[str, str], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        plan_memory(WITH_STATES, options=PlanOptions(aliases=aliases))


@pytest.mark.parametrize("name", ["0", "1.conv"])
def test_two_views_of_one_name_are_refused(name: str) -> None:
    with pytest.raises(LayoutError, match=rf"layer {name} is given 2 times"):
        planned(*WITH_STATES, group(layer(name)))


def test_an_alignment_is_kept_by_every_view_or_refused() -> None:
    apart = replace(layer("0", FULL, Layout.HND), alignment=8_192)
    planned(group(apart), group(replace(apart, name="1")))
    with pytest.raises(LayoutError, match="layer 1: its page starts 4,096 bytes into a block"):
        planned(group(apart, replace(apart, name="1")))
    odd = replace(layer("0"), geometry=ODD, alignment=8_192)
    with pytest.raises(LayoutError, match="the next 4,096 later"):
        planned(group(odd))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "without a name"),
        ({"kernel_block": 0}, "kernel_block is 0"),
        ({"alignment": -1}, "alignment is -1"),
        ({"page": MAMBA}, "a geometry, but no keys and values"),
        ({"page": RING}, "a geometry, but no keys and values"),
        ({"page": replace(FULL, shape=replace(HEADS, num=0))}, "a page without bytes"),
    ],
)
def test_a_layer_that_no_engine_has_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        replace(layer("0"), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (4, 4, 16, 128)}, "expected one None"),
        ({"shape": (4, None, 0, 128)}, "sizes of at least 1"),
        ({"heads": 1}, "not the blocks' 1"),
        ({"heads": 2}, "dimensions of their own"),
        ({"tokens": 4}, "among the 4 of the shape"),
        ({"order": (0, 1, 2, 2)}, "expected an order of the 4 dimensions"),
        ({"with_layers": (0, 1, 2, 3)}, "expected an order of 0"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
    ],
)
def test_a_geometry_that_describes_no_memory_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        replace(ODD, **change)


def test_uneven_groups_cut_by_heads_are_one_shorter_run_and_have_no_common_heads() -> None:
    layers = [layer(str(i), FULL, Layout.BHLNC) for i in range(5)]
    plan = planned(group(*layers[:3]), group(*layers[3:]))
    assert [each.references[0].exact() for each in plan.groups] == [
        ((0, 3 * FULL.page_bytes),),
        ((0, 2 * FULL.page_bytes),),
    ]
    assert plan.views["0"].stride[1] == 3 * plan.views["3"].stride[1] // 2
    assert plan.buffers[0].axes == ("blocks", "bytes")
    with pytest.raises(InvalidValueError, match="plan groups of equal length"):
        plan.buffers[0].head_slice(0, 1)


def test_a_plan_in_which_every_layer_is_alone_says_that_blocks_do_not_run_across_layers() -> None:
    layers = [CacheLayer(number=number, page=FULL) for number in range(2)]
    groups = from_grouping(Grouping(groups=form_groups(layers)), layout=Layout.LBHNC)
    plan = plan_memory(groups)
    assert not plan.is_cross_layer
    assert plan.why == plan.buffers[0].why != ""
