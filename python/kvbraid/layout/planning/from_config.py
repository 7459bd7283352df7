"""From a model's config.json to its plan: what `kvbraid plan` shows.

    config -> layers -> groups (kvbraid.models) -> geometries -> plan

Invariant: options mean what they mean for the engine (`EngineOptions`) and for the plan
(`PlanOptions`); nothing is decided here. This module reads no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvbraid.layout.plan import MemoryPlan
from kvbraid.layout.planning.geometry import Layout
from kvbraid.layout.planning.layers import LayoutGroup, Split, from_grouping
from kvbraid.layout.planning.planner import PlanOptions, plan_memory
from kvbraid.models import EngineOptions, GroupedModel, group_config


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A grouped model, its groups with their geometries, and the plan of their memory."""

    grouped: GroupedModel
    groups: tuple[LayoutGroup, ...]
    layout: Layout
    split: Split | None
    plan: MemoryPlan
    memory_bytes: int | None = None


def plan_config(
    config: Mapping[str, object],
    options: EngineOptions,
    *,
    layout: Layout = Layout.NHD,
    split: Split | None = None,
    memory_bytes: int | None = None,
) -> PlannedModel:
    """Plan the memory of the model of a `config.json`, already parsed.

    `split` cuts blocks into the kernel's (`options.kernel_block_size`); None: kernels take whole
    blocks. `memory_bytes` None: the number of blocks stays open.

    Raises:
        InvalidValueError: A config that cannot be read, or layers that ranks cannot divide.
        TopologyError: Layers that cannot be grouped, by name.
        LayoutError: Layers that cannot be laid out, or memory for fewer than 2 blocks.
    """
    grouped = group_config(config, options)
    kernel_block = None if split is None else options.kernel_block_size
    groups = from_grouping(grouped.grouping, layout=layout, kernel_block=kernel_block)
    aliases = {str(reader): str(owner) for reader, owner in grouped.model.aliases.items()}
    plan = plan_memory(
        groups,
        memory_bytes=memory_bytes,
        options=PlanOptions(split=split, packed=options.packed, aliases=aliases),
    )
    return PlannedModel(
        grouped=grouped,
        groups=groups,
        layout=layout,
        split=split,
        plan=plan,
        memory_bytes=memory_bytes,
    )
