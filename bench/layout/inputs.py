"""What the benchmarks of layouts plan: published models, and 100 layers in 8 groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvbraid.layout import (
    ConnectorForm,
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
from kvbraid.models import EngineOptions, group_config, read_config
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind

CONFIGS: Final = Path(__file__).parents[2] / "tests" / "fixtures" / "models"
NUM_BLOCKS: Final = 15_685
"""What 13.36 GB hold of gemma-2-2b: a pool of a usual size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A published config, how an engine is started on it, and the layout that ours has."""

    config: str
    options: EngineOptions = field(default_factory=EngineOptions)
    layout: Layout = Layout.NHD
    num_blocks: int = NUM_BLOCKS

    def plan(self) -> MemoryPlan:
        """Plan blocks across layers."""
        return plan_memory(self._groups(self.layout), num_blocks=self.num_blocks)

    def plan_per_layer(self) -> MemoryPlan:
        """Plan one buffer per slot, in the layout that vLLM 0.32 prefers if nobody says more."""
        options = PlanOptions(takes=ConnectorForm.PER_LAYER)
        return plan_memory(self._groups(Layout.LBNHC), num_blocks=self.num_blocks, options=options)

    def _groups(self, layout: Layout) -> tuple[LayoutGroup, ...]:
        config = read_config(CONFIGS / f"{self.config}.json")
        return from_grouping(group_config(config, self.options).grouping, layout=layout)


STATE: Final = RecurrentState(
    tensors=(
        StateTensor(name="conv", dims=(3, 8_192), dtype="bfloat16"),
        StateTensor(name="ssm", dims=(32, 128, 128), dtype="bfloat16"),
    )
)
STATE_BLOCK: Final = 544
"""Tokens of an attention block whose page holds that state, with two heads of 256."""
KERNEL_BLOCK: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """100 layers in 8 groups: two of full attention, six of windows or states."""

    layout: Layout = Layout.NHD
    split: Split | None = None
    has_states: bool = False
    has_two_sizes: bool = False

    def groups(self) -> tuple[LayoutGroup, ...]:
        """Return the groups: four of 13 layers and four of 12."""
        return tuple(self._group(index) for index in range(8))

    def options(self) -> PlanOptions:
        """Return how the groups are planned."""
        return PlanOptions(split=self.split, packed=self.has_two_sizes)

    def _group(self, index: int) -> LayoutGroup:
        page = self._page(is_full=index < 2)
        heads = page.shape if isinstance(page.shape, Heads) else None
        kernel_block = page.block_size if self.split is None else KERNEL_BLOCK
        layers = tuple(
            LayoutLayer(
                name=f"model.layers.{index + 8 * number}.attn",
                page=page,
                geometry=None if heads is None else geometry_of(self.layout, heads, kernel_block),
                kernel_block=None if heads is None else kernel_block,
            )
            for number in range(13 if index < 4 else 12)
        )
        return LayoutGroup(kind=page.kind, block_size=page.block_size, layers=layers)

    def _page(self, *, is_full: bool) -> Page:
        if self.has_states:
            heads = Heads(num=2, key_dim=256, value_dim=256, dtype="bfloat16")
            attention = Page(kind=SpecKind.FULL_ATTENTION, block_size=STATE_BLOCK, shape=heads)
            state = Page(
                kind=SpecKind.MAMBA,
                block_size=STATE_BLOCK,
                shape=STATE,
                padded_bytes=attention.page_bytes,
            )
            return attention if is_full else state
        num = 16 if is_full and self.has_two_sizes else 8
        heads = Heads(num=num, key_dim=128, value_dim=128, dtype="bfloat16")
        if is_full:
            return Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
        return Page(kind=SpecKind.SLIDING_WINDOW, block_size=16, shape=heads, window=1_024)


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "windows": Shape(),
        "ordered": Shape(layout=Layout.HND),
        "two_page_sizes": Shape(has_two_sizes=True),
        "states": Shape(has_states=True),
        "states_interleaved": Shape(has_states=True, split=Split.INTERLEAVED),
    }
)
