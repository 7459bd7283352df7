"""What offloading does, for operators: `kvbraid_tier_*`, counted in the scheduler's process.

vLLM serves them as it does those of recoveries (docs/vllm.md). They are brought up to date once a
second at most, while steps are scheduled. Ranks count for themselves, and say their totals.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, Final

import prometheus_client

from kvbraid.transfer.offload import OffloadManager
from kvbraid.transfer.rank_counts import DEVICE, SEEN_BY_ALL, RankCounts

_INTERVAL_S: Final = 1.0

COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "bytes": ("Bytes moved over all ranks", ("kind", "tier")),
    "seconds": ("Seconds of jobs over all ranks", ("kind", "tier")),
    "hits": ("Blocks that loads have taken", ("tier",)),
    "drops": ("Blocks not stored, or lost", ("tier", "reason")),
    "records": ("Blocks that tiers have answered, over all ranks", ("tier", "kind", "status")),
    "failed_items": ("Blocks that ranks could not move", ("reason",)),
    "incidents": ("What happened beside", ("tier", "incident")),
}
"""Help and labels of what only grows, by the name without `kvbraid_tier_`."""

GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "pending": ("Blocks on their way", ("kind",)),
    "blocks": ("Blocks that a tier has", ("tier",)),
    "slots": ("Slots of host memory, over all ranks", ("state",)),
    "queued_bytes": ("Bytes that wait for a tier, over all ranks", ("tier",)),
    "hung_threads": ("Calls of a tier past their deadlines, over all ranks", ("tier",)),
    "ranks_off": ("Ranks that do not use a tier because calls hang", ("tier",)),
    "ranks_paused": ("Ranks that do not write to a tier for a while", ("tier",)),
    "ranks_evicting": ("Ranks that keep the limit of a directory", ("tier",)),
    "ranks_direct": ("Ranks that read and write around the page cache", ("tier",)),
    "record_bytes": ("Bytes of records, of all ranks", ("tier",)),
    "directory_bytes": ("Bytes of all records of a directory", ("tier",)),
    "directory_limit_bytes": ("Most bytes of all records of a directory", ("tier",)),
    "directory_ignored": ("Names in a directory that are nobody's", ("tier",)),
}
"""The same of what is so now."""

_Reading = tuple[tuple[str, ...], float]


class TierMetrics:
    """The metrics of one engine: `engine` is its number, as in vLLM's own metrics."""

    def __init__(self, offload: OffloadManager, engine: str) -> None:
        self._offload: Final = offload
        self._engine: Final = engine
        self._ranks: Final[dict[int, RankCounts]] = {}
        self._told: Final[dict[tuple[str, ...], float]] = {}
        self._due = 0.0

    def take(self, rank: int, counts: RankCounts) -> None:
        """Take what has changed of a rank's totals."""
        self._ranks.setdefault(rank, {}).update(counts)

    def tell(self, now: float) -> None:
        """Count what is new since the last call, if that was long enough ago."""
        if now < self._due:
            return
        self._due = now + _INTERVAL_S
        metrics = _metrics()
        for key, number in (*self._decided(), *self._of_ranks()):
            name, *labels = key
            metric = metrics[name].labels(self._engine, *labels)
            if name in GAUGES:
                metric.set(number)
            else:
                metric.inc(number - self._told.get(key, 0))
                self._told[key] = number

    def _decided(self) -> Iterator[_Reading]:
        """Yield what the scheduler's side has counted."""
        counts = self._offload.counts
        for (kind, tier), num_bytes in counts.num_bytes.items():
            yield ("bytes", kind, tier), num_bytes
        for (kind, tier), seconds in counts.seconds.items():
            yield ("seconds", kind, tier), seconds
        for tier, hits in counts.hits.items():
            yield ("hits", tier or DEVICE), hits
        for (tier, why), drops in counts.drops.items():
            yield ("drops", tier, why), drops
        for incident, number in counts.incidents().items():
            yield ("incidents", "", incident), number
        for kind, pending in counts.num_pending.items():
            yield ("pending", kind), pending
        for tier, blocks in self._offload.num_blocks().items():
            yield ("blocks", tier), blocks

    def _of_ranks(self) -> Iterator[_Reading]:
        """Yield the sums of what ranks have counted, and what each of them sees of the same."""
        total = Counter[tuple[str, ...]]()
        for key, number in chain.from_iterable(own.items() for own in self._ranks.values()):
            is_one = key[0] in SEEN_BY_ALL
            total[key] = max(total[key], number) if is_one else total[key] + number
        yield from total.items()


@cache
def _metrics() -> Mapping[str, Any]:
    """Make the metrics of this process, when the first engine offloads."""
    counters = {
        name: prometheus_client.Counter(f"kvbraid_tier_{name}", text, ["engine", *labels])
        for name, (text, labels) in COUNTERS.items()
    }
    return counters | {
        name: prometheus_client.Gauge(
            f"kvbraid_tier_{name}", text, ["engine", *labels], multiprocess_mode="livemostrecent"
        )
        for name, (text, labels) in GAUGES.items()
    }
