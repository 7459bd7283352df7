"""What counts for one model now: its coefficients, and the recent load of its ranks.

Invariant: means are over the last arrivals, and one more changes them in constant time.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.policy.decision import Origin, origin_of
from kvbraid.policy.fitting import Fitted
from kvbraid.policy.seconds import Seconds

BUSIEST: Final = 0.95
"""The largest share of busy ranks that counts: the price of work is 1/(1 - share)."""

LONGEST_GAP_S: Final = 60.0
"""A longer pause between two requests counts as one of this length: a night is no arrival rate."""

SHORTEST_GAP_S: Final = 1e-6
"""A shorter mean gap counts as one of this length: requests of one moment have a finite rate."""

DEFAULT_SECONDS: Final = Seconds()


@dataclass(slots=True)
class RecentLoad:
    """The load of one model's ranks, and what a prefill takes, averaged over the last arrivals."""

    busy: float = 0.0
    gap_s: float = 0.0
    prefill_s: float = 0.0
    last: float | None = None
    count: int = 0

    def arrive(self, now: float, busy: float, most: int) -> None:
        """Note a request that finds a share of the ranks busy; means are over `most` of them."""
        self.count = min(self.count + 1, most)
        self.busy += (busy - self.busy) / self.count
        if self.last is not None:
            gap = min(max(now - self.last, 0.0), LONGEST_GAP_S)
            self.gap_s += (gap - self.gap_s) / max(self.count - 1, 1)
        self.last = now if self.last is None else max(now, self.last)

    def book(self, seconds: float) -> None:
        """Note what the prefill of the last request takes."""
        self.prefill_s += (seconds - self.prefill_s) / max(self.count, 1)

    @property
    def share_busy(self) -> float:
        """The share of the ranks that were busy, as far as it counts."""
        return min(self.busy, BUSIEST)

    def rate(self, num_ranks: int) -> float:
        """Return the requests per second and rank; 0 before the second one."""
        return 1 / (max(self.gap_s, SHORTEST_GAP_S) * num_ranks) if self.gap_s else 0.0


class InUse(NamedTuple):
    """What counts for one model now: coefficients, and how much a second of work costs others.

    `given` is None where the defaults of `Seconds` count; `fit` is None where nothing is fitted,
    and `num_kept` counts its samples, also those that are not enough yet. `busy` is the share of
    the ranks that were busy when the last requests arrived.
    """

    given: Seconds | None
    fit: Fitted | None
    num_kept: int
    busy: float

    @property
    def seconds(self) -> Seconds:
        """The coefficients that count."""
        return self.fit.seconds if self.fit is not None else self.given or DEFAULT_SECONDS

    @property
    def origin(self) -> Origin:
        """Whence they come."""
        return origin_of(self.fit, is_given=self.given is not None)
