"""The worked models: bytes, strides and runs that were found without this package's arithmetic.

`layout/worked_models.json` was worked out by an independent implementation of the layout (the
dimensions of Mamba-1's convolution are those that vLLM's own function gives since), and
`layout/engine_plans.json` for vLLM 0.33's own planner, group order aside. A view's numbers are
those of slot 0; each later slot starts `step` bytes after the one before. Tensors are rows of
number of layers, bytes between layers, bytes between blocks, first byte.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.layout import ConnectorForm, Layout, MemoryPlan, PlanOptions, plan_memory
from kvbraid.models import EngineOptions

from tests.golden.layout_models import BF16_STATES, BLOCKS_OF_64, CASES, Groups, model, sparse
from tests.reference.layout_arrays import covered

HERE: Final = Path(__file__).parent / "layout"
WORKED: Final[dict[str, Any]] = json.loads((HERE / "worked_models.json").read_text())
ENGINE: Final[dict[str, Any]] = json.loads((HERE / "engine_plans.json").read_text())


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
