"""The worked models: bytes, strides and runs that were found without this package's arithmetic.

`layout/worked_models.json` was worked out by an independent implementation of the layout (the
dimensions of Mamba-1's convolution are those that vLLM's own function gives since), and
`layout/engine_plans.json` for vLLM 0.33's own planner, group order aside. A view's numbers are
those of slot 0; each later slot starts `step` bytes after the one before. Tensors are rows of
number of layers, bytes between layers, bytes between blocks, first byte.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.layout import (
    ConnectorForm,
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    Split,
    from_grouping,
    geometry_of,
    plan_memory,
)
from kvbraid.models import (
    CacheLayer,
    EngineOptions,
    Grouping,
    form_groups,
    group_config,
    packed_groups,
    read_config,
)
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.spec import SpecKind

from tests.reference.layout_arrays import covered

HERE: Final = Path(__file__).parent / "layout"
MODELS: Final = Path(__file__).parents[1] / "fixtures" / "models"
WORKED: Final[dict[str, Any]] = json.loads((HERE / "worked_models.json").read_text())
ENGINE: Final[dict[str, Any]] = json.loads((HERE / "engine_plans.json").read_text())

Groups = tuple[LayoutGroup, ...]
BF16_STATES: Final = EngineOptions(state_dtype="bfloat16")
BLOCKS_OF_64: Final = EngineOptions(block_size=64, kernel_block_size=64)
KERNEL_BLOCK: Final = Geometry(
    shape=(None, 2, 32, 2, 256),
    dtype="bfloat16",
    order=(0, 1, 2, 3, 4),
    with_layers=(1, 0, 2, 3, 4, 5),
    heads=3,
    tokens=2,
)
"""A backend that views 32 tokens at a time, blocks before keys and values."""


def model(
    name: str, options: EngineOptions | None = None, layout: Layout = Layout.NHD
) -> Callable[[], Groups]:
    """The groups of a published config."""

    def groups() -> Groups:
        config = read_config(MODELS / f"{name}.json")
        return from_grouping(
            group_config(config, options or EngineOptions()).grouping, layout=layout
        )

    return groups


def attention(num: int, dim: int, block_size: int, *, padded_bytes: int | None = None) -> Page:
    heads = Heads(num=num, key_dim=dim, value_dim=dim, dtype="bfloat16")
    return Page(
        kind=SpecKind.FULL_ATTENTION,
        block_size=block_size,
        shape=heads,
        padded_bytes=padded_bytes,
    )


def latent(dim: int, dtype: str) -> Page:
    heads = Heads(num=1, key_dim=dim, value_dim=0, dtype=dtype, replicated=True)
    return Page(kind=SpecKind.MLA_ATTENTION, block_size=64, shape=heads)


def alike(name: str, page: Page, count: int, layout: Layout = Layout.NHD) -> LayoutGroup:
    """A group of equal layers."""
    assert isinstance(page.shape, Heads)
    geometry = geometry_of(layout, page.shape, page.block_size)
    layers = tuple(
        LayoutLayer(name=f"{name}.{i}", page=page, geometry=geometry) for i in range(count)
    )
    return LayoutGroup(kind=page.kind, block_size=page.block_size, layers=layers)


def in_one_group() -> Groups:
    """All layers of gemma-2-2b, as without a hybrid cache manager."""
    groups = model("gemma-2-2b")()
    layers = tuple(layer for group in groups for layer in group.layers)
    return (replace(groups[0], layers=layers),)


def split_models() -> Groups:
    """Qwen3-Next with attention blocks of 544 tokens in kernel blocks of 32."""

    def split(layer: LayoutLayer) -> LayoutLayer:
        if layer.heads is None:
            return layer
        return replace(layer, geometry=KERNEL_BLOCK, kernel_block=32)

    groups = model("qwen3-next-80b-a3b", BF16_STATES)()
    return tuple(replace(each, layers=tuple(map(split, each.layers))) for each in groups)


CASES: Final[Mapping[str, tuple[Callable[[], Groups], PlanOptions]]] = {
    "gemma-2-2b": (model("gemma-2-2b"), PlanOptions()),
    "gemma-2-2b in one group": (in_one_group, PlanOptions()),
    "gpt-oss-20b": (model("gpt-oss-20b"), PlanOptions()),
    "gpt-oss-20b on two ranks, heads first": (
        model("gpt-oss-20b", EngineOptions(num_ranks=2), Layout.HND),
        PlanOptions(),
    ),
    "two block sizes, one page size": (
        lambda: (alike("a", attention(8, 64, 32), 6), alike("b", attention(16, 64, 16), 6)),
        PlanOptions(),
    ),
    "gemma-3-27b": (model("gemma-3-27b"), PlanOptions()),
    "deepseek-v3": (model("deepseek-v3", BLOCKS_OF_64), PlanOptions()),
    "deepseek-v2-lite": (lambda: (alike("mla", latent(576, "bfloat16"), 27),), PlanOptions()),
    "deepseek-v3 with packed latents": (
        model("deepseek-v3", replace(BLOCKS_OF_64, cache_dtype="fp8_ds_mla")),
        PlanOptions(),
    ),
    "llama-3.1-8b with scales per head": (
        model("llama-3.1-8b", EngineOptions(cache_dtype="fp8_per_token_head"), Layout.BLHNC),
        PlanOptions(),
    ),
    "qwen3-next": (model("qwen3-next-80b-a3b", BF16_STATES), PlanOptions()),
    "qwen3-next, kernel blocks interleaved": (
        split_models,
        PlanOptions(split=Split.INTERLEAVED),
    ),
    "qwen3-next, kernel blocks intact": (split_models, PlanOptions(split=Split.INTACT)),
    "qwen3-next, heads first": (
        model("qwen3-next-80b-a3b", BF16_STATES, Layout.HND),
        PlanOptions(),
    ),
    "qwen3-next with states in float32": (
        model("qwen3-next-80b-a3b", EngineOptions(state_dtype="float32")),
        PlanOptions(),
    ),
    "jamba-v0.1": (model("jamba-v0.1"), PlanOptions()),
    "padded attention": (
        lambda: (
            alike("a", attention(2, 96, 16, padded_bytes=16_384), 3),
            alike("b", attention(4, 64, 16), 3),
        ),
        PlanOptions(),
    ),
}


def kind_of(name: str, views: Mapping[str, Any]) -> str:
    """Return under which name a view's numbers were written down."""
    first, last = name.split(".")[0], name.split(".")[-1]
    return next((each for each in (last, first) if each in views), "attention")


@pytest.mark.parametrize("case", CASES)
def test_a_worked_model_has_the_bytes_runs_and_views_that_were_worked_out(case: str) -> None:
    wanted = WORKED[case]
    groups, options = CASES[case]
    plan = plan_memory(groups(), num_blocks=wanted["num_blocks"], options=options)
    assert plan.block_bytes == wanted["block_bytes"]
    assert [buffer.slots for buffer in plan.buffers] == [wanted["slots"]]
    runs = [[list(run) for run in group.references[0].exact()] for group in plan.groups]
    assert sorted(runs) == sorted(wanted["groups"])
    for group in plan.groups:
        slots: dict[str, int] = {}
        for chunk in group.references[0].chunks:
            kind = kind_of(chunk.name, wanted["views"])
            numbers, view = wanted["views"][kind], plan.views[chunk.name]
            slot = slots[kind] = slots.get(kind, -1) + 1
            assert list(view.shape) == numbers["shape"]
            assert list(view.stride) == numbers["stride"]
            assert view.dtype == numbers["dtype"]
            assert view.offset == numbers["first"] + slot * numbers["step"]


def test_every_worked_model_has_a_test() -> None:
    assert list(CASES) == list(WORKED)


@pytest.mark.parametrize("case", CASES)
def test_every_byte_of_a_worked_model_is_its_views(case: str) -> None:
    groups, options = CASES[case]
    found = covered(plan_memory(groups(), num_blocks=2, options=options))
    assert (found.missed, found.foreign) == (0, 0)


LATENT, INDEX = latent(576, "uint8"), latent(132, "uint8")
MIXED: Final = tuple(
    CacheLayer(number=number, page=page) for number, page in enumerate([LATENT] * 6 + [INDEX] * 6)
)


def sparse(layout: Layout) -> Groups:
    """Six layers of latents with an index each, as DeepSeek's sparse attention keeps them."""
    form = form_groups if layout is Layout.LBHNC else packed_groups
    return from_grouping(Grouping(groups=form(MIXED)), layout=layout)


def mixed(layout: Layout) -> Groups:
    """Gemma 4: 50 windows of 16 heads of 256, and 10 full layers of 4 heads of 512."""
    return model("gemma-4-31b", EngineOptions(packed=layout is not Layout.LBHNC), layout)()


BY_LAYOUT: Final[Mapping[str, Callable[[Layout], Groups]]] = {
    "gemma-2-2b": lambda layout: model("gemma-2-2b", layout=layout)(),
    "gpt-oss-20b TP1": lambda layout: model("gpt-oss-20b", layout=layout)(),
    "gpt-oss-20b TP2": lambda layout: model("gpt-oss-20b", EngineOptions(num_ranks=2), layout)(),
    "gemma-3-27B": lambda layout: model("gemma-3-27b", layout=layout)(),
    "DeepSeek-V3 MLA": lambda layout: model("deepseek-v3", BLOCKS_OF_64, layout)(),
    "Qwen3-Next": lambda layout: model("qwen3-next-80b-a3b", BF16_STATES, layout)(),
    "Jamba": lambda layout: model("jamba-v0.1", layout=layout)(),
    "gemma-4-like mixed pages": mixed,
    "DSA 576+132": sparse,
}
ENGINE_CASES: Final = [(name, layout) for name in ENGINE for layout in ENGINE[name]]


def first_bytes(plan: MemoryPlan, index: int) -> set[tuple[int, int]]:
    """The first byte in the allocation of each view of a group, and the bytes between blocks."""
    found = set()
    for reference in plan.groups[index].references:
        start = plan.buffers[reference.buffer].start
        assert start is not None
        found |= {(start + chunk.offset, reference.block_stride) for chunk in reference.chunks}
    return found


@pytest.mark.parametrize(("name", "layout"), ENGINE_CASES)
def test_a_plan_has_the_blocks_and_strides_of_the_engines_planner(name: str, layout: str) -> None:
    wanted = ENGINE[name][layout]
    groups = BY_LAYOUT[name](Layout(layout))
    plan = plan_memory(groups, num_blocks=2, options=PlanOptions(packed=True))
    assert plan.block_bytes == wanted["block_bytes"]
    assert sorted(group.used_bytes for group in plan.groups) == sorted(wanted["used_bytes"])
    assert sorted(group.num_runs for group in plan.groups) == sorted(wanted["runs"])
    views = [first_bytes(plan, index) for index in range(len(plan.groups))]
    for num, step, block_stride, first in wanted["tensors"]:
        places = {(first + slot * step, block_stride) for slot in range(num)}
        assert any(places <= each for each in views), (num, step, block_stride, first)


def test_the_engines_layouts_were_worked_out_for_every_model() -> None:
    assert list(ENGINE) == list(BY_LAYOUT)
    assert {layout for _, layout in ENGINE_CASES} == {"blnhc", "blhnc", "bhlnc", "lbhnc"}


@pytest.mark.parametrize("layout", [Layout.LBNHC, Layout.LBHNC, Layout.LHBNC])
def test_where_layers_come_first_every_slot_has_a_buffer_and_says_so(layout: Layout) -> None:
    plan = plan_memory(model("gpt-oss-20b", layout=layout)(), num_blocks=2)
    assert [buffer.slots for buffer in plan.buffers] == [1] * 12
    assert all("blocks do not come first" in buffer.why for buffer in plan.buffers)
    whole = layout is not Layout.LHBNC
    assert all((each.whole() is not None) is whole for each in plan.groups[0].references)


def test_without_a_connector_that_takes_blocks_every_slot_has_a_buffer() -> None:
    options = PlanOptions(takes=ConnectorForm.PER_LAYER)
    plan = plan_memory(model("gemma-3-27b")(), num_blocks=2, options=options)
    assert [buffer.block_bytes for buffer in plan.buffers] == [131_072] * 10
    assert sorted(group.num_runs for group in plan.groups) == [8, 8, 9, 9, 9, 9, 10]
