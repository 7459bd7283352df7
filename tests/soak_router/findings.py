"""What a soak has counted, and what it found to be wrong."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import linear_regression
from typing import Final

SHOWN: Final = 50
"""Wrong things that are kept with their words; the others are counted."""
JUDGED_S: Final = 600.0
"""A slope over less time after the warm-up is printed, and not judged."""
MOST_GROWTH: Final = 16.0
"""MiB per hour by which the gateway may grow after its warm-up."""


@dataclass
class Findings:
    """The outcomes of requests, acts and checks by name, and samples of the gateway.

    `exact_s` are the times until every pod was exact again, `memory` pairs of seconds since the
    start and MiB.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    predictions: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    words: list[str] = field(default_factory=list)
    exact_s: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    rounds: int = 0

    def blame(self, what: str, more: str) -> None:
        """Note that something is wrong."""
        self.wrong[what] += 1
        if len(self.words) < SHOWN:
            self.words.append(f"{what}: {more}")

    def slope(self, warm_s: float) -> float:
        """Return the growth of memory after the warm-up, in MiB per hour."""
        kept = [(at, mib) for at, mib in self.memory if at >= warm_s]
        if len(kept) < 3:
            return 0.0
        return linear_regression(*zip(*kept, strict=True)).slope * 3600

    def judge_memory(self, warm_s: float) -> None:
        """Blame a gateway that grows."""
        is_long = bool(self.memory) and self.memory[-1][0] - warm_s >= JUDGED_S
        if is_long and self.slope(warm_s) > MOST_GROWTH:
            self.blame("memory", f"{self.slope(warm_s):.1f} MiB/h; limit {MOST_GROWTH} MiB/h")

    def line(self, warm_s: float) -> dict[str, object]:
        """Return what the last line of a soak says."""
        return {
            "rounds": self.rounds,
            "requests": self.outcomes.total(),
            "outcomes": dict(sorted(self.outcomes.items())),
            "acts": dict(sorted(self.acts.items())),
            "predictions": dict(sorted(self.predictions.items())),
            "exact_s_max": round(max(self.exact_s, default=0.0), 3),
            "exact_s_mean": round(sum(self.exact_s) / max(1, len(self.exact_s)), 3),
            "rss_mib": [round(mib, 1) for _, mib in (self.memory[:1] + self.memory[-1:])],
            "rss_mib_per_hour": round(self.slope(warm_s), 2),
            "wrong": dict(self.wrong),
        }
