"""What failures mean for runs, found naively: token by token, and again until nothing changes.

No scan, no index, no search: every token is asked what it reads, every boundary is tried, and
every set is made anew. Tables are plain data; `snapshot_of` copies those of a live cache through
its public calls.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery import (
    Assessment,
    HeldState,
    Ignored,
    Place,
    Run,
    RunTables,
    Snapshot,
    Verdict,
)
from kvbraid.spec import GroupSpec, SpecKind

from tests.reference import own_tables
from tests.reference import resume as rule

Hashes = Mapping[int, Sequence[bytes]]
NO_NUMBER = 2**32 - 1


def snapshot_of(cache: CacheManager, runs: Sequence[Run], hashes: Hashes) -> Snapshot:
    """Copy what the runs hold, and what a look-up finds by these block hashes of each request.

    Where a table has a block, only hashes that end inside it count; what others have registered,
    only if the run has read and given back the very block.
    """
    topology = cache.config.topology
    tables: dict[int, RunTables] = {}
    for run in runs:
        if run.has_ended:
            blocks: list[list[BlockId]] = [[] for _ in topology.groups]
            states: list[list[HeldState]] = [[] for _ in topology.groups]
        else:
            blocks = cache.blocks(run.request)
            states = [
                [
                    HeldState(end, position)
                    for position, block in enumerate(table)
                    if block and topology.groups[group].kind is SpecKind.MAMBA
                    for end in own_tables.state_end(cache, run.request, group, position)
                ]
                for group, table in enumerate(blocks)
            ]
        held = run.ended_tables or blocks
        findable = dict(_findable(cache, run, held, hashes.get(run.request)))
        own = RunTables(blocks=blocks, states=states, findable=findable)
        tables[run.request] = own.joined(tables.get(run.request))
    return Snapshot(topology=topology, num_blocks=cache.config.num_blocks, tables=tables)


def _findable(
    cache: CacheManager,
    run: Run,
    held: Sequence[Sequence[BlockId]],
    hashes: Sequence[bytes] | None,
) -> Iterator[tuple[Place, list[BlockId]]]:
    read = {gone[:3] for gone in run.given_back}
    for group, spec in enumerate(cache.config.topology.groups):
        found: dict[int, list[BlockId]] = {}
        for end, block in _copies(cache, run, group, hashes):
            at_start = run.start // spec.block_size * spec.block_size < end <= run.start
            position = (end - 1) // spec.block_size
            is_held = any(held[group][position : position + 1])
            is_own = _author(cache, block) == run.request
            counts = is_own or (group, position, block) in read
            if counts and not at_start and not (is_held and end % spec.block_size == 0):
                found.setdefault(position, []).append(block)
        yield from ((Place(group, position), blocks) for position, blocks in found.items())


def _copies(
    cache: CacheManager, run: Run, group: int, hashes: Sequence[bytes] | None
) -> Iterator[tuple[int, BlockId]]:
    """What hashes find, with the tokens that each covers; all of the group if they are unknown."""
    if hashes is None:
        for block in map(BlockId, range(1, cache.config.num_blocks)):
            (info,) = cache.pool.describe([block])
            if info.group == group:
                yield info.num_tokens, block
        return
    for index, block_hash in enumerate(hashes, 1):
        for block in cache.pool.holders(group, block_hash):
            yield index * rule.hash_block(cache.config.topology), block


def _author(cache: CacheManager, block: BlockId) -> int | None:
    (info,) = cache.pool.describe([block])
    return info.author


def assess(
    snapshot: Snapshot,
    runs: Sequence[Run],
    failures: Failures,
    *,
    busy: Collection[BlockId] = (),
    former: Sequence[BlockId] = (),
) -> Assessment:
    """The answer, without refusals."""
    taint = _Taint(snapshot, sorted(runs, key=lambda run: run.request), former)
    taint.fail(failures)
    taint.close()
    return Assessment(
        tainted=tuple(sorted(b for b in taint.blocks if b < snapshot.num_blocks)),
        verdicts=tuple(_verdicts(taint, frozenset(busy) - {BlockId(0)})),
        ignored=taint.ignored,
        lost=tuple(sorted(b for b in taint.blocks if b >= snapshot.num_blocks)),
        told=tuple(sorted({r.request for r in runs if r.has_ended and taint.has_told(r)})),
    )


@dataclass
class _Taint:
    snapshot: Snapshot
    runs: list[Run]
    former: Sequence[BlockId]
    blocks: set[BlockId] = field(default_factory=set)
    first: dict[int, int] = field(default_factory=dict)  # By the identity of the run.
    ignored: Counter[Ignored] = field(default_factory=Counter)

    @property
    def groups(self) -> Sequence[GroupSpec]:
        return self.snapshot.topology.groups

    def first_tainted(self, run: Run) -> int | None:
        return self.first.get(id(run))

    def has_told(self, run: Run) -> bool:
        first = self.first_tainted(run)
        return first is not None and run.num_tokens - 1 >= max(run.num_known_tokens, first + 1)

    def block_of(self, content: BlockId) -> BlockId:
        """The block that holds a content, or held it before it was handed out again."""
        is_former = content >= self.snapshot.num_blocks
        return self.former[content - self.snapshot.num_blocks] if is_former else content

    def tables(self, run: Run) -> Sequence[Sequence[BlockId]]:
        ended = run.ended_tables
        return self.snapshot.tables[run.request].blocks if ended is None else ended

    def block_at(self, run: Run, place: Place) -> BlockId:
        table = self.tables(run)[place.group]
        return table[place.position] if place.position < len(table) else BlockId(0)

    def findable(self, run: Run, place: Place) -> Sequence[BlockId]:
        tables = self.snapshot.tables.get(run.request)
        return tables.findable.get(place, ()) if tables else ()

    # What failed.

    def loaded(self, run: Run) -> list[tuple[Place, BlockId]]:
        """The places of a run that its load fills, or has filled."""
        tokens = range(run.num_local_tokens, run.num_local_tokens + run.num_loaded_tokens)
        found = []
        for group, spec in enumerate(self.groups):
            own = tokens[-1:] if spec.kind is SpecKind.MAMBA else tokens
            for position in sorted({token // spec.block_size for token in own}):
                if block := self.block_at(run, Place(group, position)):
                    found.append((Place(group, position), block))
        gone = [
            (place, block)
            for place, block in self.given_back(run)
            for spec in self.groups[place.group : place.group + 1]
            for own in [tokens[-1:] if spec.kind is SpecKind.MAMBA else tokens]
            if place.position in {token // spec.block_size for token in own}
        ]
        return found + gone

    def fail(self, failures: Failures) -> None:
        for block in {_number(block) for block in failures.blocks}:
            self._fail_block(block, range(len(self.groups)))
        for group, block in {(_number(g), _number(b)) for g, b in failures.group_blocks}:
            if group >= len(self.groups):
                self.ignored[Ignored.OUT_OF_RANGE] += 1
            else:
                self._fail_block(block, range(group, group + 1))
        places = {
            (request, _number(group), _number(position))
            for request, groups in failures.places.items()
            for group, positions in groups.items()
            for position in positions
        }
        for request, group, position in places:
            self._fail_place(request, Place(group, position))
        for group, content in {(_number(g), _number(b)) for g, b in failures.contents}:
            self._fail_content(group, content)
        for request in {*failures.requests}:
            self._fail_request(request)

    def _fail_request(self, request: int) -> None:
        runs = self.runs_of(request)
        if not runs:
            self.ignored[Ignored.UNKNOWN_REQUEST] += 1
        elif not any(self.loaded(run) for run in runs):
            self.ignored[Ignored.NOT_LOADED] += 1
        for run in runs:
            for place, block in self.loaded(run):
                self._taint_place(run, place, block)

    def runs_of(self, request: int) -> list[Run]:
        return [run for run in self.runs if run.request == request]

    def _fail_content(self, group: int, content: int) -> None:
        num_contents = self.snapshot.num_blocks + len(self.former)
        if group >= len(self.groups) or not 0 < content < num_contents:
            is_null = group < len(self.groups) and content == 0
            self.ignored[Ignored.NULL_BLOCK if is_null else Ignored.OUT_OF_RANGE] += 1
            return
        loads = [
            (run, place)
            for run in self.runs
            for place, loaded in self.loaded(run)
            if loaded == content and place.group == group
        ]
        if not loads:
            self.ignored[Ignored.NOT_LOADED] += 1
        for run, place in loads:
            self._taint_place(run, place, BlockId(content))

    def _fail_block(self, block: int, groups: range) -> None:
        if block == 0 or block >= self.snapshot.num_blocks:
            self.ignored[Ignored.OUT_OF_RANGE if block else Ignored.NULL_BLOCK] += 1
            return
        loads = [
            (run, place, loaded)
            for run in self.runs
            for place, loaded in self.loaded(run)
            if self.block_of(loaded) == block and place.group in groups
        ]
        if not loads:
            self.ignored[Ignored.NOT_LOADED] += 1
        for run, place, loaded in loads:
            self._taint_place(run, place, loaded)

    def _fail_place(self, request: int, place: Place) -> None:
        runs = self.runs_of(request)
        if not runs:
            self.ignored[Ignored.UNKNOWN_REQUEST] += 1
            return
        whys = [self._fail_place_of(run, place) for run in runs]
        if all(whys):
            self.ignored[whys[-1]] += 1  # type: ignore[index]

    def _fail_place_of(self, run: Run, place: Place) -> Ignored | None:
        if place.group >= len(self.groups):
            return Ignored.OUT_OF_RANGE
        blocks = [block for loaded, block in self.loaded(run) if loaded == place]
        for block in blocks:
            self._taint_place(run, place, block)
        if blocks:
            return None
        if place.position >= len(self.tables(run)[place.group]):
            return Ignored.OUT_OF_RANGE
        return Ignored.NOT_LOADED if self.block_at(run, place) else Ignored.NULL_BLOCK

    def _taint_place(self, run: Run, place: Place, block: BlockId) -> None:
        """The block; if it was given back, what was read of it."""
        self.blocks.add(block)
        if (place, block) in self.given_back(run) and run.start < run.num_computed_tokens:
            self.first[id(run)] = run.start

    def given_back(self, run: Run) -> list[tuple[Place, BlockId]]:
        return [(Place(g.group, g.position), g.block_id) for g in run.given_back]

    def _read_and_gone(self, run: Run) -> Iterator[BlockId]:
        for gone in run.given_back:
            if gone.position * self.groups[gone.group].block_size < run.start:
                yield gone.block_id

    # What was computed from it.

    def close(self) -> None:
        before = None
        while before != (len(self.blocks), dict(self.first)):
            before = (len(self.blocks), dict(self.first))
            for run in self.runs:
                known = self.first.get(id(run), run.num_computed_tokens)
                tokens = range(run.start, min(known, run.num_computed_tokens))
                if any(block in self.blocks for block in self._read_and_gone(run)):
                    known = min(known, run.start)
                known = next((t for t in tokens if self._reads_garbage(run, t)), known)
                if known < run.num_computed_tokens:
                    self.first[id(run)] = known
                    self.blocks |= {*self._written(run, known)}

    def _reads_garbage(self, run: Run, token: int) -> bool:
        return any(
            self.block_at(run, Place(group, position)) in self.blocks
            for group, spec in enumerate(self.groups)
            for position in self._read(run, spec, token)
        )

    def _read(self, run: Run, spec: GroupSpec, token: int) -> set[int]:
        """The positions of the blocks that the computation of a token reads."""
        if spec.kind is not SpecKind.MAMBA:
            return {t // spec.block_size for t in range(first_read(spec, token), token + 1)}
        if token != run.start:
            return set()
        return {(token - 1) // spec.block_size} if token else set()

    def _written(self, run: Run, first: int) -> Iterator[BlockId]:
        for group, (spec, table) in enumerate(zip(self.groups, self.tables(run), strict=True)):
            start = first // spec.block_size
            yield from (block for block in table[start:] if block)
            if run.delays_commit:
                continue  # Nothing of it was ever findable: what is found is of others.
            of_group = (gone for gone in run.given_back if gone.group == group)
            written = (g for g in of_group if g.position >= start and not g.copied)
            yield from (gone.block_id for gone in written)
            for position in range(start, -(-run.num_computed_tokens // spec.block_size)):
                place = Place(group, position)
                others = self._of_other_runs(run, place)
                yield from (b for b in self.findable(run, place) if b not in others)

    def _of_other_runs(self, run: Run, place: Place) -> set[BlockId]:
        """What earlier runs of the request have written there: a cache tells no runs apart."""
        size = self.groups[place.group].block_size
        return {
            self.block_at(other, place)
            for other in self.runs_of(run.request)
            if other is not run and other.has_ended and place.position >= other.start // size
        }


def _number(number: int) -> int:
    return number if 0 <= number < NO_NUMBER else NO_NUMBER


def first_read(spec: GroupSpec, token: int) -> int:
    """The first token that a group reads to compute this one."""
    return token if spec.kind in rule.NEVER else rule.first_needed(spec, token)


def _verdicts(taint: _Taint, busy: frozenset[BlockId]) -> Iterator[Verdict]:
    affected = [run for run in taint.runs if not run.has_ended and _is_affected(taint, run)]
    told = {run.request for run in taint.runs if run.has_ended and taint.has_told(run)}
    holders = Counter(block for run in affected for block in _all_blocks(taint, run))
    owner: dict[BlockId, int] = {}
    for run in affected:
        first = taint.first_tainted(run)
        handed_out = run.request in told or taint.has_told(run)
        bad = taint.blocks | busy  # What is being written is not there yet.
        point = resume_point(taint, run, bad - owner.keys())
        waits = {block: owner[block] for block in _needed(taint, run, point) if block in owner}
        written = {block for _, end, block in _entries(taint, run) if end > point}
        kept = {block for _, end, block in _entries(taint, run) if end <= point}
        in_place = (
            not handed_out
            and _has_all(taint, run, point)
            and written.isdisjoint(busy | owner.keys())
            and taint.blocks.isdisjoint(kept - waits.keys())
        )
        if not in_place:
            point = resume_point(taint, run, bad)
        shared = {b for b in written & taint.blocks if holders[b] > 1 and in_place}
        owner.update(dict.fromkeys(shared, run.request))
        yield Verdict(
            request=run.request,
            first_tainted=first,
            handed_out=handed_out,
            resume=point,
            in_place=in_place,
            owner_of=tuple(sorted(shared)),
            waits_for=waits if in_place else {},
            busy=tuple(sorted(busy & _all_blocks(taint, run))),
        )


def resume_point(taint: _Taint, run: Run, bad: Collection[BlockId]) -> int:
    """Every boundary is tried, and every token that it needs is looked up."""
    topology = own_tables.without_draft_heads(taint.snapshot.topology)
    first = taint.first_tainted(run)
    limit = run.num_processed_tokens if first is None else first
    known = min(limit + 1, run.num_processed_tokens + 1, run.num_tokens)
    unit = rule.hash_block(topology) if topology.partial_hits else None
    held = []
    for group, (spec, table) in enumerate(zip(topology.groups, taint.tables(run), strict=True)):
        ends = set[int]()
        for position, block in enumerate(table):
            if block and block not in bad and spec.kind is not SpecKind.MAMBA:
                start = position * spec.block_size
                ends |= {*range(start + 1, start + spec.block_size + 1)}
        for state in taint.snapshot.tables[run.request].states[group]:
            if table[state.position] not in bad:
                ends.add(state.num_tokens)
        held.append({end for end in ends if end < known and end % (unit or spec.block_size) == 0})
    return rule.resume(topology, known, held)


def _is_affected(taint: _Taint, run: Run) -> bool:
    computed = run.num_computed_tokens
    held = {block for start, _, block in _entries(taint, run) if start < computed}
    return taint.first_tainted(run) is not None or not taint.blocks.isdisjoint(held)


def _entries(taint: _Taint, run: Run) -> Iterator[tuple[int, int, BlockId]]:
    """The first token of each block of a run's tables, the first one after it, and the block."""
    for spec, table in zip(taint.groups, taint.tables(run), strict=True):
        size = spec.block_size
        for position, block in enumerate(table):
            if block:
                yield position * size, (position + 1) * size, block


def _all_blocks(taint: _Taint, run: Run) -> frozenset[BlockId]:
    return frozenset(block for _, _, block in _entries(taint, run))


def _needed(taint: _Taint, run: Run, point: int) -> Iterator[BlockId]:
    for group, spec in enumerate(taint.groups):
        for position in sorted(rule.needed_blocks(replace(spec, eagle=False), point)):
            yield taint.block_at(run, Place(group, position))


def _has_all(taint: _Taint, run: Run, point: int) -> bool:
    """Whether no state has moved on, and no block is gone that is read or written again."""
    return not any(
        spec.kind is SpecKind.MAMBA
        or 0 in table[min(first_read(spec, point), point) // spec.block_size :]
        for spec, table in zip(taint.groups, taint.tables(run), strict=True)
    )
