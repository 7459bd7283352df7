"""What a prompt costs a pod, in seconds: the one unit in which everything is compared.

    T(n, x)  =  fixed + per_token * (n - x) + per_pair * (n * n - x * x) / 2

are the seconds of a prefill of n tokens of which x are cached. The form is that of
`kvbraid.models.PrefillCost`, whose FLOP a pod computes at some rate.
"""

from dataclasses import dataclass, fields
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.models import PrefillCost
from kvbraid.reading import POSITIVE, Rule, check

MOST_SECONDS: Final = 1e12
"""A coefficient is at most that: products of the largest are still finite numbers."""

_RATE: Final = Rule(lambda value: 0 < value < float("inf"), "a finite number above 0")
_COEFFICIENT: Final = Rule(
    lambda value: 0 <= value <= MOST_SECONDS, f"seconds from 0 to {MOST_SECONDS:g}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Coefficients of one model on one kind of pod, all in seconds.

    `fixed` is what any prefill takes; `per_token` what a computed token takes, `per_pair` a pair
    of a computed token and one before it. `per_loaded_token` is what a token takes that comes
    from host memory or storage. `per_decoded_token` is how much longer a step takes for each
    request that decodes in it, and a step computes at most `step_tokens` tokens of prompts.

    The defaults are those of a 32B model on two H100 (16 000 tokens a second, published by llm-d
    as 15 928), with 12 ms a prefill. Give those of your own pods. A figure that is too low chooses
    worse than one that is too high by as much.

    Raises:
        InvalidValueError: A coefficient is not from 0 to MOST_SECONDS, or a prefill takes no time.
    """

    fixed: float = 0.012
    per_token: float = 1 / 16_000
    per_pair: float = 1 / (16_000 * 30_000)
    per_loaded_token: float = 0.0
    per_decoded_token: float = 0.0
    step_tokens: int = 8_192

    def __post_init__(self) -> None:
        """Refuse coefficients that no pod has."""
        for field in fields(self):
            rule = POSITIVE if field.name == "step_tokens" else _COEFFICIENT
            check(field.name, getattr(self, field.name), rule)
        if self.per_token + self.per_pair <= 0:
            raise InvalidValueError("per_token and per_pair are both 0; give what a token takes")

    @classmethod
    def of_model(cls, cost: PrefillCost, *, flops: float, fixed: float = 0.012) -> "Seconds":
        """Return the seconds of a model on pods that compute `flops` FLOP a second in prefill."""
        check("flops", flops, _RATE)
        return cls(fixed=fixed, per_token=cost.per_token / flops, per_pair=cost.per_pair / flops)

    def prefill(self, tokens: int, cached: int) -> float:
        """Return the seconds of a prefill of so many tokens, of which so many are cached."""
        computed = tokens - cached
        pairs = computed * (tokens + cached) / 2
        return self.fixed + self.per_token * computed + self.per_pair * pairs

    def decoding(self, tokens: int, cached: int, running: int) -> float:
        """Return by how much requests that decode meanwhile delay such a prefill."""
        steps = -(-(tokens - cached) // self.step_tokens)
        return self.per_decoded_token * running * steps
