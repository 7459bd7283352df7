"""How likely the end of a request is resumed, and what callers' hints change of that.

Ends are told apart by how their request began, and by what was said of them. An end that was
evicted still counts when somebody goes on from it. A table of fixed size remembers the ends: each
prefix has one slot, and a later end in the same slot replaces the earlier one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Ending(Enum):
    START = "a request that began something new"
    TURN = "a request that went on where another had ended"


GUESSES = {Ending.START: 1 / 4, Ending.TURN: 1 / 2}


class End(NamedTuple):
    """How a request ends, and what was said of it: a probability in quarters; None: nothing."""

    ending: Ending = Ending.START
    hint: float | None = None


BEGUN = End()


@dataclass
class Rate:
    """As often as lately, beginning with a guess that counts for eight."""

    guess: float
    seen: float = 0
    resumed: float = 0

    def see(self, memory: int = 256) -> None:
        self.seen = self.seen * (1 - 1 / memory) + 1
        self.resumed *= 1 - 1 / memory

    @property
    def value(self) -> float:
        return (self.resumed + 8 * self.guess) / (self.seen + 8)


def in_quarters(will_return: float | None) -> float | None:
    """The nearest one, of two the higher."""
    return None if will_return is None else int(4 * will_return + 0.5) / 4


@dataclass
class Returns:
    num_slots: int
    is_used: bool = False
    waiting: dict[int, tuple[bytes, End]] = field(default_factory=dict)
    kinds: dict[End, Rate] = field(default_factory=dict)
    all: dict[Ending, Rate] = field(default_factory=dict)

    @classmethod
    def of_pool(cls, num_blocks: int) -> "Returns":
        return cls(1 << (num_blocks - 1).bit_length())

    def rates(self, end: End) -> tuple[Rate, Rate]:
        """Of ends of which that was said, and of all."""
        guess = GUESSES[end.ending]
        kind = Rate(guess if end.hint is None else end.hint)
        return self.kinds.setdefault(end, kind), self.all.setdefault(end.ending, Rate(guess))

    def left(self, prefix: bytes, end: End) -> None:
        """A request has ended there. Until something is said of one, nothing is counted."""
        self.is_used |= end.hint is not None
        if self.is_used:
            for rate in self.rates(end):
                rate.see(memory=2_048)
            self.waiting[self.slot(prefix)] = (prefix, end)

    def started(self, prefixes: Sequence[bytes]) -> None:
        """A request starts that has these prefixes: the longest that was an end came back."""
        for prefix in reversed(prefixes):
            held, end = self.waiting.get(self.slot(prefix), (b"", BEGUN))
            if held == prefix:
                for rate in self.rates(end):
                    rate.resumed += 1
                del self.waiting[self.slot(prefix)]
                return

    def lift(self, end: End) -> float:
        """How much likelier it comes back than others, because of what was said."""
        kind, every = self.rates(end)
        return kind.value / every.value

    def slot(self, prefix: bytes) -> int:
        return int.from_bytes(prefix[:4], "little") % self.num_slots
