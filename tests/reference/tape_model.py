"""When shadows of a large pool play, and what: stretches of the traffic, little by little.

A stretch is a list of lives. How much of it was recorded or played is counted from the
list each time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvbraid.cache import CacheConfig

MOST_BLOCKS, MOST_TOKENS, SMALLEST_SAMPLE = 8_192, 128, 8
FILLS, BEGINNING, ONE_IN, ONE_IN_AT_FIRST = 16, 4, 16, 1
COMMON, HALVED_AT = 16, 1_024


@dataclass(frozen=True)
class Life:
    """A request that has ended."""

    hashes: list[bytes]
    num_prompt_tokens: int
    num_tokens: int
    step_ends: list[int]
    hint: float | None = None


@dataclass(frozen=True)
class Scale:
    """The blocks of a shadow, how many real blocks each of them is, and which families are played:
    one in so many."""

    num_blocks: int
    blocks: int = 1
    sample: int = 1

    @classmethod
    def of(cls, config: CacheConfig) -> "Scale":
        """Larger blocks if there would be too many; fewer families if that is not enough."""
        num_blocks, sample = config.num_blocks, 1
        if num_blocks <= MOST_BLOCKS:
            return cls(num_blocks)
        size = min(g.block_size for g in config.topology.groups if g.prefix_cacheable)
        blocks = max([1, *(2**n for n in range(8) if size * 2**n <= MOST_TOKENS)])
        while num_blocks // (blocks * sample) > MOST_BLOCKS and sample < SMALLEST_SAMPLE:
            sample *= 2
        return cls(num_blocks // (blocks * sample), blocks, sample)


def is_played(block_hash: bytes, one_in: int) -> bool:
    """Whether one in so many families is played if that is the family of a block."""
    key = int.from_bytes(block_hash[-8:], "big")
    return (key * 0x9E37_79B9_7F4A_7C15 % 2**64 >> 32) % one_in == 0


@dataclass
class Sample:
    """A family is what has a block that is not common, after common ones."""

    one_in: int
    num_requests: int = 0
    counts: Counter[bytes] = field(default_factory=Counter)

    def takes(self, hashes: Sequence[bytes]) -> bool:
        if self.one_in == 1:
            return True
        self.num_requests += 1
        family = b""
        for family in hashes:
            self.counts[family] += 1
            if self.counts[family] <= self.num_requests // COMMON + 1:
                break
        if self.num_requests == HALVED_AT:
            self.num_requests //= 2
            self.counts = Counter({block: n // 2 for block, n in self.counts.items() if n > 1})
        return is_played(family, self.one_in)


@dataclass
class Tape:
    """`fill` hashes fill a shadow; None: lives are played as they end."""

    fill: int | None
    num_shadows: int
    stretches: list[list[Life]] = field(default_factory=lambda: [[]])
    num_played: int = 0  # Lives of the last stretch.
    paid: int = 0

    def end(self, life: Life | None, num_hashes: int) -> Iterator[tuple[Life, bool]]:
        """A request has ended, and pays: what is played now, and whether it counts. None: a
        request that is not in the sample."""
        stretch = self.stretches[-1]
        if life is not None and not self.is_recorded(stretch):
            stretch.append(life)
        self.paid += num_hashes
        while self.num_played < len(stretch):
            life = stretch[self.num_played]
            is_beginning = self.is_beginning(stretch[: self.num_played])
            is_first = len(self.stretches) == 1
            price = 0 if is_first and is_beginning else self.price(life)
            if price > self.paid:
                return
            self.paid -= price
            self.num_played += 1
            yield life, is_first or not is_beginning
            if self.num_played == len(stretch) and self.is_recorded(stretch):
                stretch, self.num_played = [], 0
                self.stretches.append(stretch)
        self.paid = 0

    def is_recorded(self, stretch: Sequence[Life]) -> bool:
        return self.fill is not None and length(stretch) >= FILLS * self.fill

    def is_beginning(self, before: Sequence[Life]) -> bool:
        return self.fill is not None and length(before) < BEGINNING * self.fill

    def price(self, life: Life) -> int:
        """One hash in so many is played, by any shadow."""
        one_in = ONE_IN if len(self.stretches) > 1 else ONE_IN_AT_FIRST
        return 0 if self.fill is None else one_in * self.num_shadows * len(life.hashes)


def length(stretch: Sequence[Life]) -> int:
    return sum(len(life.hashes) for life in stretch)
