"""An engine with a pool of so many blocks, and what can be known of it after messages were lost.

The engine is as inconvenient as that of `fleet_traffic`, except that each entry takes a block, and
the oldest or any entry makes room for a new one. What is known is counted on paper: entries told
of since the loss, and how many others the pool may still hold. Every length is tried.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kvbraid.events.model import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbraid.ids import Tier
from kvbraid.spec import Topology

from tests.reference import resume as rule
from tests.reference.fleet_index import Answer, Prefix, RankModel
from tests.reference.fleet_traffic import Engine


@dataclass(slots=True)
class PooledEngine(Engine):
    """An engine whose entries fit into a pool; some blocks at times hold no entry."""

    pool_size: int = 1

    def _store(
        self, group: int, prompt: Prefix, span: tuple[int, int], size: int, tier: Tier
    ) -> None:
        """Make room first, as an engine does: it tells of what goes before what comes."""
        start, end = span
        end = min(end, start + self.pool_size * size)
        self.make_room((end - start) // size)
        Engine._store(self, group, prompt, (start, end), size, tier)

    def make_room(self, blocks: int) -> None:
        """Take entries away until so many blocks hold none."""
        while self.num_entries + min(blocks, self.pool_size) > self.pool_size:
            held = list((+self.model.copies).elements())
            key = self.random.choice((held[0], self.random.choice(held)))
            self.pending.append(BlockRemoved(block_hashes=(key.block_hash,), group_idx=key.group))
            self.removed += self.model.remove(key.group, [key.block_hash], Tier.GPU)

    @property
    def num_entries(self) -> int:
        return (+self.model.copies).total()


class LateKnowledge:
    """What is known of a rank's GPU since its messages were lost."""

    def __init__(self, engine: PooledEngine) -> None:
        self.topology = engine.topology
        self.pool_size = engine.pool_size
        self.known = RankModel(engine.topology, engine.hashes.meaning)
        self.unknown = engine.pool_size

    def learn(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.known.clear()
                self.unknown = 0
            elif isinstance(event, BlockRemoved):
                self._remove(event.group_idx or 0, event.block_hashes)
            else:
                assert isinstance(event, BlockStored)
                group, hashes = event.group_idx or 0, event.block_hashes
                self.known.store(group, hashes, Tier.GPU, event.block_size)
            self.unknown = min(self.unknown, self.pool_size - (+self.known.copies).total())

    def _remove(self, group: int, hashes: Iterable[int]) -> None:
        """What was removed and not known was one of the unknown, if it cannot have been a part."""
        for block_hash in hashes:
            was_known = self.known.remove(group, [block_hash], Tier.GPU)
            is_whole = self.topology.groups[group].block_size == rule.hash_block(self.topology)
            if not was_known and is_whole:
                self.unknown = max(0, self.unknown - 1)

    def answer(self, request: Prefix) -> Answer:
        """What is certain, and the longest prefix that lacks no more than may be there unknown."""
        held = self.known.held(request, [Tier.GPU])
        num_tokens = len(request.tokens)
        step = rule.alignment(self.topology)
        lengths = range((num_tokens - 1) // step * step, 0, -step) if num_tokens else ()
        upper = next((n for n in lengths if self._lacks(n, num_tokens, held) <= self.unknown), 0)
        lower = rule.resume(self.topology, num_tokens, held)
        return Answer(lower, max(upper - self.topology.replay_tokens, 0))

    def _lacks(self, length: int, num_tokens: int, held: list[set[int]]) -> float:
        """How many blocks that a resume needs are not known; endless if it could never be."""
        lacks = 0.0
        for group, ends in zip(self.topology.groups, held, strict=True):
            if not rule.restricts(self.topology, group, strict=True):
                continue
            needed = {(b + 1) * group.block_size for b in rule.needed_blocks(group, length)}
            if length % group.block_size or any(end > num_tokens for end in needed):
                return float("inf")
            lacks += len(needed - ends)
        return lacks


def has_unknown(topology: Topology) -> bool:
    """Whether what some group needs is not known."""
    return any(
        rule.restricts(topology, group, strict=True)
        and not rule.restricts(topology, group, strict=False)
        for group in topology.groups
    )
