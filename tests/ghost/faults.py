"""What goes wrong with loads. Counted by event, kind of group, and mode of the load.

One fault is one event, whatever the number of blocks. It counts once it has been reported and all
that belongs to it has happened.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from kvbraid.loads import Cause, Failures, GroupBlock, Record
from kvbraid.scheduler import Load, Target
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.status import Status

from tests.ghost.configs import KINDS


class Event(StrEnum):
    """What happens to one load."""

    WHOLE = "whole"
    """Every block fails, on every rank."""
    PART = "part"
    """Some blocks of one group or of several fail."""
    LATE = "late"
    """The load is said to have ended well; that it failed is said later."""
    TWICE = "twice"
    """The same failure is reported twice."""
    ONE_RANK = "one_rank"
    """One rank fails; the others end well."""
    GIVEN_UP = "given_up"
    """A rank gives the load up and writes on."""
    TIER_DIES = "tier_dies"
    """The tier dies under its loads and loses its records."""
    SHARED = "shared"
    """A block fails that another request shares by now; one of its users is named."""
    ABORT = "abort"
    """The request is aborted before the failure is reported."""
    PREEMPT = "preempt"
    """The request is preempted before the failure is reported."""
    EVICT = "evict"
    """All free blocks are reused before the failure is reported."""
    RESET = "reset"
    """All requests start over and the cache is reset before the failure is reported."""


MODES: Final = ("sync", "async")
OUT_OF_ORDER: Final = frozenset({Event.LATE, Event.SHARED})
"""Events whose failure is said after the load was said to have ended well."""
DISTURBING: Final = frozenset({Event.ABORT, Event.PREEMPT, Event.EVICT, Event.RESET})
"""Events that something else belongs to, before the report."""


@dataclass(slots=True, eq=False)
class Fault:
    """One injected fault, from the beginning of its load on.

    Attributes:
        number: The garbage that it leaves has this number.
        event: What happens; None for what follows from another fault.
        cell: How it is counted.
        load: The load.
        spoilt: The indices of the load's targets that fail.
        reports: What each of the ranks says that notice it.
        num_reports: How many reports of it were delivered.
        has_happened: Whether what belongs to the event has happened before the report.
        is_late: Whether a rank had reported a good end of the load before.
    """

    number: int
    event: Event | None
    cell: str
    load: Load
    spoilt: frozenset[int]
    reports: dict[int, Failures] = field(default_factory=dict)
    num_reports: int = 0
    has_happened: bool = False
    is_late: bool = False

    @property
    def is_reported(self) -> bool:
        """Whether a rank has said so."""
        return self.num_reports > 0

    @property
    def counts_as(self) -> str:
        """The cell in which it counts; empty if it does not count, or not yet."""
        if self.event is Event.TWICE and self.num_reports <= len(self.reports):
            return ""
        if self.event in DISTURBING and not self.has_happened:
            return ""
        if not self.is_reported:
            return ""
        event = self.event
        if event is Event.SHARED and not self.has_happened:
            event = Event.LATE
        if event in OUT_OF_ORDER and not self.is_late:
            event = Event.PART
        return self.cell.replace(str(self.event), str(event))


def written_down(
    random: Random, load: Load, spoilt: Sequence[Target], record: Record | None
) -> Failures:
    """The failure of some targets of a load, in any form."""
    causes = {record: random.choice(tuple(Cause))} if record else {}
    forms = ["blocks", "group_blocks", "places", "tables"]
    if len(spoilt) == len(load.targets):
        forms.append("requests")
    match random.choice(forms):
        case "blocks":
            return Failures(blocks=[t.block_id for t in spoilt], causes=causes)
        case "group_blocks":
            pairs = [GroupBlock(t.group, t.block_id) for t in spoilt]
            return Failures(group_blocks=pairs, causes=causes)
        case "places" | "tables":
            return Failures(places={load.request: by_group(spoilt)}, causes=causes)
        case _:
            return Failures(requests=[load.request], causes=causes)


def by_place(load: Load, spoilt: Sequence[Target]) -> Failures:
    """The failure of some targets, as positions in the table of the request that loads them."""
    return Failures(places={load.request: by_group(spoilt)})


def by_group(targets: Sequence[Target]) -> dict[int, set[int]]:
    groups: dict[int, set[int]] = {}
    for target in targets:
        groups.setdefault(target.group, set()).add(target.position)
    return groups


def cells() -> Iterator[str]:
    """Every kind of fault that is to be injected, as it is counted."""
    for event in Event:
        for kind in KINDS:
            for mode in MODES:
                yield f"{event.value} {kind.value} {mode}"


STATUSES: Final = {
    Kind.STORE: (Status.FULL, Status.IO_ERROR, Status.TIMEOUT),
    Kind.LOAD: (Status.IO_ERROR, Status.TIMEOUT),
    Kind.COPY: (Status.IO_ERROR, Status.TIMEOUT),
    Kind.WRITE: (Status.FULL, Status.IO_ERROR, Status.TIMEOUT),
    Kind.PROMOTE: tuple(status for status in Status if status not in {Status.OK, Status.FULL}),
    Kind.DROP: (Status.IO_ERROR,),
}
"""What goes wrong with each kind of job. A job that times out hangs."""
DEATH: Final = "a tier dies"
LOSS: Final = "a record is gone"


def tier_cells() -> Iterator[str]:
    """Every fault of tiers, as it is counted."""
    yield from (f"{kind} {status}" for kind, each in STATUSES.items() for status in each)
    yield from (DEATH, LOSS)


@dataclass
class Tally:
    """What many cases came to. Real ranks count their faults, and by kind of job the blocks that
    they have moved well."""

    faults: Counter[str] = field(default_factory=Counter)
    tier_faults: Counter[str] = field(default_factory=Counter)
    real_faults: Counter[str] = field(default_factory=Counter)
    real_blocks: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    steps: int = 0
    requests: int = 0
    bad: int = 0

    def add(self, other: "Tally") -> None:
        self.faults.update(other.faults)
        self.tier_faults.update(other.tier_faults)
        self.real_faults.update(other.real_faults)
        self.real_blocks.update(other.real_blocks)
        self.cases += other.cases
        self.steps += other.steps
        self.requests += other.requests
        self.bad += other.bad

    @property
    def injected(self) -> int:
        """Faults of loads from elsewhere; `tier_faults` are those of the engine's own tiers."""
        return self.faults.total()

    def line(self) -> dict[str, int]:
        counts = [self.faults[name] for name in cells()]
        return {
            "injected": self.injected,
            "tier_faults": self.tier_faults.total(),
            "real_faults": self.real_faults.total(),
            "real_blocks": self.real_blocks.total(),
            "steps": self.steps,
            "bad": self.bad,
            "cells": len(counts),
            "least_cell": min(counts),
            "least_tier_cell": min(self.tier_faults[name] for name in tier_cells()),
        }
