"""Loads under way: each position from its source into its block of the device.

    record -> host slot -> device block     LOAD, as soon as the slot has the block
             pool block -> device block     COPY, when the step has run in which the load began

Invariant: what a position reads is pinned until no rank reads it any more. Each rank reports the
end of a load once, when it writes no block of it any more and none is still to come. Every
position that is not filled is in its report. A load that has ended is remembered for a while: a
block of the pool that it has copied may turn out to be garbage.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.loads import Cause, Failures, LoadReport, Record, Target
from kvbraid.transfer.jobs import Job, Kind, items_of
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.announcing import UNKNOWN
from kvbraid.transfer.offload.lookup import Found, LoadSource
from kvbraid.transfer.offload.promoting import Promotions
from kvbraid.transfer.offload.tiers import TierState
from kvbraid.transfer.status import Status

CAUSES: Final = {
    Status.MISS: Cause.MISS,
    Status.SHORT: Cause.SHORT,
    Status.CORRUPT: Cause.CORRUPT,
    Status.FOREIGN: Cause.MISS,
    Status.TIMEOUT: Cause.TIMEOUT,
    Status.IO_ERROR: Cause.IO_ERROR,
    Status.FULL: Cause.IO_ERROR,
}
"""What a status is called in a report on a load."""

_NO_BLOCK: Final = BlockId(0)
_PLACE: Final = attrgetter("group", "position")
_BLOCK: Final = attrgetter("block_id")


class Copied(NamedTuple):
    """A block of the pool with what it holds, and the request that registered it: others may have
    registered the same content there before, and may again."""

    block_id: BlockId
    group: int | None
    block_hash: bytes | None
    author: int | None

    @classmethod
    def of(cls, cache: CacheManager, blocks: Sequence[BlockId]) -> "list[Copied]":
        """Return what these blocks hold."""
        infos = zip(blocks, cache.pool.describe(blocks), strict=True)
        return [cls(block, info.group, info.block_hash, info.author) for block, info in infos]


@dataclass(slots=True, eq=False)
class _Position:
    """One position of a load. It is open until its job is issued, or it has failed.

    Attributes:
        slot: The host slot that it reads; 0 as long as there is none, or if it reads a block.
        copied: The block of the pool that it copies; None if it reads a record.
        is_bad: It is not filled, or with what turned out to be garbage.
    """

    load: "_LoadUnderWay"
    source: LoadSource
    target: BlockId
    slot: BlockId = _NO_BLOCK
    copied: Copied | None = None
    is_open: bool = True
    is_bad: bool = False

    def promoted(self, key: BlockKey, slot: BlockId) -> None:
        """Learn which slot to read; it is pinned until that is over."""
        del key
        self.slot = slot

    def not_promoted(self, key: BlockKey, tier: str, status: Status) -> None:
        """Learn that there is nothing to read."""
        is_foreign = status is Status.FOREIGN
        record = Record(tier, key.to_bytes(), is_foreign=is_foreign)
        self.load.failed.append((self, record, status))
        self.is_open = False


@dataclass(slots=True, eq=False)
class _LoadUnderWay:
    number: int
    request: int
    step: int
    deadline: float
    parts: list[_Position] = field(default_factory=list)
    writers: dict[int, set[int]] = field(default_factory=dict)  # By job, ranks that may write.
    given_up: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    failed: list[tuple[_Position, Record | None, Status]] = field(default_factory=list)
    failed_at: dict[int, list[tuple[_Position, Status]]] = field(default_factory=dict)


class LoadsUnderWay:
    """The loads of one cache that are not over, and those that have ended lately."""

    def __init__(
        self,
        tiers: TierState,
        promotions: Promotions,
        free: Callable[[Collection[LoadSource]], None],
    ) -> None:
        self._tiers: Final = tiers
        self._promotions: Final = promotions
        self._free: Final = free
        self._loads: Final[dict[int, _LoadUnderWay]] = {}
        self._parts: Final[dict[int, list[_Position]]] = {}  # By job.
        self._past: Final[deque[_LoadUnderWay]] = deque(maxlen=tiers.options.max_loads)
        self._reports: list[LoadReport] = []
        self._last_ended = -1

    def begin(self, number: int, step: int, targets: Sequence[Target], found: Found) -> None:
        """Begin to fill blocks with what an offer has; its pins are taken over."""
        tiers = self._tiers
        deadline = tiers.clock() + tiers.options.load_deadline
        load = self._loads[number] = _LoadUnderWay(number, found.request, step, deadline)
        blocks = dict(zip(map(_PLACE, targets), map(_BLOCK, targets), strict=True))
        takers = [blocks.pop(place, None) for place in map(_PLACE, found.sources)]
        load.parts += [
            _Position(load, source, target)
            for source, target in zip(found.sources, takers, strict=True)
            if target is not None
        ]
        self._free([s for s, target in zip(found.sources, takers, strict=True) if target is None])
        copies = [part for part in load.parts if not part.source.tier]
        held = Copied.of(tiers.cache, [part.source.block_id for part in copies])
        for part, copied in zip(copies, held, strict=True):
            part.copied = copied
        tiers.counts.hits.update([found.tier_of(part.source) for part in load.parts])
        for part in load.parts:
            self._find_slot(part)
        for (group, position), target in blocks.items():  # Nobody has it.
            source = LoadSource(group, position, "", _NO_BLOCK, BlockKey(b"", group), UNKNOWN)
            part = _Position(load, source, target, is_open=False)
            load.parts.append(part)
            load.failed.append((part, None, Status.MISS))
        self._end_ranks(load)

    def _find_slot(self, part: _Position) -> None:
        source = part.source
        if source.tier == self._tiers.host.name:
            part.slot = source.block_id
        elif source.tier:
            self._promotions.want([(source.key, source.tier, source.content)], part)
            self._free([source])

    def step_ended(self, step: int) -> None:
        """Let blocks be copied that this step, or one before it, has written."""
        self._last_ended = max(step, self._last_ended)

    def take_jobs(self) -> Iterator[Job]:
        """Yield what can begin."""
        tiers, now = self._tiers, self._tiers.clock()
        for load in list(self._loads.values()):
            is_late = now >= load.deadline
            is_written = load.step <= self._last_ended
            loads, copies = list[_Position](), list[_Position]()
            for part in load.parts:
                if part.is_open and part.slot:
                    loads.append(part)
                elif part.is_open and not part.source.tier and is_written:
                    copies.append(part)
                elif part.is_open and part.source.tier and is_late:
                    self._promotions.leave(part)
                    part.not_promoted(part.source.key, part.source.tier, Status.TIMEOUT)
            for kind, parts in ((Kind.LOAD, loads), (Kind.COPY, copies)):
                items = items_of(
                    (part.source.group, part.slot or part.source.block_id, part.target, None)
                    for part in parts
                )
                for job in tiers.chunked(kind, items, self):
                    load.writers[job.number] = set(range(tiers.num_ranks))
                    self._parts[job.number] = parts[: len(job.items)]
                    del parts[: len(job.items)]
                    for part in self._parts[job.number]:
                        part.is_open = False
                    yield job
            self._end_ranks(load)

    # What becomes of it.

    def answered(self, job: Job, rank: int, statuses: Sequence[Status], *, is_over: bool) -> None:
        """Report what a rank has given up, or ended."""
        parts = self._parts[job.number]
        load = parts[0].load
        bad = [(p, s) for p, s in zip(parts, statuses, strict=True) if s is not Status.OK]
        load.failed_at.setdefault(rank, []).extend(bad)
        if is_over:
            load.writers[job.number].remove(rank)
            self._end_ranks(load)
        elif rank not in load.given_up:
            load.given_up.add(rank)
            self._reports.append(LoadReport(rank=rank, given_up=[load.number]))

    def settled(self, job: Job, statuses: Sequence[Status]) -> None:
        """Nothing: what a rank has not filled is in its own report."""

    def over(self, job: Job) -> None:
        """Free what a job has read."""
        parts = self._parts.pop(job.number)
        self._free_parts(parts[::-1])
        del parts[0].load.writers[job.number]

    def _free_parts(self, parts: Sequence[_Position]) -> None:
        self._tiers.host.pins.free(*[part.slot for part in parts if part.slot])
        blocks = [part.source.block_id for part in parts if not part.source.tier]
        self._tiers.device.free(*blocks)

    def failed_early(self) -> None:
        """Report the ends of loads of which no part is left."""
        for load in list(self._loads.values()):
            self._end_ranks(load)

    def _end_ranks(self, load: _LoadUnderWay) -> None:
        others = load.ended.union(*load.writers.values())
        ended = [rank for rank in range(self._tiers.num_ranks) if rank not in others]
        # Most answers are of ranks that still write: parts are looked through once.
        if not ended or any(part.is_open for part in load.parts):
            return
        for rank in ended:
            load.ended.add(rank)
            failures = self._failures(load, rank)
            report = LoadReport(rank=rank, ended=[load.number], failures=failures)
            self._reports.append(report)
        if len(load.ended) == self._tiers.num_ranks and load.number in self._loads:
            self._past.append(self._loads.pop(load.number))

    def _failures(self, load: _LoadUnderWay, rank: int) -> Failures:
        bad, causes = [], dict[Record, Cause]()
        for part, record, status in load.failed:
            bad.append(part)
            if record is not None:
                causes[record] = CAUSES[status]
        for part, status in load.failed_at.get(rank, ()):
            bad.append(part)
            if part.source.tier:
                record = Record(self._tiers.host.name, part.source.key.to_bytes())
                causes[record] = CAUSES[status]
        for part in bad:
            part.is_bad = True
        return Failures(places=_places(load.request, bad), causes=causes)

    # Garbage.

    def retract(self, keys: Collection[BlockKey], blocks: Collection[BlockId]) -> None:
        """Fail what is filled from these records, or copied from these blocks of the pool."""
        self._fail(lambda part: _has_read(part, keys, blocks))

    def reset(self) -> None:
        """Fail every position of the loads under way."""
        self._fail(lambda _: True)

    def _fail(self, is_meant: Callable[[_Position], bool]) -> None:
        for load in self._loads.values():
            bad = [part for part in load.parts if not part.is_bad and is_meant(part)]
            for part in bad:
                part.is_bad = True
                if part.is_open:
                    part.is_open = False
                    self._promotions.leave(part)
                    self._free_parts([part])
            load.failed += [(part, None, Status.MISS) for part in bad]
        self.failed_early()

    def copied_from(self, contents: Collection[Copied]) -> Failures:
        """Return, once, where loads that have ended have copied these blocks of the pool."""
        copied = []
        for load in self._past:
            bad = [p for p in load.parts if not p.is_bad and p.copied in contents]
            for part in bad:
                part.is_bad = True
            copied.append(Failures(places=_places(load.request, bad)))
        return Failures.union(copied)

    def take_reports(self) -> list[LoadReport]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    @property
    def numbers(self) -> list[int]:
        """The loads that are not over."""
        return list(self._loads)

    @property
    def num_open(self) -> int:
        """Positions that are in no job yet."""
        return sum(part.is_open for load in self._loads.values() for part in load.parts)

    def pinned(self, tier: str) -> list[BlockId]:
        """Return the blocks, or the host slots, that are pinned for loads, each as often."""
        parts = [part for load in self._loads.values() for part in load.parts if part.is_open]
        parts += [part for own in self._parts.values() for part in own]
        if not tier:
            return [part.source.block_id for part in parts if not part.source.tier]
        return [part.slot for part in parts if part.slot]


def _places(request: int, parts: Collection[_Position]) -> dict[int, dict[int, set[int]]]:
    groups: dict[int, set[int]] = {}
    for part in parts:
        groups.setdefault(part.source.group, set()).add(part.source.position)
    return {request: groups} if groups else {}


def _has_read(part: _Position, keys: Collection[BlockKey], blocks: Collection[BlockId]) -> bool:
    source = part.source
    return source.key in keys if source.tier else source.block_id in blocks
