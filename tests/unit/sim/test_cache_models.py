"""The models of the simulation against `kvbraid.models` on the configs that they come from."""

import json
from pathlib import Path

import pytest
from kvbraid.errors import UnknownError
from kvbraid.models import KindLayers, kinds_of
from kvbraid.sim.cache_models import CACHE_MODELS, CacheModel, cache_model

FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"


def kinds(model: CacheModel) -> tuple[KindLayers, ...]:
    """Without a name in the config, an engine keeps states in the model's type."""
    config = json.loads((FIXTURES / f"{model.source}.json").read_text())
    return kinds_of({"mamba_ssm_dtype": "bfloat16", **config}).kinds


@pytest.mark.parametrize("model", CACHE_MODELS.values(), ids=lambda model: model.name)
def test_groups_have_the_kinds_and_windows_of_the_layers_and_places_for_all(
    model: CacheModel,
) -> None:
    for kind in kinds(model):
        same = [
            g for g in model.groups if (g.kind, g.window) == (kind.spec.kind, kind.spec.window)
        ]
        assert len(same) == -(-len(kind.layers) // model.layers_per_block)
    assert len(model.groups) == sum(
        -(-len(kind.layers) // model.layers_per_block) for kind in kinds(model)
    )
    assert {group.block_size for group in model.groups} == {model.alignment}


@pytest.mark.parametrize("model", CACHE_MODELS.values(), ids=lambda model: model.name)
def test_a_page_holds_the_kv_of_a_block_and_the_shortest_block_that_holds_a_state(
    model: CacheModel,
) -> None:
    per_token = {spec.kv_bytes_per_token for spec in (k.spec for k in kinds(model))} - {None}
    states = [kind.spec.state_bytes for kind in kinds(model) if kind.spec.state_bytes is not None]
    (token_bytes,) = per_token
    assert token_bytes is not None
    assert model.page_bytes == model.alignment * token_bytes
    shortest = -(-max(states, default=1) // (16 * token_bytes)) * 16
    assert model.alignment == max(16, shortest)


def test_memory_is_whole_blocks() -> None:
    model = cache_model("gemma-3-27b")
    assert model.block_bytes == 1_310_720
    assert model.num_blocks(40 * 2**30) == 32_768
    assert model.num_blocks(model.block_bytes - 1) == 0


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownError, match="model 'gpt-2' is not known; expected one of gpt-oss"):
        cache_model("gpt-2")
