"""Which policy retention by value follows, for operators: gauges, and a log line at each change.

vLLM's own statistics leave the engine's process in a message with fixed fields, so these are
metrics of the engine's process, as those of recoveries are, and docs/vllm.md says how vLLM serves
them. They are set where vLLM collects its own: once a step, unless statistics are switched off.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import prometheus_client
from vllm.logger import init_logger

from kvbraid.cache import CacheManager, PolicyChoice

logger = init_logger("vllm.kvbraid.retention")


class PolicyReport:
    """Tells of one cache; of a cache whose policy is fixed, nothing.

    `engine` is what vLLM's metrics call the engine: its number among data-parallel ones.
    """

    def __init__(self, kv_cache: CacheManager, engine: str) -> None:
        self._cache = kv_cache
        self._engine = engine
        self._told = kv_cache.policy_choice()
        if self._told is not None:
            name = self._told.now.name
            logger.info("kvbraid: retention by value begins with %s and then adapts.", name)
            self._set(self._told)

    def tell(self) -> None:
        """Say what has changed since the last call."""
        before = self._told
        now = None if before is None else self._cache.policy_choice()
        if before is None or now is None or now.num_requests == before.num_requests:
            return
        self._told = now
        self._set(now)
        if now.now.name != before.now.name:
            gains = ", ".join(f"{100 * gain:+.2f} {name}" for name, gain in now.gains.items())
            logger.info(
                "kvbraid: after %d requests, retention by value follows %s instead of %s; "
                "it would have saved more than each other policy lately, in %% of compute: %s.",
                now.since, now.now.name, before.now.name, gains,
            )  # fmt: skip

    def _set(self, policy_choice: PolicyChoice) -> None:
        metrics, now = _metrics(), policy_choice.now.name
        metrics["age"].labels(self._engine).set(policy_choice.num_requests - policy_choice.since)
        for name, gain in {now: 0.0, **policy_choice.gains}.items():
            metrics["policy"].labels(self._engine, name).set(name == now)
            metrics["gain"].labels(self._engine, name).set(gain)


@cache
def _metrics() -> Mapping[str, Any]:
    """Make the gauges of this process, when the first cache chooses a policy."""
    by_policy = ["engine", "policy"]
    each = {
        "policy": ("kvbraid_policy", "1: retention by value follows this", by_policy),
        "gain": (
            "kvbraid_policy_gain",
            "Share of all compute that the policy would have saved lately beyond this one",
            by_policy,
        ),
        "age": (
            "kvbraid_policy_age_requests",
            "Requests that ended since the policy changed",
            ["engine"],
        ),
    }
    return {
        name: prometheus_client.Gauge(*gauge, multiprocess_mode="livemostrecent")
        for name, gauge in each.items()
    }
