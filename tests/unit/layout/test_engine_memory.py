"""Memory that an engine laid out is described to the byte, or refused by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pytest
from kvbraid.errors import LayoutError
from kvbraid.layout import (
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    fingerprint,
    from_json,
    geometry_of,
    plan_memory,
    to_json,
)
from kvbraid.models import Heads, Page
from kvbraid.spec import SpecKind

from tests.unit.layout.engine_fakes import (
    CASES,
    FULL,
    STATE,
    WINDOW,
    Engine,
    FullAttentionSpec,
    Group,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    colours,
    group,
    latents,
    lay_out,
    mixed,
    mixed_pages,
    sinks,
    two_groups,
    uneven,
    with_states,
)


def checked(engine: Engine) -> MemoryPlan:
    """The plan, whose references have every byte that views can write, and no other."""
    plan = engine.plan()
    views = {name: view.view(np.uint8) for name, view in engine.views.items()}
    assert colours(plan, views, engine.memory) == (0, 0)
    assert from_json(to_json(plan)) == plan
    assert plan.size_bytes <= engine.memory.nbytes
    assert plan.block_bytes * 3 == engine.memory.nbytes
    return plan


@pytest.mark.parametrize(
    ("groups", "layout"),
    [(groups, layout) for groups, layouts in CASES for layout in layouts],
    ids=lambda each: getattr(each, "__name__", each),
)
@pytest.mark.parametrize("is_named", [False, True])
def test_every_layout_of_the_engine_is_explained_to_the_byte(
    groups: Callable[[], list[Group]], layout: str, is_named: bool
) -> None:
    engine = lay_out(layout, groups())
    engine.config.kv_cache_layout = layout if is_named else None
    plan = checked(engine)
    assert plan.is_cross_layer == layout.startswith("B")
    assert [len(each.references) == 1 for each in plan.groups] == [
        plan.is_cross_layer or len(each.layers) == 1 for each in plan.groups
    ]


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_kernel_blocks_are_rows_of_the_view_and_one_run_of_the_block(layout: str) -> None:
    engine = lay_out(layout, two_groups(), kernel_block=4)
    plan = checked(engine)
    assert (plan.views["f.1"].kernel_blocks, plan.views["f.1"].rows_per_block) == (4, 4)
    assert plan.groups[0].references[1].exact() == ((0, FULL.page_size_bytes),)


def test_blocks_rounded_up_end_in_bytes_of_no_layer() -> None:
    plan = checked(lay_out("BLNHC", uneven(), alignment=1024))
    assert plan.block_bytes == 2048
    assert [each.used_bytes for each in plan.groups] == [1536, 1024]


def test_heads_before_blocks_are_pieces_that_do_not_move_as_one() -> None:
    plan = lay_out("LHBNC", two_groups()).plan()
    reference = plan.groups[1].references[2]
    assert reference.whole() is None
    assert reference.exact() == ((0, 256), (768, 256))
    assert reference.block_stride == 256
    assert [buffer.shape for buffer in plan.buffers] == [(2, 3, 256)] * 3
    assert [buffer.start for buffer in plan.buffers] == [0, 1536, 3072]


def test_heads_before_layers_leave_a_layer_in_pieces_and_the_group_in_one() -> None:
    plan = lay_out("BHLNC", two_groups()).plan()
    (reference,) = plan.groups[0].references
    assert list(reference.chunks[1].pieces()) == [(256, 256), (1024, 256)]
    assert reference.exact() == ((0, 1536),)
    assert plan.buffers[0].head_slice(1, 1) == (768, 768)


def test_a_state_is_named_tensors_without_its_padding() -> None:
    plan = lay_out("BLNHC", with_states()).plan()
    assert plan.views["s.1.ssm"].shape == (3, 2, 4, 8)
    assert plan.views["s.1.ssm"].offset == 512 + 96
    assert plan.groups[1].references[0].exact() == ((0, 352), (512, 352))


def test_the_stride_of_a_single_head_means_nothing() -> None:
    """Whatever is in a view: torch keeps any number there."""
    engine = lay_out("BLNHC", latents())
    expected = engine.plan()
    view("m.1", strides=(6912, 2, 144, 2))(engine)
    assert engine.plan() == expected


def own_plan(layout: str, groups: list[Group]) -> MemoryPlan:
    """Our planner's plan of the same layers in the same layout."""
    kinds = {
        FullAttentionSpec: SpecKind.FULL_ATTENTION,
        MLAAttentionSpec: SpecKind.MLA_ATTENTION,
        SinkFullAttentionSpec: SpecKind.SINK_FULL_ATTENTION,
    }
    planned = []
    for each in groups:
        spec = each.kv_cache_spec
        kind = kinds.get(type(spec), SpecKind.SLIDING_WINDOW)
        heads = Heads(
            num=spec.num_heads,
            key_dim=spec.content,
            value_dim=0,
            dtype="float16",
            replicated=spec.num_heads == 1,
        )
        page = Page(kind=kind, block_size=spec.block_size, shape=heads)
        geometry = geometry_of(Layout[layout], heads, spec.block_size)
        layers = tuple(
            LayoutLayer(name=name, page=page, geometry=geometry) for name in each.layer_names
        )
        planned.append(LayoutGroup(kind=kind, block_size=spec.block_size, layers=layers))
    return plan_memory(planned, num_blocks=3)


@pytest.mark.parametrize(
    ("groups", "layout"),
    [
        (groups, layout)
        for groups in (two_groups, uneven, latents, sinks)
        for layout in ("BLHNC", "BLNHC", "BHLNC")
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_block_outer_layout_is_the_plan_that_our_planner_makes(
    groups: Callable[[], list[Group]], layout: str
) -> None:
    engine, own = lay_out(layout, groups()), own_plan(layout, groups())
    assert fingerprint(engine.plan()) == fingerprint(own)
    engine.config.kv_cache_layout = layout  # Which tells the strides of a single head.
    plan = engine.plan()
    assert plan.views == own.views
    assert plan.groups == own.groups
    assert plan.size_bytes == own.size_bytes


def test_layers_that_read_anothers_cache_are_aliases_wherever_they_are_named() -> None:
    engine = lay_out("BLNHC", two_groups())
    engine.views["listed"] = engine.views["w.1"].view()
    engine.config.kv_cache_groups[1].layer_names.append("listed")
    engine.views["unlisted"] = engine.views["f.2"]
    plan = engine.plan()
    assert plan.aliases == {"listed": "w.1", "unlisted": "f.2"}
    assert plan.groups[1].layers == ("w.0", "w.1", "w.2")
    assert plan.view("listed") == plan.views["w.1"]


@pytest.mark.parametrize(
    ("groups", "layout", "axes", "shape"),
    [
        (two_groups, "BLNHC", "blocks layers bytes", (3, 3, 512)),
        (uneven, "BLNHC", "blocks layers bytes", (3, 3, 512)),
        (two_groups, "BHLNC", "blocks heads layers bytes", (3, 2, 3, 256)),
        (uneven, "BHLNC", "blocks bytes", (3, 1536)),
        (latents, "BHLNC", "blocks layers bytes", (3, 3, 2304)),
        (mixed_pages, "BLNHC", "blocks bytes", (3, 5120)),
        (two_groups, "LBNHC", "blocks bytes", (3, 512)),
    ],
)
def test_a_buffers_dimensions_are_named_as_far_as_its_layers_agree(
    groups: Callable[[], list[Group]], layout: str, axes: str, shape: tuple[int, ...]
) -> None:
    buffer = lay_out(layout, groups()).plan().buffers[0]
    assert (" ".join(buffer.axes), buffer.shape) == (axes, shape)


def test_a_group_without_layers_on_this_rank_keeps_its_place() -> None:
    engine = lay_out("BLNHC", two_groups())
    engine.config.kv_cache_groups.insert(1, group(WINDOW))
    plan = engine.plan()
    assert [each.layers for each in plan.groups] == [
        ("f.0", "f.1", "f.2"),
        (),
        ("w.0", "w.1", "w.2"),
    ]
    assert plan.groups[1].references == ()
    assert from_json(to_json(plan)) == plan


def test_a_group_of_several_kinds_is_full_if_all_of_them_are() -> None:
    latent = MLAAttentionSpec(num_heads=1)
    kinds = [
        lay_out("BLNHC", [mixed(a=latent, b=other)]).plan().groups[0].kind
        for other in (latent, FULL, SinkFullAttentionSpec(), WINDOW)
    ]
    full = SpecKind.FULL_ATTENTION
    assert kinds == [SpecKind.MLA_ATTENTION, full, full, SpecKind.UNKNOWN]


def test_a_group_with_sinks_is_of_its_own_kind() -> None:
    kinds = [each.kind for each in lay_out("LBNHC", sinks()).plan().groups]
    assert kinds == [SpecKind.SINK_FULL_ATTENTION, SpecKind.SLIDING_WINDOW]


def test_a_states_tensors_are_named_by_their_places() -> None:
    dims = ((3, 16), (2, 4, 8), (5,))
    names = []
    for shapes in (dims, dims[:1], dims[1:2]):
        spec = MambaSpec(shapes=shapes, dtypes=("torch.float16",) * len(shapes))
        names.append(list(lay_out("BLNHC", [group(spec, "s")]).plan().views))
    assert names == [["s.conv", "s.ssm", "s.state_2"], ["s.conv"], ["s.ssm"]]


Break: TypeAlias = Callable[[Engine], object]


def view(name: str, *, shift: int = 0, **changes: object) -> Break:
    """Another view of the same memory in the place of a layer's."""

    def broken(engine: Engine) -> None:
        old = engine.views[name]
        start = engine.memory.__array_interface__["data"][0]
        offset = old.__array_interface__["data"][0] - start + shift
        numbers = {"shape": old.shape, "dtype": old.dtype, "strides": old.strides}
        options: dict[str, Any] = numbers | changes
        engine.views[name] = np.ndarray(buffer=engine.memory, offset=offset, **options)

    return broken


def tensor(index: int, **numbers: object) -> Break:
    def broken(engine: Engine) -> None:
        tensors = engine.config.kv_cache_tensors
        changes: dict[str, Any] = numbers
        tensors[index] = replace(tensors[index], **changes)

    return broken


def spec(changed: object) -> Break:
    return lambda engine: setattr(engine.config.kv_cache_groups[1], "kv_cache_spec", changed)


class StrangeSpec:
    """Of a kind that no plan knows."""


def in_larger_memory(engine: Engine) -> None:
    """An allocation may be longer than the config says."""
    start = engine.memory.__array_interface__["data"][0]
    engine.memory = np.zeros(2 * engine.memory.nbytes, dtype=np.uint8)
    for name, old in engine.views.items():
        offset = old.__array_interface__["data"][0] - start
        engine.views[name] = np.ndarray(old.shape, old.dtype, engine.memory, offset, old.strides)
    engine.plan()


def not_a_tensor(engine: Engine) -> None:
    views: dict[str, Any] = engine.views
    views["w.1"] = "text"


class HalfElements(SlidingWindowSpec):
    state_content_size_bytes = 15


def both(*breaks: Break) -> Break:
    return lambda engine: [each(engine) for each in breaks]


REFUSED: Final[dict[str, tuple[str, Break, str]]] = {
    "a stride changed": (
        "BLNHC",
        view("w.1", strides=(1536, 256, 16, 2)),
        r"layer w\.1: a view of shape \(3, 2, 16, 8\) with strides \(1536, 256, 16, 2\) bytes; "
        r"expected \(1536, 16, 32, 2\) as BLNHC",
    ),
    "the blocks' stride changed": (
        "LBNHC",
        view("w.1", strides=(256, 16, 32, 2)),
        r"layer w\.1: .*strides \(256, 16, 32, 2\) bytes; expected \(512, 16, 32, 2\) as LBNHC",
    ),
    "an offset shifted": (
        "BLNHC",
        view("w.1", shift=16),
        r"layer w\.1: its view starts 528 bytes into the allocation; expected 512",
    ),
    "a shape that is not the spec's": (
        "BLNHC",
        view("w.1", shape=(3, 2, 8, 8)),
        r"layer w\.1: a view of shape \(3, 2, 8, 8\); expected \(3, 2, 16, 8\)",
    ),
    "a type that is not the spec's": (
        "BLNHC",
        view("w.1", dtype="int8"),
        r"layer w\.1: elements of type int8; its spec says float16",
    ),
    "a type that no plan has": (
        "BLNHC",
        view("w.1", dtype="int16"),
        r"layer w\.1: elements of type int16; expected one of float32",
    ),
    "no tensor at all": (
        "BLNHC",
        not_a_tensor,
        r"layer w\.1: its view is a str without shape; give the tensor",
    ),
    "a layer without a view": (
        "BLNHC",
        lambda engine: engine.views.pop("w.1"),
        r"layer w\.1 has a tensor and no view",
    ),
    "a layer without a group": (
        "BLNHC",
        lambda engine: engine.config.kv_cache_groups[1].layer_names.remove("w.1"),
        r"layer w\.1 has a tensor and no group",
    ),
    "a layer without a tensor": (
        "BLNHC",
        lambda engine: engine.config.kv_cache_groups[1].layer_names.append("w.9"),
        r"layer w\.9 has no tensor, and its view is that of 0 layers \[\]; expected the view",
    ),
    "an unlisted layer whose view several groups have": (
        "BLNHC",
        lambda engine: engine.views.update({"x": engine.views["w.1"].view()}),
        r"layer x has no tensor, and its view is that of 2 layers \['f\.1', 'w\.1'\]; expected",
    ),
    "a layer in two tensors": (
        "BLNHC",
        tensor(0, layers=["f.0", "w.1", "f.2"]),
        r"layer w\.1 is in two tensors",
    ),
    "layers of one group over each other": (
        "BLNHC",
        both(tensor(1, layer_stride=0), view("w.1", shift=-512), view("w.2", shift=-1024)),
        r"layers w\.0 and w\.1 of one group overlap 0 bytes into a block",
    ),
    "a page past the end of its block": (
        "BLNHC",
        both(in_larger_memory, tensor(1, offset=512), *(view(f"w.{n}", shift=512) for n in "012")),
        r"layer w\.2: its page ends 2,048 bytes into a block of 1,536; expected it to end inside",
    ),
    "an unknown spec": (
        "BLNHC",
        spec(StrangeSpec()),
        r"layer w\.0: a StrangeSpec is not known; expected one of FullAttentionSpec",
    ),
    "content of no whole element": (
        "BLNHC",
        spec(HalfElements()),
        r"layer w\.0: 15 bytes of a token's head are no whole number of elements of type float16",
    ),
    "a state with fewer types than tensors": (
        "BLNHC",
        spec(replace(STATE, dtypes=("torch.float16",))),
        r"layer w\.0: 2 states, 1 types of states",
    ),
    "a state of an unknown type": (
        "BLNHC",
        spec(MambaSpec(shapes=((3, 4),), dtypes=("torch.complex64",))),
        r"layer w\.0: the type of conv is 'complex64'; expected one of float32",
    ),
    "a layout that is another": (
        "BLNHC",
        lambda engine: setattr(engine.config, "kv_cache_layout", "BLHNC"),
        r"layer f\.0: .*; expected \(1536, 256, 16, 2\) as BLHNC$",
    ),
    "an unknown layout": (
        "BLNHC",
        lambda engine: setattr(engine.config, "kv_cache_layout", "NHD"),
        r"layout 'NHD'; expected BLNHC, BLHNC, BHLNC, LBNHC, LBHNC, LHBNC",
    ),
    "tensors of two sizes": (
        "BLNHC",
        tensor(1, size=1),
        r"6 views, and tensors of \[1, 4608\] bytes; expected one allocation",
    ),
    "views in two allocations": (
        "BLNHC",
        lambda engine: engine.views.update({"w.1": engine.views["w.1"].copy()}),
        r"layers f\.0 and w\.1 are in two allocations",
    ),
    "an allocation that is too small": (
        "BLNHC",
        both(tensor(0, size=9_216), tensor(1, size=9_216)),
        r"layer f\.0: an allocation of 4,608 bytes; expected the config's 9,216",
    ),
    "blocks across layers that do not fill the allocation": (
        "LBNHC",
        lambda engine: setattr(engine.config, "kv_cache_layout", "BLNHC"),
        r"layer f\.0: 3 blocks of 512 bytes; expected 4,608 in all, as BLNHC has blocks across",
    ),
    "regions past the end of the allocation": (
        "LBNHC",
        both(tensor(0, size=4_000), tensor(1, size=4_000)),
        r"layer .\.2: its blocks take bytes 3,072 to 4,608 of the allocation, over the end of the "
        r"allocation at 4,000",
    ),
    "a tensor in the host's memory": (
        "BLNHC",
        tensor(1, host_resident=True),
        r"layer w\.0: its tensor is in the host's memory",
    ),
    "kernel blocks that do not divide a block's bytes": (
        "LBNHC",
        both(view("w.0", shape=(9, 2, 5, 8)), spec(SlidingWindowSpec(block_size=15))),
        r"layer w\.0: a block stride of 512 bytes; expected a multiple of 3 kernel blocks",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_explained_is_refused_by_name(case: str) -> None:
    layout, break_it, message = REFUSED[case]
    engine = lay_out(layout, two_groups())
    engine.plan()
    break_it(engine)
    with pytest.raises(LayoutError, match=message):
        engine.plan()


def test_regions_of_two_groups_that_are_neither_equal_nor_apart_are_refused() -> None:
    """Block 1 of one group would lie over block 2 of the other, which may be another request's."""
    long, short = FullAttentionSpec(num_heads=4), SlidingWindowSpec(num_heads=2)
    engine = lay_out("LBNHC", [group(long, "f.0"), group(short, "w.0", "w.1")])
    with pytest.raises(LayoutError, match=r"layer w\.0: .* bytes 0 to 1,536 .* over layer f"):
        engine.plan()
