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


Retention: TypeAlias = Dense | Interval
