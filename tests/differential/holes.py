"""A cache and its model in lock-step, with holes: any block that an eviction could have taken."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import settings
from kvbraid.cache import CacheConfig, CacheManager, Match, Need
from kvbraid.ids import BlockId

from tests.reference.cache_model import CacheModel

EXAMPLES = settings(max_examples=2 * settings().max_examples)
MOST_TOKENS = 64  # Of a request, as long as the shortest model lets it be.
RATES = (0.0, 0.05, 0.2, 0.2, 0.6)
"""How many of a group's blocks are gone."""
ROOMY = 500  # Blocks: what is not taken out here stays.


class Both:
    """A cache and its model."""

    def __init__(self, config: CacheConfig) -> None:
        config = replace(config, num_blocks=ROOMY, caching=True, watermark=0.0)
        self.native, self.model = CacheManager(config), CacheModel(config)

    def run(self, tokens: Sequence[int], ends: Sequence[int]) -> None:
        """Have a request reuse what it can, compute the rest step by step, and go."""
        ours, theirs = self.native.add(tokens), self.model.add(tokens)
        match = self.match(ours, theirs)
        start = match.num_tokens
        for end in (*(end for end in ends if start < end < len(tokens)), len(tokens)):
            need = Need(request=ours, num_new_tokens=end - start)
            if start == match.num_tokens:
                need.num_hit_tokens, need.junction = match
            self.step(need, theirs)
            assert self.native.blocks(ours) == self.model.blocks(theirs)
            start = end
        self.native.release([ours])
        self.model.release([theirs])
        self.same_memory()

    def match(self, ours: int, theirs: int) -> Match:
        match = self.native.match(ours)
        assert match == self.model.match(theirs)
        return match

    def step(self, need: Need, theirs: int) -> None:
        self.native.start_step()
        self.model.start_step()
        assert self.native.allocate([need]).num_fit == 1
        assert self.model.allocate([replace(need, request=theirs)]).num_fit == 1
        assert self.native.take_work()[:2] == self.model.take_work()[:2]

    def look(self, tokens: Sequence[int]) -> None:
        """Look a request up, without giving it any block."""
        ours, theirs = self.native.add(tokens), self.model.add(tokens)
        self.match(ours, theirs)
        self.native.release([ours])
        self.model.release([theirs])

    def punch(self, random: Random, choices: Sequence[float] = RATES) -> None:
        """Take blocks out, of each group at another rate."""
        rates = [random.choice(choices) for _ in range(self.native.num_groups)]
        gone = [
            BlockId(block)
            for (group, _), blocks in sorted(self.model.debug.cached().items())
            for block in blocks
            if random.random() < rates[group]
        ]
        self.native.pool.forget(gone)
        self.model.pool.forget(gone)

    def same_memory(self) -> None:
        assert self.native.debug.cached() == self.model.debug.cached()
        assert self.native.debug.free_queue() == self.model.debug.free_queue()
        assert self.native.take_events().structs() == self.model.take_events()


def step_ends(random: Random, unit: int) -> list[int]:
    """Where steps end: mostly at hash boundaries, where states can be kept."""
    size = unit * random.choice((1, 1, 2, 3, 4)) + random.choice((0, 0, 0, 1))
    return list(range(size, MOST_TOKENS, size))
