"""Where retention by value leans, for operators: gauges, and a log line at each change.

vLLM's own statistics leave the engine's process in a message with fixed fields, so these are
metrics of the engine's process, as those of recoveries are, and docs/vllm.md says how vLLM serves
them. They are set where vLLM collects its own: once a step, unless statistics are switched off.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import prometheus_client
from vllm.logger import init_logger

from kvbraid.cache import CacheManager, Leaning

logger = init_logger("vllm.kvbraid.retention")


class LeanReport:
    """Tells of one cache; of a cache that does not lean, nothing.

    `engine` is what vLLM's metrics call the engine: its number among data-parallel ones.
    """

    def __init__(self, kv_cache: CacheManager, engine: str) -> None:
        self._cache = kv_cache
        self._engine = engine
        self._told = kv_cache.leaning()
        if self._told is not None:
            name = self._told.now.name
            logger.info("kvbraid: retention by value begins with %s and then adapts.", name)
            self._set(self._told)

    def tell(self) -> None:
        """Say what has changed since the last call."""
        before = self._told
        now = None if before is None else self._cache.leaning()
        if before is None or now is None or now.num_requests == before.num_requests:
            return
        self._told = now
        self._set(now)
        if now.now.name != before.now.name:
            gains = ", ".join(f"{100 * gain:+.2f} {name}" for name, gain in now.gains.items())
            logger.info(
                "kvbraid: after %d requests, retention by value leans towards %s instead of %s; "
                "lately it would have saved more than each other lean, in %% of all compute: %s.",
                now.since, now.now.name, before.now.name, gains,
            )  # fmt: skip

    def _set(self, leaning: Leaning) -> None:
        metrics, now = _metrics(), leaning.now.name
        metrics["age"].labels(self._engine).set(leaning.num_requests - leaning.since)
        for name, gain in {now: 0.0, **leaning.gains}.items():
            metrics["lean"].labels(self._engine, name).set(name == now)
            metrics["gain"].labels(self._engine, name).set(gain)


@cache
def _metrics() -> Mapping[str, Any]:
    """Make the gauges of this process, when the first cache leans."""
    by_lean = ["engine", "lean"]
    each = {
        "lean": ("kvbraid_lean", "1: retention by value leans towards this", by_lean),
        "gain": (
            "kvbraid_lean_gain",
            "Share of all compute that the lean would have saved lately beyond this one",
            by_lean,
        ),
        "age": (
            "kvbraid_lean_age_requests", "Requests that ended since the lean changed", ["engine"],
        ),
    }  # fmt: skip
    return {
        name: prometheus_client.Gauge(*gauge, multiprocess_mode="livemostrecent")
        for name, gauge in each.items()
    }
