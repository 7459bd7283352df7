"""What recoveries are counted: for tests and log lines as numbers, for operators as metrics.

Metrics are those of `prometheus_client`, which comes with vLLM. vLLM serves them if the engine's
process shares them: docs/vllm.md says how.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import prometheus_client

from kvbraid.recovery import Action, Ignored, RecoveryPlan


@dataclass(slots=True)
class RecoveryCounts:
    """What one scheduler has recovered.

    Attributes:
        recoveries: Reports after which at least one block was tainted.
        requests: Affected requests, by what happened to them.
        recomputed_tokens: Tokens that affected requests compute or load again.
        unused_tokens: Tokens that were loaded, or were being loaded, for requests that gave their
            blocks back before they computed anything from them.
    """

    policy: str
    recoveries: int = 0
    requests: Counter[Action] = field(default_factory=Counter)
    recomputed_tokens: int = 0
    unused_tokens: int = 0

    def add(self, plan: RecoveryPlan, tainted_by_group: Mapping[int, int]) -> None:
        """Count a recovery that was applied."""
        metrics = _metrics()
        self.recoveries += bool(plan.tainted)
        metrics["recoveries"].labels(self.policy).inc(bool(plan.tainted))
        for each in plan.requests.values():
            self.requests[each.action] += 1
            metrics["requests"].labels(self.policy, each.action.value).inc()
        self.recomputed_tokens += plan.num_recomputed_tokens
        metrics["recomputed"].labels(self.policy).inc(plan.num_recomputed_tokens)
        for group, number in tainted_by_group.items():
            metrics["tainted"].labels(self.policy, str(group)).inc(number)
        self.ignore(plan.ignored)

    def waste(self, num_tokens: int) -> None:
        """Count loaded tokens that were given back unused."""
        self.unused_tokens += num_tokens
        _metrics()["unused"].labels(self.policy).inc(num_tokens)

    def ignore(self, ignored: Mapping[Ignored, int]) -> None:
        """Count parts of reports that did not count."""
        for reason, number in ignored.items():
            _metrics()["ignored"].labels(reason.value).inc(number)

    def hold(self, group: int) -> None:
        """Count a block that is quarantined from now on."""
        _metrics()["quarantined"].labels(self.policy, str(group)).inc()

    def release(self, groups: Iterable[int]) -> None:
        """Take blocks that have left the quarantine out of the count, by their groups."""
        for group in groups:
            _metrics()["quarantined"].labels(self.policy, str(group)).dec()

    def cool(self, num_tiers: int) -> None:
        """Say how many tiers are in cooldown now."""
        _metrics()["cooldown"].labels(self.policy).set(num_tiers)


@cache
def _metrics() -> Mapping[str, Any]:
    """Make the metrics of this process, at the first recovery."""
    counter, gauge = prometheus_client.Counter, prometheus_client.Gauge
    return {
        "recoveries": counter("kvbraid_recoveries", "Recoveries from failed loads", ["policy"]),
        "requests": counter(
            "kvbraid_recovered_requests", "Affected requests", ["policy", "action"]
        ),
        "recomputed": counter("kvbraid_recomputed_tokens", "Tokens computed again", ["policy"]),
        "unused": counter("kvbraid_unused_tokens", "Tokens loaded in vain", ["policy"]),
        "tainted": counter(
            "kvbraid_tainted_blocks", "Blocks forgotten as garbage", ["policy", "group"]
        ),
        "ignored": counter("kvbraid_ignored_failures", "Reports that did not count", ["reason"]),
        "quarantined": gauge(
            "kvbraid_quarantined_blocks",
            "Blocks that a load may still write",
            ["policy", "group"],
            multiprocess_mode="livesum",
        ),
        "cooldown": gauge(
            "kvbraid_tiers_in_cooldown",
            "Tiers not asked",
            ["policy"],
            multiprocess_mode="livesum",
        ),
    }
