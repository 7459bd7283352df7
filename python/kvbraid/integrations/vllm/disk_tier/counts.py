"""What vLLM's metrics say of the tier, beside its own bytes, seconds and hits of every tier.

Invariant: a counter grows by what has happened since the last report, and each cause of a block
that was not stored, or not loaded, is in one of them.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

from kvbraid.transfer.disk import DiskCounts
from kvbraid.transfer.record_store import TierCounts

BLOCKS: Final = "kvbraid_disk_blocks"
REFUSED: Final = "kvbraid_disk_refused_blocks"
EVICTED: Final = "kvbraid_disk_evicted_records"
DISK_BYTES: Final = "kvbraid_disk_bytes"
HUNG: Final = "kvbraid_disk_hung_threads"
METRICS: Final = MappingProxyType(
    {
        BLOCKS: OffloadingCounterMetadata("Blocks written or promoted", ("job", "status")),
        REFUSED: OffloadingCounterMetadata("Blocks refused without a try", ("reason",)),
        EVICTED: OffloadingCounterMetadata("Records that this engine evicted"),
        DISK_BYTES: OffloadingGaugeMetadata("Bytes of all records in the directory"),
        HUNG: OffloadingGaugeMetadata("Calls of the file system past their deadlines"),
    }
)

_Sample = tuple[str, tuple[str, ...]]


class TierReport:
    """What has been reported of one tier."""

    def __init__(self) -> None:
        self._told: dict[_Sample, int] = {}

    def news(self, store: TierCounts, disk: DiskCounts) -> OffloadingConnectorStats:
        """Return what has changed since the last call."""
        stats = OffloadingConnectorStats()
        for sample, count in _samples(store, disk):
            before = self._told.get(sample)
            if before == count or (before is None and not count):
                continue
            self._told[sample] = count
            name, labels = sample
            if isinstance(METRICS[name], OffloadingGaugeMetadata):
                stats.set_gauge(name, count, labels)
            else:
                stats.increase_counter(name, count - (before or 0), labels)
        return stats


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """Return the metrics as vLLM is to define them."""
    return dict(METRICS)


def _samples(store: TierCounts, disk: DiskCounts) -> Iterator[tuple[_Sample, int]]:
    for kind, statuses in store.blocks.items():
        for status, count in statuses.items():
            yield (BLOCKS, (kind.value, status.value)), count
    yield (REFUSED, ("queue",)), store.refused_by_queue
    yield (REFUSED, ("pause",)), store.refused_by_pause
    yield (REFUSED, ("off",)), store.refused_while_off
    yield (EVICTED, ()), disk.evicted
    yield (DISK_BYTES, ()), disk.total_bytes
    yield (HUNG, ()), store.hung_threads
