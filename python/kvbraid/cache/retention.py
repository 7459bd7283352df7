"""Which window blocks and states of a group are kept findable: data that the core carries out.

Full-attention and chunked groups keep every block under every policy.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from kvbraid.errors import InvalidValueError
from kvbraid.models import PrefillCost


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ByValue:
    """Keep all that can serve a boundary, as long as there is room; then evict the least value.

    Checkpoints are boundaries whose blocks leave only by value: where prompts and requests end,
    where requests branch off, and every `interval` tokens. All else goes before them. The formula
    is in docs/cache.md.

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

    def aligned(self, alignment: int) -> "ByValue":
        """Return it with the interval rounded up to multiples of so many tokens."""
        return replace(self, interval=-(-self.interval // alignment) * alignment)


Retention: TypeAlias = Dense | Interval | ByValue


def checkpoint_interval(retention: Retention) -> int:
    """Return the multiples of tokens at which steps have to end for states to be kept; 0: none.

    vLLM ends no step at the multiples of its own interval, so that it keeps what happens to end
    there; `Interval` does as vLLM does.
    """
    return retention.interval if isinstance(retention, ByValue) else 0
