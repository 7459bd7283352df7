"""What a token on each tier is worth in a score: the defaults, and which weights can be set."""

from collections.abc import Mapping
from typing import Final

from kvbraid.errors import InvalidValueError, shown
from kvbraid.ids import Tier

TIER_WEIGHTS: Final[Mapping[Tier, float]] = {Tier.GPU: 1.0, Tier.CPU: 0.8, Tier.STORAGE: 0.5}

MOST_WEIGHT: Final = 1_000_000
"""The largest weight. The score of the longest prompt is then still a finite number."""


def check_weights(weights: Mapping[Tier, float] | None) -> None:
    """Refuse weights that no score can be computed with.

    Raises:
        InvalidValueError: It is not a mapping, or has no such tier or weight; the message names
            which.
    """
    given: object = weights
    if given is None:
        return
    if not isinstance(given, Mapping):
        msg = f"tier_weights is {shown(given)}; expected a mapping of Tier to a number, or None"
        raise InvalidValueError(msg)
    for tier, weight in given.items():
        if not isinstance(tier, Tier):
            known = ", ".join(map(str, Tier))
            msg = f"tier_weights has the key {shown(tier)}; expected one of {known}"
            raise InvalidValueError(msg)
        if not (isinstance(weight, int | float) and 0 <= weight <= MOST_WEIGHT):
            msg = (
                f"tier_weights[{tier}] is {shown(weight)}; "
                f"expected a number from 0 to {MOST_WEIGHT}"
            )
            raise InvalidValueError(msg)
