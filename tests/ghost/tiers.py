"""The tiers of one engine: its own, which are real, and what another machine has computed.

The engine's own tiers are an `OffloadManager`; `ranks` carries out its jobs. `remote` belongs to
others and always holds what is right; what it offers is drawn.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kvbraid.ids import BlockId
from kvbraid.loads import Failures, Record
from kvbraid.recovery.ledger.loading import can_end_before, useful_end
from kvbraid.scheduler import Offer, Query
from kvbraid.spec import GroupSpec, SpecKind, Topology
from kvbraid.transfer.tiered_loads import TieredLoads

from tests.ghost.device import first_read
from tests.ghost.truth import Truth

REMOTE: Final = "remote"
REST_TICKS: Final = 3
"""For how long `remote` is not asked after it was backed off."""


@dataclass(slots=True)
class Place:
    """What a group has at a position of a prefix: `node` is the prefix up to its last token."""

    group: int
    position: int
    node: int


@dataclass
class Habits:
    """How the tiers of one engine answer.

    `async_share` is the share of loads from `remote` that are asynchronous, `remote_share` the
    share of questions to which it has an answer.
    """

    async_share: float
    remote_share: float


@dataclass
class GhostTiers:
    """What the scheduler asks. `tick` is set by the simulation; `own` are the real tiers."""

    truth: Truth
    topology: Topology
    random: Random
    habits: Habits
    own: TieredLoads | None
    tick: int = 0
    dead_until: int = -1
    _rests_until: int = field(default=-1)

    def __post_init__(self) -> None:
        self.alignment = self.topology.alignment or self.topology.groups[0].block_size

    # Questions.

    def lookup(self, query: Query) -> Offer | None:
        finds = [self._in_remote] if self.own is None else [self.own.lookup, self._in_remote]
        self.random.shuffle(finds)
        return next((offer for find in finds if (offer := find(query))), None)

    def _in_remote(self, query: Query) -> Offer | None:
        if REMOTE in query.refused or self._rests_until >= self.tick:
            return None
        nodes, hit = self._nodes(query), query.num_hit_tokens
        is_async = self.random.random() < self.habits.async_share
        end = self._end(nodes, hit, is_async=is_async)
        if end is None:
            return None
        places = needed_places(self.topology.groups, nodes, hit, self._end_of(nodes, end))
        records = tuple(
            Record(REMOTE, key_of(place.group, place.node), is_foreign=True) for place in places
        )
        return Offer(num_tokens=end - hit, tier=REMOTE, is_async=is_async, records=records)

    def _nodes(self, query: Query) -> list[int]:
        node, nodes = self.truth.root(query.extra.cache_salt), []
        for token in query.tokens:
            node = self.truth.child(node, token)
            nodes.append(node)
        return nodes

    def _end_of(self, nodes: Sequence[int], end: int) -> int:
        """Where a load that is offered up to `end` really ends."""
        groups, count = self.topology.groups, len(nodes)
        return useful_end(groups, count, self.alignment) if end == count else end

    def _end(self, nodes: Sequence[int], hit: int, *, is_async: bool) -> int | None:
        if self.random.random() >= self.habits.remote_share:
            return None
        ends = list(range(hit + self.alignment, len(nodes) + is_async, self.alignment))
        if is_async and len(nodes) > hit and self.random.random() < 0.3:
            last = len(nodes) - 1
            is_short = self.random.random() < 0.3 and last > hit
            return last if is_short and can_end_before(self.topology.groups, last) else last + 1
        return self.random.choice(ends[-3:]) if ends else None

    # What recovery asks.

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        return self.own.forget_blocks(block_ids) if self.own else Failures()

    def drop(self, record: Record) -> None:
        if self.own:
            self.own.drop(record)

    def back_off(self, record: Record) -> None:
        if record.tier == REMOTE:
            self._rests_until = self.tick + REST_TICKS
        elif self.own:
            self.own.back_off(record)

    # What befalls `remote`.

    def die(self, until: int) -> None:
        """Fail every load until a tick."""
        self.dead_until = until

    @property
    def is_dead(self) -> bool:
        return self.dead_until >= self.tick


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
