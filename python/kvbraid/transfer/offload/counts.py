"""What is counted: everything that was moved, found, dropped or refused, for `kvbraid_tier_*`."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from enum import StrEnum

from kvbraid.transfer.jobs import Kind


class Drop(StrEnum):
    """Why a block was not stored, or is no longer had."""

    STORES_FULL = "stores_full"  # As many device blocks were held as may be.
    WRITES_FULL = "writes_full"  # Its slot was lost before there was room to write it.
    NO_SLOT = "no_slot"  # Every host slot was in use.
    NOT_FOUND = "not_found"  # The cache had dropped the block before it could be copied.
    RESTING = "resting"  # The tier gets no writes for a while.
    FAILED = "failed"  # A copy or a write failed.
    RETRACTED = "retracted"  # The block that it was copied from held garbage.
    SPOILT = "spoilt"  # The record was missing, short, corrupt or foreign.
    EVICTED = "evicted"  # Another block got its place.
    RESET = "reset"  # All that tiers had was forgotten.


@dataclass(slots=True, kw_only=True)
class OffloadCounts:
    """Counts since the manager was made; `num_pending` is of now. Tiers are named by operators.

    Attributes:
        num_bytes: Bytes moved, by kind of job and tier ("" for kinds without records).
        seconds: How long these jobs took, added up over ranks.
        hits: Blocks that loads have taken, by the tier that they came from for their request.
        drops: Blocks that were not stored, or are no longer had, by tier and reason.
        num_pending: Items of jobs that are queued or under way, by kind.
        num_deadlines: Look-ups that were answered without waiting any longer for records.
        num_declined: Offers that no load has taken.
        num_unknown_results: Results of no job, of no rank, or told twice.
        num_bad_results: Results with another number of statuses than their job has items.
        num_forgotten_origins: Copies of which nobody knows any longer where they came from.
    """

    num_bytes: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    seconds: defaultdict[tuple[Kind, str], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    hits: Counter[str] = field(default_factory=Counter)
    drops: Counter[tuple[str, Drop]] = field(default_factory=Counter)
    num_pending: Counter[Kind] = field(default_factory=Counter)
    num_deadlines: int = 0
    num_declined: int = 0
    num_unknown_results: int = 0
    num_bad_results: int = 0
    num_forgotten_origins: int = 0

    def incidents(self) -> dict[str, int]:
        """Return what is counted by neither kind nor tier, by its name without `num_`."""
        plain = (each.name for each in fields(self) if each.type is int)
        return {name.removeprefix("num_"): getattr(self, name) for name in plain}
