"""What happens to pods, one log line each: states, connections, losses, refusals, registrations.

Invariant: nobody can fill the log. Of one kind of line about one rank a few are written per
period; the others are counted, and the count is written when the period is over. The lines go
through `logging` as every other line of the package does. The clock is passed in.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kvbraid.errors import one_line

EVENTS: Final[Mapping[str, int]] = {
    "registered": logging.INFO,
    "replaced": logging.INFO,
    "changed": logging.INFO,
    "removed": logging.INFO,
    "resting": logging.WARNING,
    "on_trial": logging.INFO,
    "load_unknown": logging.WARNING,
    "load_known": logging.INFO,
    "events_found": logging.INFO,
    "events_unknown": logging.WARNING,
    "connected": logging.INFO,
    "disconnected": logging.WARNING,
    "state": logging.INFO,
    "lost": logging.WARNING,
    "forgotten": logging.WARNING,
    "refused": logging.WARNING,
    "snapshot_refused": logging.WARNING,
    "snapshot_failed": logging.WARNING,
    "stray": logging.WARNING,
}
"""Every kind of line and its level; docs/operate.md says what each means."""

FIELDS: Final = "kvbraid_fields"
"""The attribute of a log record that has a line's parts by name."""

_BEGINS: Final = frozenset({"registered", "replaced", "state"})
"""With these a state begins, of a pod or of a rank."""

LINES: Final = 10
PERIOD_S: Final = 60.0
_LOGGER: Final = logging.getLogger("kvbraid.pods")


class Rank(NamedTuple):
    """Whom a line is about; `pod` is empty for messages of no registered pod."""

    pod: str
    dp_rank: int | None = None

    def __str__(self) -> str:
        if self.dp_rank is None:
            return f"pod {self.pod}" if self.pod else "no pod"
        return f"pod {self.pod} rank {self.dp_rank}"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The last warning about a rank in the log, and when it was, by the server's clock."""

    event: str
    text: str
    at_s: float


class _Key(NamedTuple):
    event: str
    rank: Rank
    detail: str


@dataclass(slots=True)
class _Window:
    """What was written and left out of one kind of line since `since`."""

    since: float
    written: int = 0
    left_out: int = 0


class Journal:
    """Writes log lines about pods, and counts those above the limit; any thread may call it.

    Args:
        clock: Returns the time in seconds; it never runs backwards.
        lines: How many lines of one kind about one rank are written per period.
        period_s: The length of a period in seconds; the first begins with the first line.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        lines: int = LINES,
        period_s: float = PERIOD_S,
    ) -> None:
        self._clock = clock
        self._lines = lines
        self._period_s = period_s
        self._lock = threading.Lock()
        self._windows: dict[_Key, _Window] = {}
        self._problems: dict[Rank, Problem] = {}
        self._state_since: dict[Rank, float] = {}

    def note(self, event: str, rank: Rank, text: str, *, detail: str = "") -> None:
        """Write a line, or count it.

        Args:
            event: A key of EVENTS.
            rank: Whom it is about.
            text: What happened; kept on one line.
            detail: Tells lines of one event apart that have limits of their own, such as the
                reason of a refusal.
        """
        key = _Key(event, rank, detail)
        with self._lock:
            now = self._clock()
            self._remember(event, rank, text, now)
            window = self._windows.get(key)
            ended = window if window is not None and self._is_over(window, now) else None
            if window is None or ended is not None:
                window = self._windows[key] = _Window(now)
            may_write = window.written < self._lines
            window.written += may_write
            window.left_out += not may_write
        if ended is not None:
            self._tell(key, ended)
        if may_write:
            self._write(key, one_line(text))

    def problem(self, rank: Rank) -> Problem | None:
        """Return the last warning about a rank, or else about its pod."""
        return self._problems.get(rank) or self._problems.get(Rank(rank.pod))

    def state_since(self, rank: Rank) -> float | None:
        """Return when a rank's state changed last, or else when its pod was registered."""
        since = self._state_since.get(rank)
        return self._state_since.get(Rank(rank.pod)) if since is None else since

    def _remember(self, event: str, rank: Rank, text: str, now: float) -> None:
        """Keep what pods show of themselves until they are removed, whatever is written."""
        if event == "removed":
            for kept in (self._problems, self._state_since):
                for known in [known for known in kept if known.pod == rank.pod]:
                    del kept[known]
        if event in _BEGINS:
            self._state_since[rank] = now
        elif EVENTS[event] >= logging.WARNING and rank.pod:
            self._problems[rank] = Problem(event=event, text=one_line(text), at_s=now)

    def tell_left_out(self, *, is_last: bool = False) -> None:
        """Write how many lines were left out in the periods that are over, or in all of them."""
        with self._lock:
            now = self._clock()
            over = {
                key: window
                for key, window in self._windows.items()
                if is_last or self._is_over(window, now)
            }
            for key in over:
                del self._windows[key]
        for key, window in over.items():
            self._tell(key, window)

    def _is_over(self, window: _Window, now: float) -> bool:
        return now - window.since >= self._period_s

    def _tell(self, key: _Key, window: _Window) -> None:
        if window.left_out:
            self._write(key, f"{window.left_out} more such lines", left_out=window.left_out)

    def _write(self, key: _Key, text: str, *, left_out: int = 0) -> None:
        known = {
            "event": key.event,
            "pod": key.rank.pod,
            "dp_rank": key.rank.dp_rank,
            "detail": key.detail,
            "left_out": left_out or None,
        }
        fields = {name: value for name, value in known.items() if value not in ("", None)}
        what = f"{key.event} {key.detail}".strip()
        _LOGGER.log(EVENTS[key.event], "%s: %s: %s", key.rank, what, text, extra={FIELDS: fields})
