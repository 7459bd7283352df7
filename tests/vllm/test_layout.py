"""Our plans and a real vLLM's memory agree to the byte, in every layout that it accepts."""

import importlib
import pkgutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from kvbraid.errors import LayoutError
from kvbraid.layout import (
    Layout,
    MemoryPlan,
    PlanOptions,
    fingerprint,
    from_engine,
    from_grouping,
    geometry_from_layouts,
    plan_memory,
)
from kvbraid.models import (
    CacheLayer,
    EngineOptions,
    Grouping,
    Heads,
    group_config,
    packed_groups,
    read_config,
)

from tests.unit.layout.engine_fakes import colours
from tests.unit.models.packed_models import PACKED, layers
from tests.vllm.random_models import models

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Of torch and vLLM, while they are imported.
    from vllm.v1.attention import backends
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from tests.vllm.engine_allocations import accepted, allocate, as_bytes, engine_config

MODELS: Final = Path(__file__).parents[1] / "fixtures" / "models"
NUM_BLOCKS: Final = 3
PLAIN: Final = EngineOptions()


def published(name: str, options: EngineOptions = PLAIN) -> tuple[CacheLayer, ...]:
    """The layers of a model's config, by number."""
    grouping = group_config(read_config(MODELS / f"{name}.json"), options).grouping
    found = [layer for group in grouping.groups for layer in group.layers]
    return tuple(sorted(found, key=lambda layer: layer.number))


def packed(name: str) -> tuple[CacheLayer, ...]:
    (pages,) = (pages for case, (pages, _, _) in PACKED.items() if case.startswith(name))
    return layers(*pages)


ALL: Final = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
COMPACT: Final = ["LBHNC", "LBNHC", "BLHNC", "BLNHC"]
OUTER: Final = ["BLHNC", "BLNHC"]

# Layers, the layouts that the engine accepts, and the bytes of a block across layers.
WORKED: Final[dict[str, tuple[Sequence[CacheLayer], list[str], int]]] = {
    "gemma-2-2b": (published("gemma-2-2b"), ALL, 851_968),
    "gpt-oss-20b": (published("gpt-oss-20b"), ALL, 393_216),
    "gpt-oss-20b on two ranks": (
        published("gpt-oss-20b", EngineOptions(num_ranks=2)),
        ALL,
        196_608,
    ),
    "gemma-3-27b": (published("gemma-3-27b"), ALL, 1_310_720),
    "deepseek-v3": (published("deepseek-v3", EngineOptions(block_size=64)), ALL, 4_497_408),
    "qwen3-next-80b-a3b": (published("qwen3-next-80b-a3b"), COMPACT, 13_369_344),
    "jamba": (published("jamba-v0.1"), COMPACT, 1_310_720),
    "gemma-4-like": (packed("gemma-4"), COMPACT, 1_310_720),
    "DSA": (packed("DeepSeek sparse"), COMPACT, 271_872),
    "DeepSeek-V4": (packed("DeepSeek-V4"), OUTER, 1_002_240),
}
CASES: Final = [(name, layout) for name, (_, found, _) in WORKED.items() for layout in found]


def own_plan(model: Sequence[CacheLayer], layout: str, **size: int) -> MemoryPlan:
    groups = from_grouping(Grouping(groups=packed_groups(model)), layout=Layout[layout])
    return plan_memory(groups, options=PlanOptions(packed=True), **size)


@pytest.mark.parametrize("name", WORKED)
def test_the_engine_accepts_these_layouts(name: str) -> None:
    model, expected, _ = WORKED[name]
    assert accepted(model) == expected


def explained(
    model: Sequence[CacheLayer], layout: str, kernel_block: int | None = None, rest: int = 0
) -> MemoryPlan:
    """The plan of the engine's memory; its references have what views write, nothing else."""
    config = engine_config(model, layout, num_blocks=NUM_BLOCKS, rest=rest)
    views = allocate(config, layout, kernel_block)
    plan = from_engine(config, views)
    assert colours(plan, *as_bytes(views)) == (0, 0)
    return plan


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_the_engines_memory_is_explained_to_the_byte(name: str, layout: str) -> None:
    model, _, block_bytes = WORKED[name]
    plan = explained(model, layout)
    assert plan.is_cross_layer == layout.startswith("B")
    if plan.is_cross_layer:
        assert plan.block_bytes == block_bytes


def test_these_are_all_cases() -> None:
    """As many layouts of published models as `engine_layouts` in what the layout's tests count."""
    assert len(CASES) == 48


@pytest.mark.parametrize(("name", "layout"), [case for case in CASES if case[1].startswith("B")])
def test_our_plan_has_the_engines_blocks_and_as_many_of_them(name: str, layout: str) -> None:
    model, _, block_bytes = WORKED[name]
    plan = explained(model, layout, rest=100)
    own = own_plan(model, layout, memory_bytes=NUM_BLOCKS * block_bytes + 100)
    assert (own.block_bytes, own.num_blocks) == (plan.block_bytes, plan.num_blocks)
    assert fingerprint(own) == fingerprint(plan)  # Of every stride, offset and chunk.


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_the_engines_kernel_blocks_are_explained(layout: str) -> None:
    plan = explained(WORKED["qwen3-next-80b-a3b"][0], layout, kernel_block=32)
    attention = plan.views["3"]
    assert (attention.kernel_blocks, attention.shape[0]) == (17, 17 * NUM_BLOCKS)
    assert plan.views["0.ssm"].kernel_blocks == 1


def test_heads_before_layers_are_explained_beside_states_too() -> None:
    """The engine chooses it only for equal heads, but its planner takes it."""
    for name in ("qwen3-next-80b-a3b", "jamba"):
        model, _, block_bytes = WORKED[name]
        assert explained(model, "BHLNC").block_bytes == block_bytes


def test_heads_before_blocks_beside_states_are_refused() -> None:
    """The engine never chooses it: a block of one group would lie over several of another."""
    model = WORKED["qwen3-next-80b-a3b"][0]
    config = engine_config(model, "LHBNC", num_blocks=NUM_BLOCKS)
    with pytest.raises(LayoutError, match=r"layer .*: its blocks take bytes .* equal or apart"):
        from_engine(config, allocate(config, "LHBNC"))


@settings(max_examples=150)
@given(model=models())
@pytest.mark.timeout(600)
def test_random_layers_are_explained_in_every_layout_that_the_engine_accepts(
    model: tuple[CacheLayer, ...],
) -> None:
    for layout in accepted(model):
        explained(model, layout)


def importable() -> tuple[list[Any], list[str]]:
    """The backends of the installed engine, and the modules whose libraries are not here."""
    found, absent = [], []
    for module in pkgutil.walk_packages(backends.__path__, f"{backends.__name__}."):
        try:
            names = vars(importlib.import_module(module.name))
        except (ImportError, AttributeError, RuntimeError):  # No accelerator, nor its libraries.
            absent.append(module.name)
            continue
        found += [
            each
            for each in names.values()
            if isinstance(each, type)
            and issubclass(each, AttentionBackend)
            and each.__module__ == module.name
        ]
    return found, absent


def test_every_installed_backends_layouts_give_its_geometry() -> None:
    found, absent = importable()
    assert (len(found), len(absent)) == (45, 7), absent
    heads = Heads(num=4, key_dim=64, value_dim=64, dtype="bfloat16")
    chosen = set()
    for backend in found:
        supported = backend.supported_kv_cache_layouts()
        geometry = geometry_from_layouts(supported, heads, 16)
        (layout,) = (
            each
            for each in KVCacheLayout
            if (each.stride_order, each.layer_view_order) == (geometry.with_layers, geometry.order)
        )
        assert supported is None or layout in supported
        blocks_first = supported is None or any(each.is_block_outermost for each in supported)
        assert layout.is_block_outermost == geometry.blocks_come_first == blocks_first
        chosen.add(layout.name)
    assert chosen == {"BLNHC", "BLHNC", "LBHNC", "LBNHC", "LHBNC"}
