"""Weights of tiers as operators and clients write them: in fleet.toml, in a body, in a query."""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from kvbraid.fleet.weights import MOST_WEIGHT, TIER_WEIGHTS
from kvbraid.ids import Tier

_Weight: TypeAlias = Annotated[float, Meta(ge=0, le=MOST_WEIGHT)]


class TierWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a token on each tier is worth in a score; null means the same as absent."""

    gpu: _Weight | None = None
    cpu: _Weight | None = None
    storage: _Weight | None = None

    def by_tier(self) -> dict[Tier, float]:
        """The weights that are given."""
        weights = {tier: getattr(self, tier.value) for tier in Tier}
        return {tier: weight for tier, weight in weights.items() if weight is not None}


DEFAULT_WEIGHTS: Final = TierWeights(
    **{tier.value: weight for tier, weight in TIER_WEIGHTS.items()}
)
