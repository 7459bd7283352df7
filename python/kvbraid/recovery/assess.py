"""What failures mean for runs: the closure of taint, then resume points, owners and waiters.

```text
1  failed blocks        those of the report that a load of a run fills, or has filled
2  taint                every block that a step wrote after it had read a tainted one, of any run
3  resume points        the rule over each run's own table, less what is tainted
4  owners               a tainted block that runs share is written again by one of them
```
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvbraid.cache import CacheManager
from kvbraid.cache.tables import Refusal
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.recovery.assessment import Assessment, Ignored, Verdict
from kvbraid.recovery.failures import Failures
from kvbraid.recovery.run import Run
from kvbraid.recovery.snapshot import HeldState, Place, RunTables, Snapshot
from kvbraid.resume import needed_blocks, resume
from kvbraid.spec import GroupSpec, SpecKind, Topology


def assess(
    source: CacheManager | Snapshot,
    runs: Sequence[Run],
    failures: Failures,
    *,
    busy: Collection[BlockId] = (),
    max_refusals: int = 0,
) -> Assessment:
    """Return what the failures taint, and where each affected run resumes. Changes nothing.

    Args:
        source: The cache whose tables count, or a copy of tables.
        runs: All runs that go on, and those that ended while their steps were in flight.
        failures: What failed, of all ranks together.
        busy: Blocks that a transfer may still write.
        max_refusals: How many refused boundaries to tell for each run.

    Raises:
        UnknownError: A run that goes on is not known to the cache.
        InvalidValueError: A run has not one table for each group, or is there twice.
    """
    snapshot = source if isinstance(source, Snapshot) else snapshot_of(source, runs)
    taint = _Taint(snapshot, sorted(runs, key=lambda run: run.request))
    taint.fail(failures)
    taint.close()
    verdicts = _verdicts(source, taint, frozenset(busy), max_refusals)
    return Assessment(
        tainted=tuple(sorted(taint.blocks)), verdicts=tuple(verdicts), ignored=taint.ignored
    )


def snapshot_of(cache: CacheManager, runs: Sequence[Run]) -> Snapshot:
    """Copy the tables of the runs that go on."""
    topology = cache.config.topology
    tables = {}
    for run in runs:
        if not run.has_ended:
            blocks = cache.blocks(run.request)
            states = [
                _states(cache, run, group, table) if spec.kind is SpecKind.MAMBA else []
                for group, (spec, table) in enumerate(zip(topology.groups, blocks, strict=True))
            ]
            tables[run.request] = RunTables(blocks=blocks, states=states)
    return Snapshot(topology=topology, num_blocks=cache.config.num_blocks, tables=tables)


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


@dataclass
class _Taint:
    snapshot: Snapshot
    runs: list[Run]
    blocks: set[BlockId] = field(default_factory=set)
    first_tainted: dict[int, int] = field(default_factory=dict)
    ignored: Counter[Ignored] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        groups = len(self.snapshot.topology.groups)
        by_request = {}
        for run in self.runs:
            if run.request in by_request:
                raise InvalidValueError(f"request {run.request} has two runs; give it once")
            if len(self.tables(run)) != groups:
                raise InvalidValueError(
                    f"request {run.request} has {len(self.tables(run))} tables for {groups} "
                    "groups; give one per group, empty where the request has no block"
                )
            by_request[run.request] = run
        self.by_request = by_request
        self.loaded = {run.request: set(self._loaded(run)) for run in self.runs}

    @property
    def groups(self) -> Sequence[GroupSpec]:
        return self.snapshot.topology.groups

    def tables(self, run: Run) -> Sequence[Sequence[BlockId]]:
        ended = run.ended_tables
        return self.snapshot.tables[run.request].blocks if ended is None else ended

    # What failed.

    def _loaded(self, run: Run) -> Iterator[tuple[Place, BlockId]]:
        first, end = run.num_local_tokens, run.num_local_tokens + run.num_loaded_tokens
        for group, (spec, table) in enumerate(zip(self.groups, self.tables(run), strict=True)):
            positions = range(first // spec.block_size, -(-end // spec.block_size))
            if spec.kind is SpecKind.MAMBA:
                positions = positions[-1:]
            for position in positions if end > first else ():
                if position < len(table) and table[position]:
                    yield Place(group, position), table[position]
        for gone in run.given_back:
            yield Place(gone.group, gone.position), gone.block_id

    def fail(self, failures: Failures) -> None:
        owners: dict[BlockId, list[tuple[Run, Place]]] = {}
        for run in self.runs:
            for place, block in self.loaded[run.request]:
                owners.setdefault(block, []).append((run, place))
        for block in sorted(set(failures.blocks)):
            self._fail(block, owners.get(block, []))
        for group, block in sorted(set(failures.group_blocks)):
            if not 0 <= group < len(self.groups):
                self.ignored[Ignored.OUT_OF_RANGE] += 1
                continue
            own = [(run, place) for run, place in owners.get(block, []) if place.group == group]
            self._fail(block, own)
        for request, groups in failures.places.items():
            self._fail_places(request, {(g, p) for g, own in groups.items() for p in own})
        for request in set(failures.requests):
            self._fail_request(request)

    def _fail(self, block: BlockId, places: list[tuple[Run, Place]]) -> None:
        if block == 0:
            self.ignored[Ignored.NULL_BLOCK] += 1
        elif not 0 < block < self.snapshot.num_blocks:
            self.ignored[Ignored.OUT_OF_RANGE] += 1
        elif not places:
            self.ignored[Ignored.NOT_LOADED] += 1
        for run, place in places:
            self._taint_place(run, place, block)

    def _fail_places(self, request: int, places: set[tuple[int, int]]) -> None:
        run = self.by_request.get(request)
        if run is None:
            self.ignored[Ignored.UNKNOWN_REQUEST] += len(places)
            return
        loaded = dict(self.loaded[request])
        for group, position in sorted(places):
            table = self.tables(run)[group] if 0 <= group < len(self.groups) else ()
            if Place(group, position) in loaded:
                self._taint_place(run, Place(group, position), loaded[Place(group, position)])
            elif not 0 <= position < len(table):
                self.ignored[Ignored.OUT_OF_RANGE] += 1
            else:
                empty = table[position] == 0
                self.ignored[Ignored.NULL_BLOCK if empty else Ignored.NOT_LOADED] += 1

    def _fail_request(self, request: int) -> None:
        run = self.by_request.get(request)
        loaded = self.loaded.get(request)
        if run is None:
            self.ignored[Ignored.UNKNOWN_REQUEST] += 1
        elif not loaded:
            self.ignored[Ignored.NOT_LOADED] += 1
        else:
            for place, block in loaded:
                self._taint_place(run, place, block)

    def _taint_place(self, run: Run, place: Place, block: BlockId) -> None:
        held = self.tables(run)[place.group]
        if place.position < len(held) and held[place.position] == block:
            self.blocks.add(block)
            return
        # It was read, then given back; a look-up may still find it.
        if run.start < run.num_computed_tokens:
            self.first_tainted[run.request] = run.start
        if not run.has_ended:
            findable = self.snapshot.tables[run.request].findable
            self.blocks.update({block}.intersection(findable.get(place, ())))

    # What was computed from it.

    def close(self) -> None:
        """Naively: look at all runs again until nothing changes."""
        before = None
        while before != (len(self.blocks), dict(self.first_tainted)):
            before = (len(self.blocks), dict(self.first_tainted))
            for run in self.runs:
                first = min(self._tainted_reads(run), default=None)
                known = self.first_tainted.get(run.request)
                if first is None and known is None:
                    continue
                first = min(x for x in (first, known) if x is not None)
                self.first_tainted[run.request] = first
                self.blocks |= set(self._written(run, first))

    def _tainted_reads(self, run: Run) -> Iterator[int]:
        for group, (spec, table) in enumerate(zip(self.groups, self.tables(run), strict=True)):
            for position, block in enumerate(table):
                if block in self.blocks:
                    token = self._first_read(run, spec, group, position)
                    if token is not None and token < run.num_computed_tokens:
                        yield token

    def _first_read(self, run: Run, spec: GroupSpec, group: int, position: int) -> int | None:
        size = spec.block_size
        token = max(run.start, position * size)
        if spec.kind is SpecKind.MAMBA:
            if run.has_ended:
                states = [HeldState((position + 1) * size, position)]
            else:
                states = list(self.snapshot.tables[run.request].states[group])
            return run.start if HeldState(run.start, position) in states else None
        return token if first_read(spec, token) < (position + 1) * size else None

    def _written(self, run: Run, first: int) -> Iterator[BlockId]:
        findable = {} if run.has_ended else self.snapshot.tables[run.request].findable
        for group, (spec, table) in enumerate(zip(self.groups, self.tables(run), strict=True)):
            start = first // spec.block_size
            yield from (block for block in table[start:] if block)
            for place, blocks in findable.items():
                if place.group == group and place.position >= start:
                    yield from blocks


def first_read(spec: GroupSpec, token: int) -> int:
    """Return the first token that a group reads to compute this token."""
    if spec.kind.is_window:
        return max(0, token - (spec.window or 1) + 1)
    if spec.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and spec.chunk is not None:
        return token // spec.chunk * spec.chunk
    if spec.kind in {SpecKind.ENCODER_ONLY_ATTENTION, SpecKind.CROSS_ATTENTION}:
        return token
    return 0


def _verdicts(
    source: CacheManager | Snapshot, taint: _Taint, busy: frozenset[BlockId], max_refusals: int
) -> Iterator[Verdict]:
    going_on = [run for run in taint.runs if not run.has_ended]
    affected = [run for run in going_on if _is_affected(taint, run)]
    holders = Counter(
        block for run in affected for block in {b for t in taint.tables(run) for b in t}
    )
    owner: dict[BlockId, int] = {}
    for run in affected:
        bad = (taint.blocks | busy) - owner.keys()  # What is being written is not there yet.
        first = taint.first_tainted.get(run.request)
        limit = run.num_processed_tokens if first is None else min(first, run.num_processed_tokens)
        point, refused = _resume_point(source, taint, run, bad, limit, max_refusals)
        waits = {block: owner[block] for block in _needed(taint, run, point) if block in owner}
        handed_out = first is not None and run.num_tokens > max(run.num_known_tokens, first + 1)
        in_place = (
            not handed_out
            and _can_go_back(taint, run, point, busy | owner.keys())
            and taint.blocks.isdisjoint(set(_stay(taint, run, point)) - waits.keys())
        )
        shared = {b for b in _rewritten(taint, run, point) if b in taint.blocks and holders[b] > 1}
        if in_place:
            owner.update(dict.fromkeys(shared, run.request))
        yield Verdict(
            request=run.request,
            first_tainted=first,
            handed_out=handed_out,
            resume=point,
            in_place=in_place,
            owner_of=tuple(sorted(shared)) if in_place else (),
            waits_for=waits if in_place else {},
            busy=tuple(sorted(busy & {b for table in taint.tables(run) for b in table})),
            refused=refused,
        )


def _is_affected(taint: _Taint, run: Run) -> bool:
    if run.request in taint.first_tainted:
        return True
    for spec, table in zip(taint.groups, taint.tables(run), strict=True):
        held = table[: -(-run.num_computed_tokens // spec.block_size)]
        if not taint.blocks.isdisjoint(held):
            return True
    return False


def _resume_point(
    source: CacheManager | Snapshot,
    taint: _Taint,
    run: Run,
    bad: set[BlockId],
    limit: int,
    max_refusals: int,
) -> tuple[int, tuple[Refusal, ...]]:
    if isinstance(source, CacheManager):
        (point,) = source.tables.resume_points(
            [run.request], sorted(bad), limits=[limit], drops_unit=False, max_refusals=max_refusals
        )
        return point.num_tokens, tuple(point.refused)
    topology, tables = taint.snapshot.topology, taint.snapshot.tables[run.request]
    groups = tuple(replace(group, eagle=False) for group in topology.groups)
    held = [
        [state.num_tokens for state in tables.states[group] if table[state.position] not in bad]
        if spec.kind is SpecKind.MAMBA
        else list(_ends(topology, spec, table, bad, limit))
        for group, (spec, table) in enumerate(zip(groups, tables.blocks, strict=True))
    ]
    end = min(limit + 1, run.num_tokens)
    return resume(replace(topology, groups=groups), end, held), ()


def _ends(
    topology: Topology, spec: GroupSpec, table: Sequence[BlockId], bad: set[BlockId], limit: int
) -> Iterator[int]:
    unit = topology.hash_block_size if topology.partial_hits else None
    for position, block in enumerate(table):
        if block and block not in bad:
            start = position * spec.block_size
            step = unit or spec.block_size
            yield from (
                end
                for end in range(start + step, start + spec.block_size + 1, step)
                if end <= limit
            )


def _can_go_back(taint: _Taint, run: Run, point: int, untouchable: frozenset[BlockId]) -> bool:
    for spec, table in zip(taint.groups, taint.tables(run), strict=True):
        if spec.kind is SpecKind.MAMBA:
            return False
        if 0 in table[min(first_read(spec, point), point) // spec.block_size :]:
            return False
    return untouchable.isdisjoint(_rewritten(taint, run, point))


def _rewritten(taint: _Taint, run: Run, point: int) -> Iterator[BlockId]:
    for spec, table in zip(taint.groups, taint.tables(run), strict=True):
        yield from (block for block in table[point // spec.block_size :] if block)


def _stay(taint: _Taint, run: Run, point: int) -> Iterator[BlockId]:
    for spec, table in zip(taint.groups, taint.tables(run), strict=True):
        yield from table[: point // spec.block_size]


def _needed(taint: _Taint, run: Run, point: int) -> Iterator[BlockId]:
    for spec, table in zip(taint.groups, taint.tables(run), strict=True):
        blocks = needed_blocks(replace(spec, eagle=False), point)
        yield from (block for block in table[blocks.start : blocks.stop] if block)
