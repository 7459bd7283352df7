"""Loads under way: what lands when, who tears what, and which reports the ranks write.

A synchronous load lands in its step; an asynchronous one lands in two parts on each rank, ticks
later. What a rank still has to write, it writes, whoever uses the block by then. A block is whole
once every rank has written it and nobody else has written in between.

A failure is told after the end of its load only as long as the run goes on that began the load,
unless late reports are promised to come in so many steps: whatever happens before. So a rank tells
it with its own end if the run is over by then, or another rank has told it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from kvbraid.scheduler import Load, LoadReport

from tests.ghost.device import TORN, Device, garbage_of
from tests.ghost.faults import OUT_OF_ORDER, Event, Fault, by_place


@dataclass(slots=True)
class Transfer:
    """One load. `stamps` tells whether anybody else has written into a target since it began."""

    load: Load
    values: list[list[int]]
    fault: Fault | None = None
    landed: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    batches: list[tuple[int, int, list[int]]] = field(default_factory=list)
    gives_up: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Letter:
    """A report that is under way to the scheduler.

    One that says again what was said comes only while the run goes on that `load` fills: later the
    same numbers may mean what another load fills, which nothing in the report tells apart.
    """

    due: int
    fault: Fault | None
    report: LoadReport
    load: Load | None = None


class Transfers:
    """The loads of one engine that have begun, and the reports about them."""

    def __init__(self, device: Device, random: Random, num_ranks: int) -> None:
        self.device = device
        self.random = random
        self.num_ranks = num_ranks
        self.tick = 0
        self.under_way: dict[int, Transfer] = {}
        self.over: set[int] = set()
        self.letters: list[Letter] = []
        self.goes_on: Callable[[Load], bool] = lambda _: True
        self.num_loads: Counter[int] = Counter()  # By request.
        self.may_be_late = False
        self.is_as_it_was: Callable[[Load], bool] = lambda _: True

    def begin(self, transfer: Transfer) -> None:
        load, count = transfer.load, len(transfer.values)
        self.num_loads[load.request] += 1
        transfer.landed = [0] * count
        for target, values in zip(load.targets, transfer.values, strict=True):
            self.device.fill(target.block_id, [TORN] * len(values))
        transfer.stamps = [self.device.writes[t.block_id] for t in load.targets]
        for rank in range(self.num_ranks):
            last = self._last_tick(transfer, rank)
            indices = self.random.sample(range(count), count)
            cut = self.random.randint(0, count)
            early = self.random.randint(self.tick, last)
            transfer.batches += [(early, rank, indices[:cut]), (last, rank, indices[cut:])]
            transfer.ends[rank] = last
        self.under_way[load.number] = transfer
        self._move(transfer)

    def _last_tick(self, transfer: Transfer, rank: int) -> int:
        """When a rank writes for the last time."""
        fault, is_async = transfer.fault, transfer.load.is_async
        if fault and fault.event is Event.GIVEN_UP and rank in fault.reports:
            given_up = self.tick + (self.random.randint(0, 2) if is_async else 0)
            transfer.gives_up[rank] = given_up
            return given_up + self.random.randint(1, 4)
        return self.tick + (self.random.choice((0, 1, 1, 2, 3, 5)) if is_async else 0)

    def advance(self) -> None:
        for transfer in list(self.under_way.values()):
            self._move(transfer)

    def _move(self, transfer: Transfer) -> None:
        if transfer.batches:
            due = [batch for batch in transfer.batches if batch[0] <= self.tick]
            transfer.batches = [batch for batch in transfer.batches if batch[0] > self.tick]
            for _, _, indices in due:
                for index in indices:
                    transfer.landed[index] += 1
                    self.write(transfer, index)
        number = (transfer.load.number,)
        for rank in [rank for rank, at in transfer.gives_up.items() if at <= self.tick]:
            del transfer.gives_up[rank]
            self.send(transfer.fault, 0, LoadReport(rank=rank, given_up=number))
        for rank in [rank for rank, at in transfer.ends.items() if at <= self.tick]:
            del transfer.ends[rank]
            self._end(transfer, rank)
        if not transfer.ends:
            del self.under_way[transfer.load.number]
            self.over.add(transfer.load.number)

    def write(self, transfer: Transfer, index: int) -> None:
        """Leave in a target what it holds as far as it has landed."""
        block, size = transfer.load.targets[index].block_id, len(transfer.values[index])
        if self.device.writes[block] != transfer.stamps[index]:
            self.device.fill(block, [TORN] * size)  # Somebody else has written here.
            return
        fault = transfer.fault
        if fault and index in fault.spoilt:
            values = [garbage_of(fault.number)] * size
        elif transfer.landed[index] == self.num_ranks:
            values = transfer.values[index]
        else:
            values = [TORN] * size
        self.device.fill(block, values)
        transfer.stamps[index] = self.device.writes[block]

    def _end(self, transfer: Transfer, rank: int) -> None:
        fault, number = transfer.fault, (transfer.load.number,)
        failures = fault.reports.get(rank) if fault else None
        if fault is None or failures is None or fault.event is Event.GIVEN_UP:
            self.send(None, 0, LoadReport(rank=rank, ended=number))
        elif self._is_late(fault):
            fault.is_late = True
            self.send(None, 0, LoadReport(rank=rank, ended=number))
            delay = self.random.randint(1, 4) if fault.event is Event.LATE else 12
            self.send(fault, delay, LoadReport(rank=rank, failures=failures))
        else:
            self.send(fault, 0, LoadReport(rank=rank, ended=number, failures=failures))
            if fault.event is Event.TWICE:
                delay = self.random.randint(1, 3)
                again = LoadReport(rank=rank, failures=failures)
                self.letters.append(Letter(self.tick + delay, fault, again, transfer.load))

    def _is_late(self, fault: Fault) -> bool:
        is_kept = self.may_be_late or self.goes_on(fault.load)
        return fault.event in OUT_OF_ORDER and not fault.is_reported and is_kept

    def send(self, fault: Fault | None, delay: int, report: LoadReport) -> None:
        self.letters.append(Letter(self.tick + delay, fault, report))

    def fail_what_is_left(self, transfer: Transfer, fault: Fault) -> None:
        """Let a load fail that has begun: what it has not landed yet is garbage."""
        transfer.fault = fault
        for index in fault.spoilt:
            self.write(transfer, index)

    # Reports.

    def collect(self) -> list[LoadReport]:
        """The reports that are due, and all late failures as soon as any failure is reported."""
        due = [letter for letter in self.letters if letter.due <= self.tick]
        if any(letter.fault for letter in due):
            due += [
                letter
                for letter in self.letters
                if letter.due > self.tick and letter.fault and not letter.fault.is_reported
            ]
        self.letters = [letter for letter in self.letters if letter not in due]
        due = [letter for letter in due if letter.load is None or self.goes_on(letter.load)]
        for letter in due:
            if letter.fault:
                letter.fault.num_reports += 1
        return [self._unambiguous(letter) for letter in due]

    def _unambiguous(self, letter: Letter) -> LoadReport:
        """Where late reports are promised, one names places if blocks mean others as well."""
        fault, report = letter.fault, letter.report
        if fault is None or not self.may_be_late or self.is_as_it_was(fault.load):
            return report
        targets = [fault.load.targets[index] for index in sorted(fault.spoilt)]
        return replace(report, failures=by_place(fault.load, targets))

    def hurry(self, fault: Fault) -> None:
        """Let the reports of a fault be due now."""
        for letter in self.letters:
            if letter.fault is fault:
                letter.due = min(letter.due, self.tick)

    def faults_due(self) -> list[Fault]:
        """The faults of which a report is due."""
        due = [letter.fault for letter in self.letters if letter.due <= self.tick]
        return [fault for fault in due if fault]

    @property
    def is_busy(self) -> bool:
        """Whether a load is under way, or a report."""
        return bool(self.under_way or self.letters)
