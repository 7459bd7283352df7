"""How long to wait before the next attempt: twice as long each time, up to a limit.

This module reads no clock: its caller passes the time.
"""

from typing import Final

_SHORTEST_S: Final = 0.05


class Backoff:
    """The pauses between attempts at one thing.

    Args:
        longest_s: The longest pause.
        calm_s: After this long without a failure, the next pause is the shortest again.
    """

    def __init__(self, longest_s: float, *, calm_s: float) -> None:
        self._longest_s = longest_s
        self._calm_s = calm_s
        self._pause_s = 0.0
        self._over_at: float | None = None  # When the last pause was over.

    def pause_s(self, now: float) -> float:
        """Return how long to wait after an attempt that failed now; `now`: monotonic seconds."""
        is_calm = self._over_at is None or now - self._over_at >= self._calm_s
        self._pause_s = min(_SHORTEST_S if is_calm else 2 * self._pause_s, self._longest_s)
        self._over_at = now + self._pause_s
        return self._pause_s
