"""Which window blocks and states of a group are kept findable: data that the core carries out.

Full-attention and chunked groups keep every block under every policy.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Dense:
    """Keep all that can serve a boundary (vLLM with retention off)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Keep what serves a resume at multiples of `tokens`, at prompt ends and at junctions.

    0: at prompt ends and junctions alone (vLLM's default). Else a multiple of the alignment.
    """

    tokens: int


Retention: TypeAlias = Dense | Interval
