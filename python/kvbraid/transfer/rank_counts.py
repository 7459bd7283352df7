"""What one rank counts, in totals: its metrics by name and labels, for whoever adds up all ranks.

Invariant: the names and labels are those of this page, of the tiers that the rank has and of the
reasons of `Worker.failures`, so there are at most a few dozen for each tier.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from kvbraid.transfer.disk import DiskCounts, DiskTier
from kvbraid.transfer.record_store import RecordStore, TierCounts
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker

RankCounts: TypeAlias = dict[tuple[str, ...], int]
"""Numbers by the name of a metric and its labels."""

DEVICE: Final = "device"
"""The tier of incidents that happened on the device."""

INCIDENTS: Final[Mapping[str, str]] = {
    "refused_by_queue": "refused_by_queue",
    "refused_by_pause": "refused_by_pause",
    "refused_while_off": "refused_while_off",
    "late": "late",
    "bad": "num_bad",
    "foreign": "num_foreign",
    "errors": "errors",
}
"""What happens to a tier, and where `TierCounts` counts it."""

_NOW: Final[Mapping[str, str]] = {
    "queued_bytes": "queued_bytes",
    "hung_threads": "hung_threads",
    "ranks_off": "is_off",
    "ranks_paused": "is_paused",
}
"""What is so now, and where `TierCounts` has it."""

_OF_DIRECTORY: Final[Mapping[str, str]] = {
    "ranks_evicting": "evicts",
    "ranks_direct": "is_direct",
    "record_bytes": "bytes",
    "directory_bytes": "total_bytes",
    "directory_limit_bytes": "max_bytes",
    "directory_ignored": "ignored",
}
"""The same of a tier that is a directory, and where `DiskCounts` has it."""

SEEN_BY_ALL: Final = frozenset({"directory_bytes", "directory_limit_bytes", "directory_ignored"})
"""What all ranks see of one directory: it is not added up."""

DIRECTORY_INCIDENTS: Final = ("evicted", "orphans")
"""What happens to a directory, as `DiskCounts` counts it."""

_STATUSES: Final = frozenset(Status)


def rank_counts(
    worker: Worker, stores: Mapping[str, RecordStore], disks: Mapping[str, DiskTier]
) -> RankCounts:
    """Return what a rank has counted since its start, and what is so now.

    `disks` are those of the tiers that are directories.

    Blocks that a tier has answered are in `records`; `failed_items` has those that failed before.
    """
    host = worker.mover.host
    counts: RankCounts = {
        ("slots", "ready"): host.num_ready_slots,
        ("slots", "unpinned"): host.num_unpinned_slots,
    }
    for reason, number in worker.failures.items():
        if reason not in _STATUSES:
            counts["failed_items", reason] = number
    for incident, number in worker.mover.incidents.items():
        counts["incidents", DEVICE, incident] = number
    for name, store in stores.items():
        counts |= _of_tier(name, store.counts())
    for name, disk in disks.items():
        counts |= _of_directory(name, disk.counts())
    return counts


def _of_tier(name: str, counts: TierCounts) -> RankCounts:
    found: RankCounts = {
        ("records", name, str(kind), str(status)): number
        for kind, statuses in counts.blocks.items()
        for status, number in statuses.items()
    }
    found |= {("incidents", name, each): getattr(counts, at) for each, at in INCIDENTS.items()}
    return found | {(each, name): int(getattr(counts, at)) for each, at in _NOW.items()}


def _of_directory(name: str, counts: DiskCounts) -> RankCounts:
    found = {("incidents", name, each): getattr(counts, each) for each in DIRECTORY_INCIDENTS}
    return found | {(each, name): int(getattr(counts, at)) for each, at in _OF_DIRECTORY.items()}
