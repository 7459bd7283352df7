"""One rank's bytes: jobs in, copies and records moved, one status per item out.

    STORE, LOAD, COPY        the mover; of one job, the items of each group are one move
    WRITE, PROMOTE, DROP     the records of the tier that the job names

Invariant: every job that was submitted is answered, with one status per item in the order of the
items, and whatever is not `OK` is counted with its reason. Jobs are independent of each other: a
scheduler gives the job that reads a slot once the one that writes it has been answered. Whoever
submits and polls does so from one thread; nothing here decides what moves.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvbraid.layout.plan import NULL_BLOCK
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.mover import MOVES, Mover, Pending
from kvbraid.transfer.status import Status

ItemPlaces: TypeAlias = NDArray[np.intp]
"""ItemPlaces of items in their job."""

_TOO_LARGE: Final = 1 << 32
"""No block or slot has such a number."""


class RecordJobs(Protocol):
    """The records of one tier: carries out jobs on threads of its own."""

    def submit(self, job: Job, payloads: Sequence[memoryview]) -> None:
        """Take a job, with the payload of each item; none for `DROP`.

        Payloads are valid until an answer that `is_over`. An exception says that the job was not
        taken.
        """

    def poll(self) -> list[JobResult]:
        """Return the answers since the last call. Every job that was taken gets its answer."""

    def close(self) -> object:
        """End all threads that do not hang."""


class _Side(Enum):
    """What a number of an item stands for."""

    NOTHING = "nothing"
    BLOCK = "a block of the pool"
    SLOT = "a slot of the host tier"


_SIDES: Final[Mapping[Kind, tuple[_Side, _Side]]] = {
    Kind.STORE: (_Side.BLOCK, _Side.SLOT),
    Kind.LOAD: (_Side.SLOT, _Side.BLOCK),
    Kind.COPY: (_Side.BLOCK, _Side.BLOCK),
    Kind.WRITE: (_Side.SLOT, _Side.NOTHING),
    Kind.PROMOTE: (_Side.NOTHING, _Side.SLOT),
    Kind.DROP: (_Side.NOTHING, _Side.NOTHING),
}
"""Source and target of each kind."""


@dataclass(slots=True)
class _GroupMove:
    """The items of one job that move together, by their places in the job."""

    group: int
    places: list[int]
    pending: Pending


@dataclass(slots=True)
class _Running:
    """A job that was begun. `statuses` is what will be answered, as far as it is known.

    `places` has the items that a tier was asked about, `parts` those that still move.
    """

    job: Job
    begun: float
    statuses: list[Status]
    places: list[int] = field(default_factory=list)
    parts: list[_GroupMove] = field(default_factory=list)
    num_bytes: int = 0


class Worker:
    """Carries out jobs for one rank.

    Attributes:
        mover: Moves blocks; `mover.host` has the slots.
        failures: Items that did not end well, by reason: `bad_item` (no such block, slot or
            group, or no key), `not_ready` (a slot whose piece is not made yet), `copy` (the
            mechanism raised), `tier` (its name is not known), `records` (they raised, or answered
            what nobody asked), and the statuses that tiers answered. `polls` counts polls of
            tiers that raised.
    """

    def __init__(self, mover: Mover, tiers: Mapping[str, RecordJobs]) -> None:
        self.mover: Final = mover
        self.failures: Final[Counter[str]] = Counter()
        self._tiers: Final = dict(tiers)
        self._moving: list[_Running] = []
        self._at_tiers: dict[int, _Running] = {}
        self._results: list[JobResult] = []

    @property
    def num_pending(self) -> int:
        """Jobs without their last answer, and answers that were not fetched."""
        return len(self._moving) + len(self._at_tiers) + len(self._results)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do or to fetch."""
        return not self.num_pending

    def submit(self, jobs: Iterable[Job]) -> None:
        """Begin jobs. In memory of the CPU, the mover's have ended when this returns."""
        for job in jobs:
            running = _Running(job, time.perf_counter(), [Status.IO_ERROR] * len(job.items))
            numbers = _Numbers(job.items)
            places = self._check(running, numbers)
            if job.kind in MOVES:
                self._move(running, numbers, places)
            else:
                self._ask_tier(running, places.tolist())

    def poll(self) -> list[JobResult]:
        """Return what was answered since the last call, in no order."""
        for running in self._moving:
            running.parts = [part for part in running.parts if self._goes_on(running, part)]
            if not running.parts:
                self._answer(running)
        self._moving = [running for running in self._moving if running.parts]
        for tier in self._tiers.values():
            try:
                results = tier.poll()
            except Exception:  # noqa: BLE001 - others' code: what it owes stays pending.
                self._fail("polls", 1)
                continue
            for result in results:
                self._take(result)
        found, self._results = self._results, []
        return found

    def close(self) -> None:
        """End tiers, copies and the host tier, in this order; nothing is answered any more."""
        with ExitStack() as stack:  # Last in, first out, and all of them if one raises.
            stack.callback(self.mover.host.close)
            stack.callback(self.mover.close)
            for tier in self._tiers.values():
                stack.callback(tier.close)
        self._moving.clear()
        self._at_tiers.clear()
        self._results.clear()

    def _check(self, running: _Running, numbers: "_Numbers") -> ItemPlaces:
        """Return the places of items that can be carried out; the others get their statuses."""
        job, mover = running.job, self.mover
        good = (numbers.groups >= 0) & (numbers.groups < mover.num_groups)
        if job.kind not in MOVES:
            good &= np.array([item.key is not None for item in job.items], bool)
        most = {_Side.BLOCK: mover.num_blocks - 1, _Side.SLOT: mover.host.slots.num_slots}
        sides = list(zip(_SIDES[job.kind], (numbers.sources, numbers.targets), strict=True))
        for side, ids in sides:
            if side is not _Side.NOTHING:
                good &= (ids > NULL_BLOCK) & (ids <= most[side])
        self._fail("bad_item", int(np.count_nonzero(~good)))
        for side, ids in sides:
            if side is _Side.SLOT:
                waits = good & (ids > mover.host.num_ready_slots)
                for place in np.flatnonzero(waits).tolist():
                    running.statuses[place] = Status.FULL
                self._fail("not_ready", int(np.count_nonzero(waits)))
                good &= ~waits
        return np.flatnonzero(good)

    def _move(self, running: _Running, numbers: "_Numbers", places: ItemPlaces) -> None:
        """Begin one move for each group."""
        groups = numbers.groups[places]
        for group in np.unique(groups).tolist():
            mine = places[groups == group]
            sources, targets = (
                ids[mine].astype(np.uint64) for ids in (numbers.sources, numbers.targets)
            )
            try:
                pending = self.mover.start(running.job.kind, group, sources, targets)
            except Exception:  # noqa: BLE001 - a driver's, or a bug's: counted, and answered.
                self._fail("copy", len(mine))
            else:
                running.parts.append(_GroupMove(group, mine.tolist(), pending))
        self._moving.append(running)

    def _goes_on(self, running: _Running, part: _GroupMove) -> bool:
        """Return whether a part still moves; settle its items if not."""
        try:
            if not part.pending.is_over():
                return True
        except Exception:  # noqa: BLE001 - as above.
            self._fail("copy", len(part.places))
            return False
        for place in part.places:
            running.statuses[place] = Status.OK
        running.num_bytes += len(part.places) * self.mover.host.slots.used_bytes[part.group]
        return False

    def _ask_tier(self, running: _Running, places: list[int]) -> None:
        """Hand what can be carried out to a tier, with the payloads of its slots."""
        job = running.job
        tier = self._tiers.get(job.tier)
        if tier is None or not places:
            self._fail("tier", len(places))
            self._answer(running)
            return
        items = tuple(job.items[place] for place in places)
        running.places = places
        try:
            tier.submit(replace(job, items=items), self._payloads(job.kind, items))
        except Exception:  # noqa: BLE001 - others' code: counted, and answered.
            self._fail("records", len(places))
            self._answer(running)
        else:
            self._at_tiers[job.number] = running

    def _payloads(self, kind: Kind, items: Iterable[Item]) -> list[memoryview]:
        source, target = _SIDES[kind]
        if _Side.SLOT not in {source, target}:
            return []
        slots = ((each.source if source is _Side.SLOT else each.target, each) for each in items)
        return [self.mover.host.payload(slot, item.group) for slot, item in slots]

    def _take(self, result: JobResult) -> None:
        """Pass an answer of a tier on, with the items that it was not asked about."""
        running = self._at_tiers.get(result.number)
        if running is None:
            self._fail("records", 1)
            return
        statuses = result.statuses
        if len(statuses) != len(running.places):
            self._fail("records", len(running.places))
            statuses = (Status.IO_ERROR,) * len(running.places)
        for place, status in zip(running.places, statuses, strict=True):
            running.statuses[place] = status
        if result.is_over:
            del self._at_tiers[result.number]
            self.failures.update(str(each) for each in statuses if each is not Status.OK)
        self._results.append(replace(result, statuses=tuple(running.statuses)))

    def _fail(self, reason: str, num: int) -> None:
        if num:
            self.failures[reason] += num

    def _answer(self, running: _Running) -> None:
        self._results.append(
            JobResult(
                number=running.job.number,
                statuses=tuple(running.statuses),
                num_bytes=running.num_bytes,
                seconds=time.perf_counter() - running.begun,
            )
        )


class _Numbers:
    """The numbers of items as arrays; -1 stands for what is none."""

    def __init__(self, items: Sequence[Item]) -> None:
        columns = list(zip(*items, strict=True))[:3] or [()] * 3
        self.groups, self.sources, self.targets = map(_integers, columns)


def _integers(values: Sequence[object]) -> NDArray[np.int64]:
    try:
        found = np.array(values)
    except (OverflowError, ValueError):
        found = np.empty(0)
    if found.shape == (len(values),) and found.dtype == np.int64:
        return found
    return np.array(
        [each if type(each) is int and 0 <= each < _TOO_LARGE else -1 for each in values], np.int64
    )
