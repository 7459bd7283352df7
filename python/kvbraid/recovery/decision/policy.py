"""How an engine reacts to a failed load: the policy, and how often tiers are asked again.

Time comes in as a number, `now`, in whatever unit the engine counts: milliseconds or steps. It
never goes back. Nothing here reads a clock.
"""

from enum import StrEnum
from typing import Final

from kvbraid.reading import POSITIVE, Rule, check, whole

_DURATION: Final = Rule(lambda value: value >= 0, "at least 0")


class Policy(StrEnum):
    """What happens to the requests that a failed load affects."""

    RECOMPUTE = "recompute"
    """They compute again what was lost."""
    RETRY = "retry"
    """They ask a tier again while their budget lasts, and then compute."""
    FAIL = "fail"
    """They end with an error."""


class RetryBudget:
    """How often requests may ask tiers again, and for how long after their first failure.

    Bounded by the requests that are alive: tell it who ends.

    Args:
        retries: How often each request may ask again.
        deadline: How long after its first failure; None: without limit.

    Raises:
        InvalidValueError: One of them is negative, or no number.
    """

    def __init__(self, *, retries: int, deadline: float | None = None) -> None:
        check("retries", retries, whole())
        check("deadline", deadline, _DURATION.or_none())
        self._retries: Final = retries
        self._deadline: Final = deadline
        self._failures: Final[dict[int, tuple[float, int]]] = {}

    def failed(self, request: int, now: float) -> bool:
        """Note a failure; return whether the request may ask a tier again.

        Once False, it stays False for this request.
        """
        first, number = self._failures.get(request, (now, 0))
        self._failures[request] = (first, number + 1)
        return self.allows(request, now)

    def allows(self, request: int, now: float) -> bool:
        """Return whether a request may ask tiers now: one that never failed always may."""
        if request not in self._failures:
            return True
        first, number = self._failures[request]
        in_time = self._deadline is None or now - first <= self._deadline
        return number <= self._retries and in_time

    def ended(self, request: int) -> None:
        """Forget a request, known or not."""
        self._failures.pop(request, None)

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._failures)


class Cooldowns:
    """Which tiers are not asked for a while, because loads from them failed again and again.

    After a cooldown a tier is asked again. If that fails too, the next cooldown begins at once:
    only a success clears it.

    Args:
        failures: Failures in a row that begin a cooldown.
        duration: How long it lasts.
        max_tiers: How many tiers to remember; the one whose last failure is oldest is forgotten.

    Raises:
        InvalidValueError: `failures` or `max_tiers` is not positive, or `duration` is negative.
    """

    def __init__(self, *, failures: int, duration: float, max_tiers: int = 256) -> None:
        check("failures", failures, POSITIVE)
        check("duration", duration, _DURATION)
        check("max_tiers", max_tiers, POSITIVE)
        self._num_failures: Final = failures
        self._duration: Final = duration
        self._max_tiers: Final = max_tiers
        self._tiers: Final[dict[str, tuple[int, float]]] = {}

    def failed(self, tier: str, now: float) -> bool:
        """Note that a load from a tier failed; return whether the tier is in cooldown."""
        number, _ = self._tiers.pop(tier, (0, now))
        self._tiers[tier] = (min(number + 1, self._num_failures), now)
        if len(self._tiers) > self._max_tiers:
            del self._tiers[next(iter(self._tiers))]
        return self.is_cooling(tier, now)

    def succeeded(self, tier: str) -> None:
        """Note that a load from a tier succeeded: its failures in a row are over."""
        self._tiers.pop(tier, None)

    def is_cooling(self, tier: str, now: float) -> bool:
        """Return whether a tier is not to be asked now."""
        number, last = self._tiers.get(tier, (0, now))
        return number == self._num_failures and now - last < self._duration

    def cooling(self, now: float) -> tuple[str, ...]:
        """Return the tiers in cooldown, by name."""
        return tuple(sorted(tier for tier in self._tiers if self.is_cooling(tier, now)))
