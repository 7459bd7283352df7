"""A cache of checkpoints, for policies of retention that the package does not have.

It counts blocks as the package does, but plays one request at a time and knows no content: a
prefix is the number of its last unit. A checkpoint is a boundary whose windows and states are
kept, with the full-attention blocks that lead to it. Where a model has neither, every boundary
that the full-attention blocks lead to can be resumed at.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kvbraid.sim.traces.prefix_hashes import num_leading
from kvbraid.spec import GroupSpec, SpecKind

from bench.retention.play import WARM_UP
from bench.retention.workloads import Ask, Tokens

Prefix: TypeAlias = int
Path: TypeAlias = tuple[Prefix, ...]
"""The prefixes of a prompt, one per whole unit."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The blocks of a model: per unit of full attention, and of the tail of a checkpoint."""

    unit: int
    per_unit: int
    per_checkpoint: int

    @classmethod
    def of(cls, groups: Sequence[GroupSpec]) -> "Sizes":
        """Count the blocks of groups whose blocks all have the same number of tokens."""
        windows = [(group.window or 1) - 1 for group in groups if group.kind.is_window]
        unit = groups[0].block_size
        return cls(
            unit=unit,
            per_unit=sum(group.kind is SpecKind.FULL_ATTENTION for group in groups),
            per_checkpoint=sum(-(-tokens // unit) for tokens in windows)
            + sum(group.kind is SpecKind.MAMBA for group in groups),
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """A request: its place in the traffic, its prefixes, and how many tokens count as reusable."""

    number: int
    path: Path
    num_tokens: int
    reusable: int

    def usable(self, unit: int) -> int:
        """Return the units that can be reused: one token is always computed."""
        return (self.num_tokens - 1) // unit


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A boundary that can be resumed at. `depth` counts units."""

    path: Path
    depth: int
    used_at: int
    parent: "Checkpoint | None"
    children: list["Checkpoint"] = field(default_factory=list)
    own_units: int | None = None
    """The units that lead to it alone; None: to be counted again."""

    @property
    def prefix(self) -> Prefix:
        """The prefix that ends here."""
        return self.path[self.depth - 1]

    @property
    def start(self) -> int:
        """The depth at which a request would resume without it."""
        return self.parent.depth if self.parent else 0


class Policy(Protocol):
    """What is kept of a request, and what goes first."""

    def keep(self, visit: Visit, hit: int, cache: "Cache") -> Iterable[int]:
        """Return the depths at which a request that resumed at `hit` leaves checkpoints."""
        ...

    def victim(self, candidates: Sequence[Checkpoint], now: int, cache: "Cache") -> Checkpoint:
        """Return the checkpoint that goes."""
        ...


class Cache:
    """The checkpoints that are kept in a pool. The policy decides; the cache counts."""

    def __init__(self, sizes: Sizes, num_blocks: int, policy: Policy) -> None:
        self.sizes = sizes
        self.num_blocks = num_blocks
        self.policy = policy
        self.kept: dict[Prefix, Checkpoint] = {}
        self.roots: list[Checkpoint] = []
        self._leads: Counter[Prefix] = Counter()

    @property
    def num_used(self) -> int:
        """The blocks that are kept."""
        sizes = self.sizes
        return sizes.per_unit * len(self._leads) + sizes.per_checkpoint * len(self.kept)

    def held(self, path: Path) -> int:
        """Return how many units of full attention are kept of a path."""
        return num_leading(path, self._leads.__contains__)

    def serve(self, visit: Visit) -> int:
        """Play a request; return the units that it reuses."""
        usable = visit.path[: visit.usable(self.sizes.unit)]
        resumed = self._deepest(usable)
        hit = resumed.depth if resumed else 0
        if not self.sizes.per_checkpoint:
            hit = self.held(usable)
        boundaries = [*self.policy.keep(visit, hit, self)]
        if resumed:
            resumed.used_at = visit.number
        needed = -(-visit.num_tokens // self.sizes.unit) - self.held(visit.path)
        self._make_room(
            needed * self.sizes.per_unit + self.sizes.per_checkpoint, visit.number, resumed
        )
        for depth in boundaries:
            if hit < depth <= len(visit.path):
                self._add(visit, depth)
        self._make_room(0, visit.number, None)
        return hit

    def freed(self, checkpoint: Checkpoint) -> int:
        """Return the blocks that are free without a checkpoint."""
        sizes = self.sizes
        if checkpoint.children:
            return sizes.per_checkpoint
        if checkpoint.own_units is None:
            leads = (
                self._leads[prefix] for prefix in reversed(checkpoint.path[: checkpoint.depth])
            )
            alone = next((n for n, count in enumerate(leads) if count > 1), checkpoint.depth)
            checkpoint.own_units = alone
        return sizes.per_checkpoint + sizes.per_unit * checkpoint.own_units

    def _deepest(self, path: Path) -> Checkpoint | None:
        found = (self.kept.get(prefix) for prefix in reversed(path))
        return next((checkpoint for checkpoint in found if checkpoint), None)

    def _make_room(self, num_blocks: int, now: int, pinned: Checkpoint | None) -> None:
        while self.num_used + num_blocks > self.num_blocks:
            candidates = [each for each in self.kept.values() if each is not pinned]
            if not candidates:
                return
            self._remove(self.policy.victim(candidates, now, self))

    def _add(self, visit: Visit, depth: int) -> None:
        prefix = visit.path[depth - 1]
        if known := self.kept.get(prefix):
            known.used_at = visit.number
            return
        parent = self._deepest(visit.path[: depth - 1])
        new = Checkpoint(visit.path, depth, visit.number, parent)
        siblings = parent.children if parent else self.roots
        new.children = [
            each for each in siblings if each.depth > depth and each.path[depth - 1] == prefix
        ]
        siblings[:] = [each for each in siblings if each not in new.children]
        siblings.append(new)
        for child in new.children:
            child.parent = new
        self.kept[prefix] = new
        self._leads.update(visit.path[:depth])
        self._count_again(new)

    def _remove(self, old: Checkpoint) -> None:
        siblings = old.parent.children if old.parent else self.roots
        siblings.remove(old)
        siblings.extend(old.children)
        for child in old.children:
            child.parent = old.parent
        del self.kept[old.prefix]
        for prefix in old.path[: old.depth]:
            self._leads[prefix] -= 1
            if not self._leads[prefix]:
                del self._leads[prefix]
        self._count_again(old)

    def _count_again(self, changed: Checkpoint) -> None:
        """Forget the counts of those whose blocks may now lead to them alone, or no longer."""
        siblings = changed.parent.children if changed.parent else self.roots
        for each in (*siblings, *changed.children, *([changed.parent] if changed.parent else [])):
            each.own_units = None


class Numbers:
    """Numbers for prefixes: the same prefix always has the same one."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._numbers: dict[tuple[Prefix, bytes], Prefix] = {}

    def path(self, tokens: Tokens) -> Path:
        """Return the prefixes of a prompt."""
        path: list[Prefix] = []
        for start in range(0, len(tokens) - self._unit + 1, self._unit):
            key = (path[-1] if path else 0, tokens[start : start + self._unit].tobytes())
            path.append(self._numbers.setdefault(key, len(self._numbers) + 1))
        return tuple(path)


def visits(asks: Iterable[Ask], sizes: Sizes, num_blocks: int) -> list[Visit]:
    """Number the requests that the empty pool can hold."""
    numbers = Numbers(sizes.unit)

    def fits(ask: Ask) -> bool:
        blocks = -(-len(ask.tokens) // sizes.unit) * sizes.per_unit + sizes.per_checkpoint
        return blocks < num_blocks

    return [
        Visit(number, numbers.path(ask.tokens), len(ask.tokens), ask.reusable)
        for number, ask in enumerate(asks)
        if fits(ask)
    ]


def hit_rate(cache: Cache, played: Sequence[Visit], *, warm_up: int = WARM_UP) -> float:
    """Return the reused share of the reusable tokens after the warm-up, in percent."""
    reused = reusable = 0
    for visit in played:
        hit = cache.serve(visit) * cache.sizes.unit
        if visit.number >= warm_up:
            reused += min(hit, visit.reusable)
            reusable += visit.reusable
    return 100 * reused / max(reusable, 1)


def overlaps(played: Iterable[Visit], unit: int) -> Iterator[int]:
    """Yield how many units of each request some request before it had."""
    seen: set[Prefix] = set()
    for visit in played:
        path = visit.path[: visit.usable(unit)]
        yield num_leading(path, seen.__contains__)
        seen.update(visit.path)
