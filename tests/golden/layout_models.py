"""The worked models as groups of layers, and how each is planned."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvbraid.layout import (
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    PlanOptions,
    Split,
    from_grouping,
    geometry_of,
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

MODELS: Final = Path(__file__).parents[1] / "fixtures" / "models"
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
LATENT, INDEX = latent(576, "uint8"), latent(132, "uint8")
MIXED: Final = tuple(
    CacheLayer(number=number, page=page) for number, page in enumerate([LATENT] * 6 + [INDEX] * 6)
)


def sparse(layout: Layout) -> Groups:
    """Six layers of latents with an index each, as DeepSeek's sparse attention keeps them."""
    form = form_groups if layout is Layout.LBHNC else packed_groups
    return from_grouping(Grouping(groups=form(MIXED)), layout=layout)
