"""What a token on each tier is worth in a score: the defaults, and which weights can be set."""

from collections.abc import Mapping
from typing import Final

from kvbraid.ids import Tier
from kvbraid.reading import Rule, check

TIER_WEIGHTS: Final[Mapping[Tier, float]] = {Tier.GPU: 1.0, Tier.CPU: 0.8, Tier.STORAGE: 0.5}

MOST_WEIGHT: Final = 1_000_000
"""The largest weight. The score of the longest prompt is then still a finite number."""


def check_weights(weights: Mapping[Tier, float] | None) -> None:
    """Refuse weights that no score can be computed with.

    Raises:
        InvalidValueError: It is not a mapping, or has no such tier or weight; the message names
            which.
    """
    check("tier_weights", weights, _WEIGHTS)
    for tier, weight in (weights or {}).items():
        check("tier_weights: key", tier, _TIER)
        check(f"tier_weights[{tier}]", weight, _WEIGHT)


_WEIGHTS: Final = Rule(
    lambda given: given is None or isinstance(given, Mapping),
    "a mapping of Tier to a number, or None",
)
_TIER: Final = Rule(lambda key: isinstance(key, Tier), f"one of {', '.join(map(str, Tier))}")
_WEIGHT: Final = Rule(
    lambda weight: isinstance(weight, int | float) and 0 <= weight <= MOST_WEIGHT,
    f"a number from 0 to {MOST_WEIGHT}",
)
