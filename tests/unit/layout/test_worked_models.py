"""The plans of published models have the bytes, strides and runs that were worked out for them."""

from pathlib import Path

from kvbraid.layout import (
    Layout,
    MemoryPlan,
    PlanOptions,
    Split,
    from_grouping,
    from_json,
    plan_memory,
    to_json,
)
from kvbraid.models import EngineOptions, group_config, read_config

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def planned(
    name: str,
    options: EngineOptions | None = None,
    *,
    layout: Layout = Layout.NHD,
    kernel_block: int | None = None,
    split: Split | None = None,
) -> MemoryPlan:
    config = read_config(MODELS / f"{name}.json")
    grouping = group_config(config, options or EngineOptions()).grouping
    groups = from_grouping(grouping, layout=layout, kernel_block=kernel_block)
    return plan_memory(groups, num_blocks=4, options=PlanOptions(split=split))


def test_gemma_2_keeps_a_block_of_either_group_in_one_range() -> None:
    plan = planned("gemma-2-2b")
    assert plan.block_bytes == 851_968
    assert [group.references[0].exact() for group in plan.groups] == [((0, 851_968),)] * 2
    view = plan.views["25"]
    assert view.shape == (2, 4, 16, 4, 256)
    assert view.stride == (16_384, 425_984, 1_024, 256, 1)
    assert view.offset == 12 * 65_536


def test_a_plan_is_read_back_from_its_json() -> None:
    plan = planned("gpt-oss-20b", EngineOptions(num_ranks=2), layout=Layout.HND)
    assert from_json(to_json(plan)) == plan
