"""Colours written through tensors lie where references say: worked models and random plans."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from kvbraid.errors import InvalidValueError
from kvbraid.layout import (
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    Split,
    from_grouping,
    geometry_of,
    plan_memory,
)
from kvbraid.layout.tensors import allocate
from kvbraid.models import EngineOptions, group_config, read_config
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.spec import SpecKind

from tests.reference.layout_strategies import Case, cases
from tests.torch.colours import Coverage, coverage
from tests.torch.conftest import Counts
from tests.unit.layout.worked_models import MODELS, planned


def layers(prefix: str, num: int, page: Page, layout: Layout = Layout.NHD) -> LayoutGroup:
    assert isinstance(page.shape, Heads)
    geometry = geometry_of(layout, page.shape, page.block_size)
    return LayoutGroup(
        kind=page.kind,
        block_size=page.block_size,
        layers=tuple(
            LayoutLayer(name=f"{prefix}{i}", page=page, geometry=geometry) for i in range(num)
        ),
    )


def page(tokens: int, num: int, dim: int, padded_bytes: int | None = None) -> Page:
    heads = Heads(num=num, key_dim=dim, value_dim=dim, dtype="bfloat16")
    kind = SpecKind.FULL_ATTENTION
    return Page(kind=kind, block_size=tokens, shape=heads, padded_bytes=padded_bytes)


def gemma_2_in_one_group() -> MemoryPlan:
    """All 26 layers in one group, as engines do whose hybrid manager is off."""
    config = read_config(MODELS / "gemma-2-2b.json")
    groups = from_grouping(group_config(config, EngineOptions()).grouping)
    together = tuple(layer for group in groups for layer in group.layers)
    return plan_memory([replace(groups[0], layers=together)], num_blocks=4)


def latents() -> MemoryPlan:
    latent = Heads(num=1, key_dim=576, value_dim=0, dtype="bfloat16", replicated=True)
    mla = Page(kind=SpecKind.MLA_ATTENTION, block_size=64, shape=latent)
    return plan_memory([layers("mla.", 27, mla)], num_blocks=4)


def two_block_sizes() -> MemoryPlan:
    groups = [layers("a.", 6, page(32, 8, 64)), layers("b.", 6, page(16, 16, 64))]
    return plan_memory(groups, num_blocks=4)


def padded_attention() -> MemoryPlan:
    groups = [layers("a.", 3, page(16, 2, 96, 16_384)), layers("b.", 3, page(16, 2, 128))]
    return plan_memory(groups, num_blocks=4)


def of(name: str, layout: Layout = Layout.NHD, **options: object) -> Callable[[], MemoryPlan]:
    return lambda: planned(name, EngineOptions(**options), layout=layout)  # type: ignore[arg-type]


QWEN: Final = "qwen3-next-80b-a3b"
WORKED: Final[dict[str, tuple[Callable[[], MemoryPlan], int]]] = {
    "gemma-2-2b": (of("gemma-2-2b"), 851_968),
    "gemma-2-2b in one group": (gemma_2_in_one_group, 1_703_936),
    "gpt-oss-20b TP1": (of("gpt-oss-20b"), 393_216),
    "gpt-oss-20b TP2 HND": (of("gpt-oss-20b", Layout.HND, num_ranks=2), 196_608),
    "gemma-3-27b": (of("gemma-3-27b"), 1_310_720),
    "DeepSeek-V3": (of("deepseek-v3", block_size=64), 4_497_408),
    "DeepSeek-V2-Lite": (latents, 1_990_656),
    "DeepSeek-V3 fp8_ds_mla": (
        of("deepseek-v3", block_size=64, cache_dtype="fp8_ds_mla"),
        2_561_024,
    ),
    "fp8 with scales per head": (
        of("llama-3.1-8b", Layout.BLHNC, cache_dtype="fp8_per_token_head"),
        1_081_344,
    ),
    "two block sizes": (two_block_sizes, 393_216),
    "Qwen3-Next": (of(QWEN), 13_369_344),
    "Qwen3-Next interleaved": (
        lambda: planned(QWEN, kernel_block=32, split=Split.INTERLEAVED),
        13_369_344,
    ),
    "Qwen3-Next intact": (
        lambda: planned(QWEN, kernel_block=32, split=Split.INTACT),
        13_369_344,
    ),
    "Qwen3-Next HND": (of(QWEN, Layout.HND), 13_369_344),
    "Qwen3-Next float32 states": (of(QWEN, state_dtype="float32"), 25_952_256),
    "Jamba": (of("jamba-v0.1"), 1_310_720),
    "padded attention": (padded_attention, 49_152),
}
"""The worked models: a plan of four blocks, and the bytes of one."""


@pytest.mark.parametrize("name", WORKED)
def test_references_of_a_worked_model_name_every_byte_and_no_other(
    name: str, counts: Counts
) -> None:
    make, block_bytes = WORKED[name]
    plan = make()
    assert plan.block_bytes == block_bytes
    tensors = allocate(plan)
    found = coverage(plan, tensors.memory, tensors.views)
    counts.models += 1
    counts.bytes_missed += found.missed
    counts.bytes_foreign += found.foreign
    used = sum(group.used_bytes for group in plan.groups)
    assert found == Coverage(owned=4 * used, missed=0, foreign=0)


@settings(max_examples=12 * settings().max_examples)
@given(case=cases())
def test_references_of_a_random_plan_name_every_byte_and_no_other(
    counts: Counts, case: Case
) -> None:
    try:
        plan = case.plan()
    except InvalidValueError:  # A case that cannot be planned; few are.
        return
    tensors = allocate(plan)
    assert all(tensors.views[name] is tensors.views[of] for name, of in plan.aliases.items())
    found = coverage(plan, tensors.memory, tensors.views)
    counts.random_plans += 1
    counts.bytes_missed += found.missed
    counts.bytes_foreign += found.foreign
    assert (found.missed, found.foreign) == (0, 0)
