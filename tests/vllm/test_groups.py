"""Our groups are those of a real vLLM's own functions, for random layers.

States' shapes, and how ranks divide them, are those of its shape calculator.
"""

import random
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.models import (
    CacheLayer,
    EngineOptions,
    Heads,
    Page,
    RecurrentState,
    engine_layers,
    form_groups,
    group_config,
    read_config,
)
from kvbraid.models.cache_types import CACHE_TYPES
from kvbraid.models.grouping import kept_in_full
from kvbraid.models.pages import covering_block
from kvbraid.spec import SpecKind

from tests.vllm.live_engine import MODELS, LiveModel
from tests.vllm.random_models import HEADS, LATENTS, PAGES, STATES, ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Of torch and vLLM, while they are imported.
    from tests.vllm.engine_groups import (
        SHAPES,
        aligned,
        described,
        described_without_hybrid_manager,
        latent_row_bytes,
        quantized_bytes,
    )


SCALED: Final = ["fp8_per_token_head", "int8_per_token_head"]


@st.composite
def models(draw: st.DrawFn) -> tuple[CacheLayer, ...]:
    """A few kinds of pages, dealt out over some layers at random."""
    pages = draw(st.lists(PAGES, min_size=1, max_size=4))
    order = random.Random(draw(st.integers(0, 1 << 16)))
    weights = [order.random() for _ in pages]
    dealt = order.choices(pages, weights, k=draw(st.integers(1, 40)))
    return tuple(CacheLayer(number=number, page=page) for number, page in enumerate(dealt))


@settings(max_examples=2_000)
@given(layers=models())
@pytest.mark.timeout(600)
def test_random_layers_form_the_engines_own_groups(layers: tuple[CacheLayer, ...]) -> None:
    assert ours(layers) == described(layers)


@settings(max_examples=2_000)
@given(layers=models())
@pytest.mark.timeout(600)
def test_random_layers_without_the_hybrid_manager_form_the_engines_own_groups(
    layers: tuple[CacheLayer, ...],
) -> None:
    found = ours(layers, lambda given: form_groups(kept_in_full(given)))
    assert found == described_without_hybrid_manager(layers)


@settings(max_examples=500)
@given(
    heads=HEADS.map(lambda heads: replace(heads, value_dim=heads.key_dim, scale_bytes=0)),
    latents=LATENTS,
    is_latent=st.booleans(),
    state=STATES,
    kernel=st.sampled_from([1, 16, 32, 64, 96, 128]),
    multiple=st.integers(1, 5),
)
def test_a_block_is_lengthened_for_a_state_as_the_engine_does(
    heads: Heads,
    latents: Heads,
    is_latent: bool,
    state: RecurrentState,
    kernel: int,
    multiple: int,
) -> None:
    page = Page(
        kind=SpecKind.MLA_ATTENTION if is_latent else SpecKind.FULL_ATTENTION,
        block_size=kernel * multiple,
        shape=latents if is_latent else heads,
    )
    block_size, padded_bytes = aligned(page, state, kernel)
    assert covering_block(page, state.size_bytes, kernel) == block_size
    longer = replace(page, block_size=block_size).content_bytes
    assert padded_bytes == (None if longer == state.size_bytes else longer)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.folder)
def test_a_live_models_config_gives_the_groups_it_is_watched_with(model: LiveModel) -> None:
    """Each of these topologies stands against a running engine in test_live_engines.py."""
    config = read_config(model.path / "config.json")
    grouping = group_config(config, EngineOptions(block_size=model.block_size)).grouping
    assert grouping.topology().groups == model.topology.groups


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "fp8", *SCALED])
@given(heads=HEADS, latents=LATENTS, is_latent=st.booleans())
def test_a_cache_type_packs_a_token_into_the_engines_bytes(
    cache_dtype: str, heads: Heads, latents: Heads, is_latent: bool
) -> None:
    cache, shape = CACHE_TYPES[cache_dtype], latents if is_latent else heads
    packed = (
        cache.latent(shape.key_dim)
        if is_latent
        else cache.heads(num=shape.num, key_dim=shape.key_dim, value_dim=shape.value_dim)
    )
    expected = quantized_bytes(shape, is_latent=is_latent, cache_dtype=cache_dtype)
    assert packed.bytes_per_token == expected


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"])
def test_a_latent_is_packed_into_the_engines_row(cache_dtype: str) -> None:
    latent = CACHE_TYPES["bfloat16"].latent(576)
    packed = CACHE_TYPES[cache_dtype].latent(576)
    assert packed.bytes_per_token == latent_row_bytes(latent, cache_dtype=cache_dtype)


ShapesOf: TypeAlias = Callable[[int], Iterable[tuple[int, ...]]]

# A small config of each recurrent family, and the engine's own shapes of its state on `ranks`.
STATE_CASES: Final[dict[str, tuple[dict[str, object], ShapesOf]]] = {
    "mamba2 with one group": (
        {
            "model_type": "mamba2", "num_heads": 16, "head_dim": 8, "n_groups": 1,
            "state_size": 32, "conv_kernel": 4,
        },
        lambda ranks: SHAPES.mamba2_state_shape(ranks, 128, 1, 16, 8, 32, 4),
    ),
    "mamba2 with eight groups": (
        {
            "model_type": "mamba2", "num_heads": 16, "head_dim": 8, "n_groups": 8,
            "state_size": 32, "conv_kernel": 4,
        },
        lambda ranks: SHAPES.mamba2_state_shape(ranks, 128, 8, 16, 8, 32, 4),
    ),
    "mamba1": (
        {
            "model_type": "mamba", "intermediate_size": 256, "state_size": 16, "conv_kernel": 4,
        },
        lambda ranks: SHAPES.mamba1_state_shape(ranks, 256, 16, 4),
    ),
    "gated delta": (
        {
            "model_type": "qwen3_next", "layer_types": ["linear_attention"],
            "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 32,
            "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
        },
        lambda ranks: SHAPES.gated_delta_net_state_shape(ranks, 8, 16, 32, 64, 4),
    ),
    "kda": (
        {
            "model_type": "kimi_linear",
            "linear_attn_config": {
                "kda_layers": [1], "num_heads": 16, "head_dim": 32, "short_conv_kernel_size": 4,
            },
        },
        lambda ranks: SHAPES.kda_state_shape(ranks, 16, 32, conv_kernel_size=4),
    ),
    "lightning": (
        {
            "model_type": "minimax", "attn_type_list": [0], "num_attention_heads": 16,
            "head_dim": 32,
        },
        lambda ranks: SHAPES.linear_attention_state_shape(16, ranks, 32),
    ),
    "short convolution": (
        {"model_type": "lfm2", "layer_types": ["conv"], "conv_dim": 64, "conv_L_cache": 3},
        lambda ranks: SHAPES.short_conv_state_shape(ranks, 64, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("case", STATE_CASES)
def test_ranks_divide_a_state_into_the_engines_own_tensors(case: str, ranks: int) -> None:
    config, shapes = STATE_CASES[case]
    model = engine_layers(
        {"num_hidden_layers": 1, "dtype": "float32", **config}, state_dtype="float32"
    )
    (shape,) = (kind.spec.shape for kind in model.kinds)
    assert shape is not None
    on_rank = shape.on_rank(ranks)
    assert isinstance(on_rank, RecurrentState)
    expected = [tuple(each) for each in shapes(ranks)]
    assert [tensor.dims for tensor in on_rank.tensors] == expected
    assert on_rank.size_bytes == 4 * sum(map(prod, expected))
