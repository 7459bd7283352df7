"""Which blocks a cache keeps findable: those that a resume at a kept boundary would read.

One question per block, answered by trying every boundary; shared by all dialects.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbraid.cache import Interval, Retention
from kvbraid.spec import GroupSpec, SpecKind


@dataclass(frozen=True)
class Keeper:
    """What a group keeps. `alignment` is where hits can end; `eagle` that a hit of this group
    needs one block beyond its end, because a draft head reads it (or shares its spec)."""

    group: GroupSpec
    eagle: bool
    alignment: int
    retention: Retention

    def keeps(self, block: int, reused: Sequence[int]) -> bool:
        """Whether a block is kept; `reused` are places where a later request may resume."""
        if self.group.kind is SpecKind.MAMBA:
            return self._keeps_state(block, reused)
        if self.group.kind.is_window:
            return self._keeps_window(block, reused)
        return True

    def _keeps_state(self, block: int, reused: Sequence[int]) -> bool:
        """A state serves the one boundary that it was taken at."""
        if not isinstance(self.retention, Interval):
            return True
        size, every = self.group.block_size, self.retention.tokens
        end = (block + 1) * size
        if every and (every <= size or end % (every // size * size) == 0):
            return True
        return any(self._floor(at) // size * size == end for at in reused)

    def _keeps_window(self, block: int, reused: Sequence[int]) -> bool:
        """A hit reads the last `span` blocks, and then the one beyond for a draft head."""
        assert self.group.window is not None
        size, sparse = self.group.block_size, isinstance(self.retention, Interval)
        if self.alignment % size:
            return True
        span = -(-(self.group.window - 1) // size) + self.eagle
        ends = [self._floor(at) for at in reused] if sparse else []
        every = self.retention.tokens if isinstance(self.retention, Interval) else self.alignment
        if every:
            if span >= every // size:
                return True  # Every block lies in some boundary's window.
            last = (block + 1) * size + every
            ends += range(every, last + 1, every)
        return any(
            end // size + self.eagle - span <= block < end // size + self.eagle for end in ends
        )

    def _floor(self, tokens: int) -> int:
        return tokens // self.alignment * self.alignment


def reused_boundaries(num_prompt_tokens: int, alignment: int, *, eagle: bool) -> list[int]:
    """Where a later request with this prompt resumes: the same prompt leaves one token to
    compute; a longer one, with a draft head, falls back a unit from the last whole one."""
    if not eagle:
        return [num_prompt_tokens - 1]
    resent = (num_prompt_tokens - 1) // alignment * alignment - alignment
    longer = num_prompt_tokens // alignment * alignment - alignment
    return sorted({max(resent, 0), max(longer, 0)})
