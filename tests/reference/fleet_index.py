"""What a rank holds and can reuse, for a test that knows what every hash stands for.

Copies are counted one by one, requests are compared token by token, and the rule is brute force.
Besides a table of counts there is only `is_named`: whether dense stores from the start of a prompt
have shown the place of everything that is held. Then even an index that does not know the hash
function must answer exactly. The model shares no code and no structure with the native core.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kvbraid.ids import Tier
from kvbraid.spec import SpecKind, Topology

from tests.reference import resume as rule


class Prefix(NamedTuple):
    """What a hash stands for; also a whole request."""

    tokens: tuple[int, ...]
    salt: str | None = None
    lora: str | None = None

    def cut(self, num_tokens: int) -> "Prefix":
        return self._replace(tokens=self.tokens[:num_tokens])

    def is_prefix_of(self, request: "Prefix") -> bool:
        return request.cut(len(self.tokens)) == self


class Copies(NamedTuple):
    """What is counted together."""

    group: int
    tier: Tier
    block_hash: int
    is_partial: bool


class Answer(NamedTuple):
    """Reusable tokens."""

    lower: int
    upper: int


class RankModel:
    """One rank: its copies, those in doubt since a clear, and what its stores have told."""

    def __init__(self, topology: Topology, meaning: Mapping[int, Prefix]) -> None:
        self.topology = topology
        self.meaning = meaning
        self.copies: Counter[Copies] = Counter()
        self.doubted: Counter[Copies] = Counter()
        self._named: set[int] = set()
        self._chains: list[tuple[int, Sequence[int]]] = []

    def store(self, group: int, hashes: Iterable[int], tier: Tier, block_size: int) -> None:
        """Add a copy of each; a block smaller than the group's is part of one."""
        is_partial = 0 < block_size < self.topology.groups[group].block_size
        for block_hash in hashes:
            key = Copies(group, tier, block_hash, is_partial)
            self.copies[key] += 1

    def tell(self, parent: int | None, hashes: Sequence[int]) -> None:
        """A dense store was published: its hashes are named once its parent is."""
        if parent is None:
            self._named.update(hashes)
        else:
            self._chains.append((parent, hashes))
        for _ in self._chains:
            for known, below in self._chains:
                if known in self._named:
                    self._named.update(below)

    def remove(self, group: int, hashes: Iterable[int], tier: Tier) -> int:
        """Take one copy of each away; return how many there were."""
        removed = 0
        for block_hash in hashes:
            keys = [Copies(group, tier, block_hash, partial) for partial in (False, True)]
            held = [key for key in keys if self.copies[key]]
            if held:
                self.copies[held[0]] -= 1
                removed += 1
                continue
            doubted = [key for key in keys if self.doubted[key]]
            self.doubted.subtract(doubted)
            removed += bool(doubted)
        return removed

    def clear(self) -> None:
        """The engine forgot its GPU tier; what it said of the others may no longer hold."""
        for key, copies in self.copies.items():
            self.doubted[key] += copies if key.tier is not Tier.GPU else 0
        self.copies.clear()

    def restart(self) -> None:
        """As a clear; and what was told before need not be remembered, where nothing is held."""
        self.clear()
        self._named &= {key.block_hash for key in +self.doubted}
        self._chains.clear()

    def is_held(self, group: int, block_hash: int, *, is_partial: bool) -> bool:
        keys = (Copies(group, tier, block_hash, is_partial) for tier in Tier)
        return any(self.copies[key] or self.doubted[key] for key in keys)

    @property
    def named(self) -> set[int]:
        """The hashes whose places dense stores from the start of a prompt have shown."""
        return self._named

    @property
    def is_named(self) -> bool:
        """Whether everything held has its place from tokens alone."""
        return {key.block_hash for key in {*+self.copies, *+self.doubted}} <= self._named

    def held(
        self, request: Prefix, tiers: Collection[Tier], *, with_doubted: bool = False
    ) -> list[set[int]]:
        """Per group the boundaries of the request where it holds an entry."""
        held: list[set[int]] = [set() for _ in self.topology.groups]
        for key in {*+self.copies, *(+self.doubted if with_doubted else ())}:
            prefix = self.meaning[key.block_hash]
            end = len(prefix.tokens)
            is_interior = end % self.topology.groups[key.group].block_size != 0
            counts = self.topology.partial_hits and is_interior if key.is_partial else True
            if counts and key.tier in tiers and prefix.is_prefix_of(request):
                held[key.group].add(end)
        return held

    def answer(self, request: Prefix, tiers: Collection[Tier]) -> Answer:
        """What is certain, and what cannot be excluded, knowing the place of every hash."""
        length = len(request.tokens)
        certain = self.held(request, tiers)
        possible = self.held(request, tiers, with_doubted=True)
        lower = rule.resume(self.topology, length, certain)
        if possible == certain and not self._has_unknown:
            return Answer(lower, lower)
        upper = rule.resume(self.topology, length, possible, strict=False)
        return Answer(lower, max(lower, upper))

    def likely(self, request: Prefix, tiers: Collection[Tier]) -> int:
        """What is reused if the engine has kept all copies in doubt."""
        held = self.held(request, tiers, with_doubted=True)
        return rule.resume(self.topology, len(request.tokens), held)

    def score(self, request: Prefix, weights: Mapping[Tier, float]) -> float:
        """What is likely reused, each token with the weight of its tier."""
        tokens = self.likely(request, list(Tier))
        boundary = tokens + self.topology.replay_tokens
        worth = [weights[self._tier(request, token, boundary)] for token in range(boundary)]
        return sum(worth) * tokens / max(boundary, 1)

    def _tier(self, request: Prefix, token: int, boundary: int) -> Tier:
        """The furthest of the tiers on which the groups that need this token hold it."""
        order = list(Tier)
        tiers = [Tier.GPU]
        for index, group in enumerate(self.topology.groups):
            block = token // group.block_size
            restricts = rule.restricts(self.topology, group, strict=True)
            if restricts and block in rule.needed_blocks(group, boundary):
                end = (block + 1) * group.block_size
                has_own = group.kind is SpecKind.MAMBA and boundary < end
                ends = range(min(boundary, end), 1 + (boundary if has_own else end))
                tiers.append(self._nearest(request, index, ends))
        return max(tiers, key=order.index)

    def _nearest(self, request: Prefix, group: int, ends: range) -> Tier:
        """The nearest tier with an entry that ends here, in doubt only where no other has one."""
        for doubted in (False, True):
            for tier in Tier:
                held = self.held(request, [tier], with_doubted=doubted)[group]
                if not held.isdisjoint(ends):
                    return tier
        return Tier.STORAGE

    @property
    def _has_unknown(self) -> bool:
        return any(
            group.kind is SpecKind.UNKNOWN
            or (group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and group.chunk is None)
            for group in self.topology.groups
            if group.prefix_cacheable
        )

    def present(self, request: Prefix, tiers: Collection[Tier]) -> int:
        """The longest prefix held by the full-attention part or, without one, by any group."""
        return rule.present(self.topology, len(request.tokens), self.held(request, tiers))
