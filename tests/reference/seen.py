"""What was ever shown of a prompt, boundary by boundary: the model of `FleetIndex.seen`."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd

from kvbraid.spec import Topology

from tests.reference import resume as rule
from tests.reference.fleet_index import Prefix, RankModel

ROW = 16
"""Boundaries in a table of one row, which takes 256 bytes: so many are known, so many wait."""


def promised(topology: Topology, prompt: Prefix) -> list[Prefix]:
    """The boundaries of a prompt that a promise to a rank shows, the shortest first."""
    sizes = [group.block_size for group in topology.groups if group.prefix_cacheable]
    parts = rule.hash_block(topology) if topology.partial_hits else 0
    unit = gcd(*sizes, rule.alignment(topology), parts)
    return [prompt.cut(end) for end in range(unit, len(prompt.tokens) + 1, unit)]


def longest(shown: Iterable[Prefix], request: Prefix) -> int:
    """The tokens of the longest of these that the request begins with."""
    return max((len(prefix.tokens) for prefix in shown if prefix.is_prefix_of(request)), default=0)


@dataclass
class Shown:
    """All that was ever shown: what the index knows for certain, and what it may know.

    It may know where any hash stands that an event has told of. It knows for certain where those
    stand that dense stores from the start of a prompt have told of.
    """

    certain: set[Prefix] = field(default_factory=set)
    possible: set[Prefix] = field(default_factory=set)

    def promise(self, topology: Topology, prompt: Prefix) -> None:
        """A prompt was promised to a rank."""
        self.certain.update(promised(topology, prompt))
        self.possible |= self.certain

    def publish(self, rank: RankModel, told: Iterable[int]) -> None:
        """A rank has told of these hashes: it has stored them, or something after them."""
        hashes = set(told)
        self.possible |= {rank.meaning[block_hash] for block_hash in hashes}
        self.certain |= {rank.meaning[block_hash] for block_hash in rank.named}
        self.possible |= self.certain


class Table:
    """A table of one row: what was shown longest ago is forgotten, whether anybody asks or not."""

    def __init__(self) -> None:
        self.known: OrderedDict[Prefix, None] = OrderedDict()
        self.waiting: deque[Prefix] = deque(maxlen=ROW)
        self.num_forgotten = 0

    def show(self, prefix: Prefix) -> None:
        """A boundary was shown; it waits until somebody asks."""
        self.num_forgotten += len(self.waiting) == ROW
        self.waiting.append(prefix)

    def settle(self) -> None:
        """Somebody asks: what waits is known from now on."""
        for prefix in self.waiting:
            self.known[prefix] = None
            self.known.move_to_end(prefix)
            if len(self.known) > ROW:
                self.known.popitem(last=False)
                self.num_forgotten += 1
        self.waiting.clear()
