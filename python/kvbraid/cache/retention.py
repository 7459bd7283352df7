"""Policies for which window blocks and states stay findable. They are data; the core applies them.

Full-attention and chunked groups keep every block under every policy.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from kvbraid.models import PrefillCost
from kvbraid.reading import check, check_fields, whole


@dataclass(frozen=True, slots=True)
class Dense:
    """Keep every block that can serve a boundary (vLLM with retention off)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Keep the blocks that serve a resume at multiples of `tokens`, prompt ends and junctions.

    With 0 (vLLM's default) only those for prompt ends and junctions are kept. Any other value must
    be a multiple of the alignment.

    Raises:
        InvalidValueError: The interval is negative.
    """

    tokens: int

    def __post_init__(self) -> None:
        check_fields(self, {"tokens": whole()})


class EvictionPolicy(Enum):
    """What is evicted first under retention by value.

    VALUE     what no checkpoint needs, then the checkpoint that is worth least
    DENSE     what was used least recently, whether a checkpoint needs it or not
    INTERVAL  what no checkpoint needs, then the checkpoint that was used least recently
    """

    VALUE = "value"
    DENSE = "dense"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByValue:
    """Keep every block that can serve a boundary while there is room; then evict what saves least.

    Checkpoints are the boundaries where prompts and requests end, where requests branch off, and
    every `interval` tokens. The traffic decides what goes first: simulated caches, one for each
    policy, say which one would have saved most lately. It begins with `EvictionPolicy.VALUE`. The
    formula of a value is in docs/cache.md.

    Attributes:
        interval: Tokens between checkpoints, a multiple of the alignment; 0: none at intervals.
        cost: The compute that a reused token saves.
        policy: What goes first, always; None: the traffic decides.

    Raises:
        InvalidValueError: The interval is negative.
    """

    interval: int = 0
    cost: PrefillCost = PrefillCost()  # noqa: RUF009 - frozen
    policy: EvictionPolicy | None = None

    def __post_init__(self) -> None:
        check("ByValue.interval", self.interval, whole())
        check_fields(self, {"cost": PrefillCost, "policy": EvictionPolicy | None})

    def aligned(self, alignment: int) -> "ByValue":
        """Return a copy whose interval is a multiple of `alignment` tokens.

        It is rounded down, so that a step of `interval` tokens reaches it; but not to 0.
        """
        whole = self.interval // alignment * alignment
        return replace(self, interval=whole or min(self.interval, 1) * alignment)


Retention: TypeAlias = Dense | Interval | ByValue


def checkpoint_interval(retention: Retention) -> int:
    """Return the number of tokens at whose multiples steps have to end for checkpoints; 0: none.

    vLLM does not end steps at the multiples of its own interval: it keeps only the states of steps
    that happen to end there. `Interval` does the same.
    """
    return retention.interval if isinstance(retention, ByValue) else 0
