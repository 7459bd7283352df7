"""Quantized caches: what each type keeps of a token, and what it cannot keep."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.models import EngineOptions, Heads, engine_layers, group_config, kinds_of
from kvbraid.models.cache_types import CACHE_TYPES

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
LATENT: Final = 512 + 64


def load(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return config


# Bytes of one token of Llama-3.1-8B (8 heads of 128 + 128 elements) and of DeepSeek-V3.
TOKENS: Final[dict[str, tuple[int | None, int]]] = {
    "bfloat16": (8 * 256 * 2, LATENT * 2),
    "fp8": (8 * 256, LATENT),
    "fp8_e5m2": (8 * 256, LATENT),
    "fp8_per_token_head": (8 * (128 + 4 + 128 + 4), LATENT + 8),
    "int8_per_token_head": (8 * (128 + 4 + 128 + 4), LATENT + 8),
    "fp8_ds_mla": (None, 656),
    "nvfp4_ds_mla": (None, 352),
}


@pytest.mark.parametrize("cache_dtype", TOKENS)
def test_a_cache_type_decides_the_bytes_of_a_token(cache_dtype: str) -> None:
    heads, latent = TOKENS[cache_dtype]
    assert bytes_per_token("deepseek-v3", cache_dtype) == latent
    if heads is not None:
        assert bytes_per_token("llama-3.1-8b", cache_dtype) == heads


def bytes_per_token(name: str, cache_dtype: str) -> int | None:
    (as_published,) = kinds_of(load(name), cache_dtype=cache_dtype).kinds
    (as_engine,) = engine_layers(load(name), cache_dtype=cache_dtype).kinds
    assert as_published == as_engine
    assert isinstance(as_published.spec.shape, Heads)
    assert as_published.spec.shape.bytes_per_token == as_published.spec.kv_bytes_per_token
    return as_published.spec.kv_bytes_per_token


def test_the_groups_of_a_quantized_cache_have_its_pages() -> None:
    options = EngineOptions(cache_dtype="fp8_per_token_head", num_ranks=2)
    (group,) = group_config(load("llama-3.1-8b"), options).grouping.groups
    assert group.page.page_bytes == 16 * 4 * 264
    options = EngineOptions(cache_dtype="fp8_ds_mla", block_size=64, num_ranks=2)
    (group,) = group_config(load("deepseek-v3"), options).grouping.groups
    assert (group.page.page_bytes, group.block_bytes) == (41_984, 2_561_024)


@pytest.mark.parametrize("cache_dtype", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_a_type_that_packs_latents_is_refused_for_anything_else(cache_dtype: str) -> None:
    with pytest.raises(InvalidValueError, match=r"keep 8 heads of 128 elements; choose a plain"):
        kinds_of(load("llama-3.1-8b"), cache_dtype=cache_dtype)
    narrow = {**load("deepseek-v3"), "kv_lora_rank": 256}
    with pytest.raises(InvalidValueError, match=r"576 elements, and .* a latent of 320 elements"):
        kinds_of(narrow, cache_dtype=cache_dtype)


@pytest.mark.parametrize("cache_dtype", ["nvfp4", "int4_per_token_head", "turboquant_k8v4"])
def test_elements_of_less_than_a_byte_are_refused_with_the_reason(cache_dtype: str) -> None:
    with pytest.raises(InvalidValueError, match=r"less than a byte for an element are not mod"):
        kinds_of(load("llama-3.1-8b"), cache_dtype=cache_dtype)


def test_states_keep_no_quantized_type() -> None:
    with pytest.raises(InvalidValueError, match="state_dtype is 'fp8_per_token_head'; expected"):
        kinds_of(load("jamba-v0.1"), state_dtype="fp8_per_token_head")


def test_every_cache_type_has_a_case() -> None:
    element_types = {name for name, each in CACHE_TYPES.items() if name not in TOKENS}
    assert all(not CACHE_TYPES[name].has_scales for name in element_types)
    assert all(CACHE_TYPES[name].row_bytes is None for name in element_types)
