"""Two ghost tiers: what this engine has stored, and what another machine has computed.

`host` holds copies of this engine's own blocks. A store reads a findable block once the device has
written it, is pending for some ticks, and is then announced: only announced records are offered.
`remote` belongs to others and always holds what is right; what it offers is drawn.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kvbraid.loads import Record
from kvbraid.recovery.ledger.loading import can_end_before, useful_end
from kvbraid.scheduler import Offer, Query
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.ghost.device import first_read
from tests.ghost.truth import Truth

HOST: Final = "host"
REMOTE: Final = "remote"
REST_TICKS: Final = 3
"""For how long a tier is not asked that was backed off."""


@dataclass(slots=True)
class Place:
    """What a group has at a position of a prefix: `node` is the prefix up to its last token."""

    group: int
    position: int
    node: int


@dataclass
class Habits:
    """How the tiers of one engine answer."""

    async_share: float
    """The share of loads that are asynchronous."""
    remote_share: float
    """The share of questions to which `remote` has an answer."""
    store_share: float
    """The share of blocks that are stored."""


@dataclass
class _Pending:
    key: tuple[int, int]
    block: int
    values: list[int]
    due: int


@dataclass
class GhostTiers:
    """What the scheduler asks. `tick` is set by the simulation; so is `dead_until`, by tier."""

    truth: Truth
    topology: Topology
    random: Random
    habits: Habits
    tick: int = 0
    dead_until: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alignment = self.topology.alignment or self.topology.groups[0].block_size
        self._pending: list[_Pending] = []
        self._stored_from: dict[int, set[tuple[int, int]]] = {}
        self._resting: dict[str, int] = {}

    # Questions.

    def lookup(self, query: Query) -> Offer | None:
        nodes = self._nodes(query)
        names = [HOST, REMOTE]
        self.random.shuffle(names)
        for name in names:
            if name in query.refused or self._resting.get(name, -1) >= self.tick:
                continue
            is_async = self.random.random() < self.habits.async_share
            find = self._in_host if name == HOST else self._in_remote
            end = find(nodes, query.num_hit_tokens, is_async=is_async)
            if end is not None:
                last = self._end_of(nodes, end)
                places = needed_places(self.topology.groups, nodes, query.num_hit_tokens, last)
                records = tuple(
                    Record(name, key_of(place.group, place.node), is_foreign=name == REMOTE)
                    for place in places
                )
                return Offer(
                    num_tokens=end - query.num_hit_tokens,
                    tier=name,
                    is_async=is_async,
                    records=records,
                )
        return None

    def _nodes(self, query: Query) -> list[int]:
        node, nodes = self.truth.root(query.extra.cache_salt), []
        for token in query.tokens:
            node = self.truth.child(node, token)
            nodes.append(node)
        return nodes

    def _in_host(self, nodes: Sequence[int], hit: int, *, is_async: bool) -> int | None:
        last = (len(nodes) - (not is_async)) // self.alignment * self.alignment
        for end in range(last, hit, -self.alignment):
            places = needed_places(self.topology.groups, nodes, hit, self._end_of(nodes, end))
            if all((place.group, place.node) in self.records for place in places):
                return end
        return None

    def _end_of(self, nodes: Sequence[int], end: int) -> int:
        """Where a load that is offered up to `end` really ends."""
        groups, count = self.topology.groups, len(nodes)
        return useful_end(groups, count, self.alignment) if end == count else end

    def _in_remote(self, nodes: Sequence[int], hit: int, *, is_async: bool) -> int | None:
        if self.random.random() >= self.habits.remote_share:
            return None
        ends = list(range(hit + self.alignment, len(nodes) + is_async, self.alignment))
        if is_async and len(nodes) > hit and self.random.random() < 0.3:
            last = len(nodes) - 1
            is_short = self.random.random() < 0.3 and last > hit
            return last if is_short and can_end_before(self.topology.groups, last) else last + 1
        return self.random.choice(ends[-3:]) if ends else None

    # What recovery asks.

    def forget_blocks(self, block_ids: Collection[int]) -> None:
        gone = set(block_ids)
        self._pending = [each for each in self._pending if each.block not in gone]
        for block in gone:
            for key in self._stored_from.pop(block, ()):
                self.records.pop(key, None)

    def drop(self, record: Record) -> None:
        group, node = record.key.decode().split(":")
        if record.tier == HOST:
            self.records.pop((int(group), int(node)), None)

    def back_off(self, record: Record) -> None:
        self._resting[record.tier] = self.tick + REST_TICKS

    # What the engine does.

    def store(self, key: tuple[int, int], block: int, values: Sequence[int]) -> None:
        """Begin to store a block that the device has written."""
        if key not in self.records and self.random.random() < self.habits.store_share:
            due = self.tick + self.random.choice((0, 0, 1, 3))
            self._pending.append(_Pending(key, block, list(values), due))

    def announce(self) -> None:
        """Make loadable what was stored long enough ago."""
        due = [each for each in self._pending if each.due <= self.tick]
        self._pending = [each for each in self._pending if each.due > self.tick]
        for each in due:
            self.records[each.key] = each.values
            self._stored_from.setdefault(each.block, set()).add(each.key)

    def die(self, name: str, until: int) -> None:
        """Fail every load until a tick, and lose all records."""
        self.dead_until[name] = until
        if name == HOST:
            self.records.clear()
            self._pending.clear()

    def contents(self) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """All that is loadable, or going to be."""
        yield from self.records.items()
        for each in self._pending:
            yield each.key, each.values

    def is_dead(self, name: str) -> bool:
        return self.dead_until.get(name, -1) >= self.tick


def key_of(group: int, node: int) -> bytes:
    return f"{group}:{node}".encode()


def needed_places(
    groups: Sequence[GroupSpec], nodes: Sequence[int], start: int, end: int
) -> list[Place]:
    """The places that a load of the tokens from `start` to `end` has to fill."""
    places = []
    for group, spec in enumerate(groups):
        size, is_attention = spec.block_size, spec.kind is not SpecKind.MAMBA
        first = max(first_read(spec, end), start) // size
        for position in range(first, -(-end // size)):
            if not is_attention and position < -(-end // size) - 1:
                continue
            if first_read(spec, end) >= end:
                continue
            # A block that is needed in part is the one that is stored, if there are such tokens.
            last = min((position + 1) * size, len(nodes) if is_attention else end)
            places.append(Place(group, position, nodes[last - 1]))
    return places
