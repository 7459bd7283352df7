"""What offloading does, for operators: `kvbraid_tier_*`, counted in the scheduler's process.

vLLM serves them as it does those of recoveries (docs/vllm.md). They are brought up to date once a
second at most, while steps are scheduled.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import prometheus_client

from kvbraid.transfer.offload import OffloadManager

_INTERVAL_S: Final = 1.0


class TierMetrics:
    """The metrics of one engine: `engine` is its number, as in vLLM's own metrics."""

    def __init__(self, offload: OffloadManager, engine: str) -> None:
        self._offload: Final = offload
        self._engine: Final = engine
        self._told: Final[dict[tuple[str, ...], float]] = {}
        self._due = 0.0

    def tell(self, now: float) -> None:
        """Count what is new since the last call, if that was long enough ago."""
        if now < self._due:
            return
        self._due = now + _INTERVAL_S
        counts, metrics = self._offload.counts, _metrics()
        for (kind, tier), num_bytes in counts.num_bytes.items():
            self._count("bytes", num_bytes, str(kind), tier)
        for (kind, tier), seconds in counts.seconds.items():
            self._count("seconds", seconds, str(kind), tier)
        for tier, hits in counts.hits.items():
            self._count("hits", hits, tier or "device")
        for (tier, why), drops in counts.drops.items():
            self._count("drops", drops, tier, str(why))
        for kind, pending in counts.num_pending.items():
            metrics["pending"].labels(self._engine, str(kind)).set(pending)
        for tier, blocks in self._offload.num_blocks().items():
            metrics["blocks"].labels(self._engine, tier).set(blocks)

    def _count(self, name: str, now: float, *labels: str) -> None:
        key = (name, *labels)
        _metrics()[name].labels(self._engine, *labels).inc(now - self._told.get(key, 0))
        self._told[key] = now


@cache
def _metrics() -> Mapping[str, Any]:
    """Make the metrics of this process, when the first engine offloads."""
    of_kind, of_tier = ["engine", "kind", "tier"], ["engine", "tier"]
    counters = {
        "bytes": ("kvbraid_tier_bytes", "Bytes moved over all ranks", of_kind),
        "seconds": ("kvbraid_tier_seconds", "Seconds of jobs over all ranks", of_kind),
        "hits": ("kvbraid_tier_hits", "Blocks that loads have taken", of_tier),
        "drops": ("kvbraid_tier_drops", "Blocks not stored, or lost", [*of_tier, "reason"]),
    }
    gauges = {
        "pending": ("kvbraid_tier_pending", "Blocks on their way", ["engine", "kind"]),
        "blocks": ("kvbraid_tier_blocks", "Blocks that a tier has", of_tier),
    }
    return {name: prometheus_client.Counter(*each) for name, each in counters.items()} | {
        name: prometheus_client.Gauge(*each, multiprocess_mode="livemostrecent")
        for name, each in gauges.items()
    }
