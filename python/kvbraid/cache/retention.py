"""Which window blocks and states of a group are kept findable: data that the core carries out.

Full-attention and chunked groups keep every block under every policy.
"""

from dataclasses import dataclass
from typing import TypeAlias

from kvbraid.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Dense:
    """Keep all that can serve a boundary (vLLM with retention off)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Keep what serves a resume at multiples of `tokens`, at prompt ends and at junctions.

    0: at prompt ends and junctions alone (vLLM's default). Else a multiple of the alignment.

    Raises:
        InvalidValueError: A negative interval.
    """

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise InvalidValueError(f"an interval of {self.tokens} tokens; expected 0 or more")


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Prefill compute of a model, in any unit: what reusing tokens saves.

    Computing n tokens costs `per_token` * n, and `per_pair` for each of the n * n / 2 pairs of a
    token and one before it (full attention).

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ByValue:
    """Keep all that can serve a boundary, as long as there is room; then evict the least value.

    Checkpoints are boundaries whose blocks leave only by value: where prompts and requests end,
    where requests branch off, and every `interval` tokens. All else goes before them. docs/cache.md
    has the formula.

    Attributes:
        interval: Tokens between checkpoints, a multiple of the alignment; 0: none at intervals.
        cost: What a reused token saves.

    Raises:
        InvalidValueError: A negative interval.
    """

    interval: int = 0
    cost: PrefillCost = PrefillCost()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if self.interval < 0:
            raise InvalidValueError(f"an interval of {self.interval} tokens; expected 0 or more")


Retention: TypeAlias = Dense | Interval | ByValue


def checkpoint_interval(retention: Retention) -> int:
    """Return the multiples of tokens at which steps have to end for states to be kept; 0: none.

    vLLM ends no step at the multiples of its own interval, so that it keeps what happens to end
    there; `Interval` does as vLLM does.
    """
    return retention.interval if isinstance(retention, ByValue) else 0
