"""What the tables of runs hold, as plain data: the input when there is no live cache."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kvbraid.cache import BlockInfo, CacheManager
from kvbraid.ids import BlockId
from kvbraid.recovery.decision.run import Run
from kvbraid.spec import SpecKind, Topology


class HeldState(NamedTuple):
    """A state in a request's table: the tokens that it covers, and its position."""

    num_tokens: int
    position: int


class Place(NamedTuple):
    """A position in the table of one group."""

    group: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """What one run holds.

    Attributes:
        blocks: The block tables by group; 0 where there is no block.
        states: By group, the states that the tables have; empty for other kinds.
        findable: Where the table has no block any more: the blocks that a look-up finds there and
            that the request has registered, or that the run has read there and given back. Where
            it has a block, those that hashes find which end inside that block: the state that was
            kept there may live on in a copy. A state inside a block that the run started with is
            left out.
    """

    blocks: Sequence[Sequence[BlockId]]
    states: Sequence[Sequence[HeldState]]
    findable: Mapping[Place, Sequence[BlockId]] = field(default_factory=dict)

    def joined(self, other: "RunTables | None") -> "RunTables":
        """Return what two runs of a request have together, of which at most one has blocks."""
        if other is None:
            return self
        going_on = self if any(self.blocks) else other
        findable = {
            place: sorted({*self.findable.get(place, ()), *other.findable.get(place, ())})
            for place in sorted({*self.findable, *other.findable})
        }
        return replace(going_on, findable=findable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The tables of all runs that go on, and the groups that they belong to."""

    topology: Topology
    num_blocks: int
    tables: Mapping[int, RunTables]


def snapshot_of(cache: CacheManager, runs: Sequence[Run]) -> Snapshot:
    """Copy the tables of the runs that go on, and what runs have left findable.

    Every block of the pool is looked at once.
    """
    blocks = [BlockId(block) for block in range(cache.config.num_blocks)]
    infos = cache.pool.describe(blocks)
    found = [(block, infos[block]) for block in blocks if infos[block].num_tokens]
    by_author: dict[int | None, list[tuple[BlockId, BlockInfo]]] = {}
    for block, info in found:
        by_author.setdefault(info.author, []).append((block, info))
    tables: dict[int, RunTables] = {}
    for run in runs:
        gone = {each.block_id for each in run.given_back}
        read = [(block, infos[block]) for block in sorted(gone) if block < len(infos)]
        own = [*by_author.get(run.request, ()), *(each for each in read if each[1].num_tokens)]
        tables[run.request] = _tables(cache, run, own).joined(tables.get(run.request))
    return Snapshot(
        topology=cache.config.topology, num_blocks=cache.config.num_blocks, tables=tables
    )


def _tables(cache: CacheManager, run: Run, own: list[tuple[BlockId, BlockInfo]]) -> RunTables:
    groups = cache.config.topology.groups
    blocks = [[] for _ in groups] if run.has_ended else cache.blocks(run.request)
    states: list[list[HeldState]] = [
        _states(cache, run, group, table) if table and spec.kind is SpecKind.MAMBA else []
        for group, (spec, table) in enumerate(zip(groups, blocks, strict=True))
    ]
    findable: dict[Place, list[BlockId]] = {}
    for place, block in _findable(cache, run, own):
        findable.setdefault(place, []).append(block)
    return RunTables(blocks=blocks, states=states, findable=findable)


def _findable(
    cache: CacheManager, run: Run, own: list[tuple[BlockId, BlockInfo]]
) -> Iterator[tuple[Place, BlockId]]:
    groups = cache.config.topology.groups
    tables = cache.blocks(run.request) if run.ended_tables is None else run.ended_tables
    for block, (_, group, _, num_tokens, _) in dict(own).items():
        assert group is not None
        size = groups[group].block_size
        position = (num_tokens - 1) // size
        is_held = any(tables[group][position : position + 1])
        is_start = run.start // size * size < num_tokens <= run.start
        if not is_start and not (is_held and num_tokens % size == 0):
            yield Place(group, position), block


def _states(
    cache: CacheManager, run: Run, group: int, table: Sequence[BlockId]
) -> list[HeldState]:
    size = cache.config.topology.groups[group].block_size
    running = -(-cache.num_computed_tokens(run.request) // size) - 1
    last = cache.debug.cursors(run.request)[group].last_state
    states = []
    for position, info in enumerate(cache.pool.describe(table)):
        if table[position] and info.group == group:
            states.append(HeldState(info.num_tokens, position))
        elif table[position] and position in {running, last}:
            states.append(HeldState((position + 1) * size, position))
    return states
