"""Prefill compute: tokens, pairs, windows and chunks, by hand."""

import json
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.models import EngineOptions, PrefillCost, group_config, prefill_cost

MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"


def cost_of(config: dict[str, object], active_params: float | None = None) -> PrefillCost:
    grouping = group_config(config, EngineOptions()).grouping
    return prefill_cost(config, grouping, active_params=active_params)


def test_full_attention_costs_pairs() -> None:
    # A score and a weighted sum: 2 operations for each of 16 + 16 elements, 4 heads, 3 layers.
    assert cost_of({**MISTRAL, "sliding_window": None}, 1_000) == PrefillCost(2_000.0, 768.0)


def test_a_window_costs_its_tokens() -> None:
    assert cost_of({**MISTRAL, "sliding_window": 10}, 1_000) == PrefillCost(2_000.0 + 7_680.0, 0.0)


def test_parameters_are_counted_by_the_usual_proportions() -> None:
    cost = cost_of({**MISTRAL, "sliding_window": None})
    assert cost.per_token == 2 * 12 * 3 * 64 * 64


def test_a_real_config_is_close_to_what_is_published() -> None:
    config = json.loads((FIXTURES / "llama-3.1-8b.json").read_text())
    assert 0.5 < cost_of(config).per_token / 16e9 < 2


@pytest.mark.parametrize(("per_token", "per_pair"), [(0.0, 0.0), (-1.0, 2.0), (1.0, -0.5)])
def test_a_cost_that_is_none_is_refused(per_token: float, per_pair: float) -> None:
    with pytest.raises(InvalidValueError, match=f"a prefill cost of {per_token}"):
        PrefillCost(per_token, per_pair)
