"""Which loads fail, and how: one fault for a load, drawn when its step is scheduled."""

from collections.abc import Callable
from random import Random

from kvbraid.scheduler import Load

from tests.ghost.device import fault_of
from tests.ghost.faults import (
    DISTURBING,
    OUT_OF_ORDER,
    Event,
    Fault,
    by_place,
    written_down,
)
from tests.ghost.setting import Setting
from tests.ghost.tiers import GhostTiers
from tests.ghost.transfers import Transfer, Transfers

WHOLE = frozenset({Event.WHOLE, Event.GIVEN_UP, Event.TIER_DIES})
"""Events of which every block of the load is a part."""


WEIGHTS = {Event.SHARED: 40, Event.LATE: 2, Event.ONE_RANK: 2}
"""How much more often an event is drawn because it can happen, or count, less often."""


class Injection:
    """The faults of one simulation, by number."""

    def __init__(
        self, setting: Setting, random: Random, transfers: Transfers, tiers: GhostTiers
    ) -> None:
        self.setting = setting
        self.random = random
        self.transfers = transfers
        self.tiers = tiers
        self.faults: list[Fault] = []
        self.has_slot: Callable[[], bool] = lambda: True

    def plan(self, transfer: Transfer) -> None:
        """Say what goes wrong with a load that begins."""
        load = transfer.load
        if not load.targets:
            return
        fails_whole = self.tiers.is_dead or self.setting.fails_whole
        is_good = self.awaits_shared or self.random.random() >= self.setting.fault_share
        if is_good and not fails_whole:
            return
        event = Event.WHOLE if fails_whole else self._event(load)
        spoilt = self._spoilt(load, event)
        transfer.fault = self._new(event, load, spoilt)
        self._write_reports(transfer.fault)
        if event is Event.TIER_DIES:
            self._die()

    @property
    def awaits_late(self) -> bool:
        """Whether a failure is to be said after its load was said to have ended well."""
        return any(f.event in OUT_OF_ORDER and not f.is_reported for f in self.faults)

    @property
    def awaits_shared(self) -> bool:
        """Whether somebody is to share a block before its failure is told. Any other failure would
        have it told at once."""
        return any(f.event is Event.SHARED and not f.is_reported for f in self.faults)

    def is_known_garbage(self, value: int) -> bool:
        """Whether a value was left by a fault that was reported."""
        number = fault_of(value)
        return number is not None and self.faults[number].is_reported

    def _event(self, load: Load) -> Event:
        events = self._events(load)
        weights = [WEIGHTS.get(event, 1) for event in events]
        return self.random.choices(events, weights)[0]

    def _events(self, load: Load) -> list[Event]:
        """What may happen now. A late report is promised to come while all runs that read the
        garbage go on, so nothing may end them before."""
        events = list(Event)
        if self.setting.options.num_ranks == 1:
            events.remove(Event.ONE_RANK)
        is_disturbed = any(f.event in DISTURBING and not f.is_reported for f in self.faults)
        if self.setting.options.late_steps:
            events.remove(Event.SHARED)  # Anything may happen before a late report.
        elif is_disturbed or not self.setting.is_roomy:
            events = [event for event in events if event not in OUT_OF_ORDER]
        elif not all(f.is_reported for f in self.faults) or not self.has_slot():
            events.remove(Event.SHARED)
        if self.awaits_late and not self.setting.options.late_steps:
            events = [event for event in events if event not in DISTURBING]
        return events

    def _new(self, event: Event | None, load: Load, spoilt: frozenset[int]) -> Fault:
        group = load.targets[min(spoilt)].group
        mode = "async" if load.is_async else "sync"
        kind = self.setting.cache.topology.groups[group].kind
        cell = f"{event.value} {kind.value} {mode}" if event else ""
        fault = Fault(len(self.faults), event, cell, load, spoilt)
        self.faults.append(fault)
        return fault

    def _spoilt(self, load: Load, event: Event) -> frozenset[int]:
        """The targets that fail: all, or the first, a middle or the last one of a group, and
        perhaps others."""
        count = len(load.targets)
        if event in WHOLE or (event is not Event.PART and self.random.random() < 0.3):
            return frozenset(range(count))
        groups = sorted({target.group for target in load.targets})
        kinds = self.setting.cache.topology.groups
        if event is Event.SHARED:
            groups = [g for g in groups if not kinds[g].kind.is_full] or groups
        group = self.random.choice(groups)
        own = [i for i, target in enumerate(load.targets) if target.group == group]
        if event is Event.SHARED and not kinds[group].kind.is_full:
            return frozenset(own[-1:])  # Others rarely find any other block of a window or state.
        spoilt = {self.random.choice((own[0], own[-1], self.random.choice(own)))}
        if self.random.random() < 0.4:
            spoilt |= {i for i in range(count) if self.random.random() < 0.4}
        return frozenset(spoilt)

    def _write_reports(self, fault: Fault) -> None:
        """Which ranks notice, and what each says: some of what failed, together all of it."""
        load, random = fault.load, self.random
        ranks = list(range(self.setting.options.num_ranks))
        if fault.event is Event.ONE_RANK or random.random() < 0.3:
            ranks = [random.choice(ranks)]
        for rank in ranks:
            some = [i for i in sorted(fault.spoilt) if random.random() < 0.6]
            said = sorted(fault.spoilt) if rank == ranks[-1] or not some else some
            targets = [load.targets[index] for index in said]
            if fault.event is Event.SHARED:
                fault.reports[rank] = by_place(load, targets)
            else:
                record = random.choice(load.records) if load.records else None
                fault.reports[rank] = written_down(random, load, targets, record)

    def _die(self) -> None:
        """The tier dies under a load: what its other loads have not landed yet fails too."""
        self.tiers.die(self.tiers.tick + self.random.randint(1, 4))
        for other in self.transfers.under_way.values():
            if other.fault or not other.ends:
                continue
            left = [i for i, n in enumerate(other.landed) if n < self.transfers.num_ranks]
            if left:
                fault = self._new(None, other.load, frozenset(left))
                report = by_place(other.load, [other.load.targets[index] for index in left])
                fault.reports = dict.fromkeys(other.ends, report)
                self.transfers.fail_what_is_left(other, fault)
