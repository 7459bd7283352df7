"""What is said about a rank besides its cache and its bookings, and who may be chosen.

The table `FILTERS` is all there is: each row leaves ranks out. A row that must be kept is kept
even if nobody is left. Any other is lifted where it would leave nobody, and the decision says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.ids import PodState


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an operator and the engine say about a rank.

    `is_ready` is the result of health checks, `drains` says that nothing new is to be sent.
    Above `max_running` requests in flight a rank is full. `loras` are the adapters that are
    loaded; None: unknown. `usage` is the share of the pool in use, 0 to 1.
    """

    is_ready: bool = True
    drains: bool = False
    max_running: int | None = None
    loras: frozenset[str] | None = None
    usage: float = 0.0


class Candidate(NamedTuple):
    """One rank before the choice, about which something is to be said."""

    standing: Standing
    state: PodState
    running: int
    is_stuck: bool


class Filter(NamedTuple):
    """Why ranks are left out, which stay (for an adapter), and whether it may be lifted."""

    name: str
    keeps: Callable[[Candidate, str | None], bool]
    can_lift: bool


def _has_room(candidate: Candidate, _: str | None) -> bool:
    most = candidate.standing.max_running
    return most is None or candidate.running < most


def _has_adapter(candidate: Candidate, lora: str | None) -> bool:
    loaded = candidate.standing.loras
    return lora is None or loaded is None or lora in loaded


FILTERS: Final = (
    Filter("not_ready", lambda c, _: c.standing.is_ready, can_lift=False),
    Filter("draining", lambda c, _: not c.standing.drains, can_lift=False),
    Filter("stuck", lambda c, _: not c.is_stuck, can_lift=True),
    Filter("stale", lambda c, _: c.state is not PodState.STALE, can_lift=True),
    Filter("full", _has_room, can_lift=True),
    Filter("lora_not_loaded", _has_adapter, can_lift=True),
)
"""In the order in which they are applied."""


class Filtered(NamedTuple):
    """The rows that are left, which filters were lifted, and how many rows others left out."""

    rows: list[int]
    lifted: tuple[str, ...]
    left_out: dict[str, int]


def filtered(rows: list[int], said: Mapping[int, Candidate], lora: str | None) -> Filtered:
    """Apply the filters to rows; those of which nothing is said pass all of them."""
    lifted, left_out = [], {}
    for name, keeps, can_lift in FILTERS:
        out = {row for row, candidate in said.items() if not keeps(candidate, lora)}
        kept = [row for row in rows if row not in out] if out else rows
        if kept or not can_lift:
            if len(kept) < len(rows):
                left_out[name] = len(rows) - len(kept)
            rows = kept
        elif rows:
            lifted.append(name)
    return Filtered(rows, tuple(lifted), left_out)
