"""At which lengths requests branch off from what earlier ones had, from all that is remembered.

What was seen is a table of slots, of which each remembers the last prefix that fell on it. All
counts are made anew from the remembered overlaps.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

RECENT, LEAST, MOST, MOST_BOUNDARIES = 256, 8, 4, 4096
MADE, KNOWN, WORTH_A_STEP, TRIES = 256, 16, 24, 64


@dataclass
class Overlaps:
    num_slots: int
    seen: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """For each slot the print of a prefix, and whether a prompt ended there."""
    overlaps: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    """The tokens of each prompt."""
    num_made: int = 0
    num_saved: int = 0

    @classmethod
    def of_pool(cls, num_blocks: int) -> "Overlaps":
        return cls(1 << (4 * num_blocks - 1).bit_length())

    def place(self, prefix: bytes) -> tuple[int, int]:
        slot = int.from_bytes(prefix[:4], "little") % self.num_slots
        return slot, (int.from_bytes(prefix[4:8], "little") | 2) & ~1

    def note(self, num_tokens: int, prefixes: Sequence[bytes], unit: int) -> None:
        """A prompt: its tokens, and the hashes at its boundaries, every `unit` tokens."""
        self.prompts.append(num_tokens)
        places = [self.place(prefix) for prefix in prefixes[:MOST_BOUNDARIES]]
        found = [self.seen.get(slot, (0, False)) for slot, _ in places]
        held = [at for at, (_, own) in enumerate(places) if found[at][0] == own]
        at = max(held, default=-1)
        is_branch = at >= 0 and not found[at][1]
        for slot, own in places:
            if self.seen.get(slot, (0, False))[0] != own:
                self.seen[slot] = (own, False)
        if places:
            slot, _ = places[-1]
            self.seen[slot] = (self.seen[slot][0], True)
        self.overlaps.append((at + 1) * unit if is_branch else 0)

    @property
    def counts(self) -> Counter[int]:
        """How many of the remembered overlaps had each length."""
        return Counter(length for length in self.overlaps[-RECENT:] if length)

    @property
    def expected(self) -> list[int]:
        """The lengths that come back, in order."""
        often = [(-count, length) for length, count in self.counts.items() if count >= LEAST]
        return sorted(length for _, length in sorted(often)[:MOST])

    def stops(self, request: int) -> list[int]:
        """Where a request's steps should end. If what is kept there saves little, a request now
        and then tries the most common length, and the longest of equally common ones."""
        if self.num_made < KNOWN or self.is_worth:
            return self.expected
        if request % TRIES:
            return []
        return sorted(self.expected, key=lambda at: (self.counts[at], at))[-1:]

    @property
    def is_worth(self) -> bool:
        """Whether what is kept saves enough of an average prompt."""
        recent = self.prompts[-RECENT:]
        average = Fraction(sum(recent), len(recent))
        return Fraction(self.num_saved, self.num_made) * WORTH_A_STEP >= average

    def made(self) -> None:
        self.num_made += 1
        if self.num_made >= MADE:
            self.num_made //= 2
            self.num_saved //= 2
