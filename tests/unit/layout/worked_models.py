"""Plans of published models."""

from pathlib import Path

from kvbraid.layout import Layout, MemoryPlan, PlanOptions, Split, from_grouping, plan_memory
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
