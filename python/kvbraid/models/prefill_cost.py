"""Prefill compute of a model: what reusing a cached prefix saves.

    tokens h..n  =  per_token * (n - h)  +  per_pair * (n * n - h * h) / 2
                    weights, windows        full attention: each token with each one before it

Multiplications and additions count as one operation each (FLOP). States are left out: less than a
twentieth of the weights' share in every published model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.models.grouping import Grouping, LayerGroup
from kvbraid.models.read import reader_of
from kvbraid.models.shapes import Heads

PARAMS_PER_LAYER: Final = 12
"""Parameters of a layer over the square of the hidden size: attention 4, feed-forward 8."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """The cost of one token, and of one pair of a token and an earlier one, in any unit.

    Raises:
        InvalidValueError: Neither is above 0, or one is below.
    """

    per_token: float = 1.0
    per_pair: float = 0.0

    def __post_init__(self) -> None:
        if min(self.per_token, self.per_pair) < 0 or self.per_token + self.per_pair <= 0:
            raise InvalidValueError(
                f"a prefill cost of {self.per_token} a token and {self.per_pair} a pair; expected "
                "neither below 0, and not both 0"
            )


def prefill_cost(
    config: Mapping[str, object], grouping: Grouping, *, active_params: float | None = None
) -> PrefillCost:
    """Return a model's cost in FLOP.

    `active_params` are the parameters that compute one token; None: estimated from a transformer's
    usual proportions, which is right within a factor of two for published models.

    Raises:
        InvalidValueError: No number of heads, or no hidden size.
    """
    reader = reader_of(config)
    if active_params is None:
        num_cached = sum(len(group.layers) for group in grouping.groups)
        num_layers = reader.optional_size("num_hidden_layers") or num_cached
        active_params = PARAMS_PER_LAYER * num_layers * reader.size("hidden_size") ** 2
    num_heads = reader.size("num_attention_heads")
    per_token, per_pair = 2.0 * active_params, 0.0
    for group in grouping.groups:
        if not isinstance(group.page.shape, Heads):
            continue
        pair = _pair(group, group.page.shape, num_heads)
        if group.kind.is_full:
            per_pair += pair
        else:
            # A token sees its window, or half a chunk on average.
            per_token += pair * (group.page.window or (group.page.chunk or 0) / 2)
    return PrefillCost(per_token, per_pair)


def _pair(group: LayerGroup, heads: Heads, num_query_heads: int) -> float:
    """Score and weighted sum of one pair, in all layers of a group."""
    return 2.0 * len(group.layers) * num_query_heads * (heads.key_dim + heads.value_dim)
