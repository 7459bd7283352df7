"""What is said about a rank besides its cache and its bookings, and who may be chosen.

The table `FILTERS` is all there is: each row leaves ranks out. A row that must be kept is kept
even if nobody is left. Any other is lifted where it would leave nobody, and the decision says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvbraid.ids import PodState


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an operator and the engine say about a rank.

    `is_ready` is the result of health checks, `drains` says that nothing new is to be sent.
    Above `max_running` requests in flight a rank is full. `loras` are the adapters that are
    loaded; None: unknown. `usage` is the share of the pool in use (`vllm:kv_cache_usage_perc`,
    `sglang:token_usage`), 0 to 1.
    """

    is_ready: bool = True
    drains: bool = False
    max_running: int | None = None
    loras: frozenset[str] | None = None
    usage: float = 0.0


class Candidate(NamedTuple):
    """One rank before the choice."""

    standing: Standing
    state: PodState
    running: int
    overdue: float


class Filter(NamedTuple):
    """Why ranks are left out, which stay, and whether this is lifted where nobody is left."""

    name: str
    keeps: Callable[["Candidate", "Asked"], bool]
    can_lift: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the filters know of a request: its adapter, and from when on a rank seems stuck."""

    lora: str | None = None
    stuck_s: float = field(default=30.0)


FILTERS: Final = (
    Filter("not_ready", lambda c, _: c.standing.is_ready, can_lift=False),
    Filter("draining", lambda c, _: not c.standing.drains, can_lift=False),
    Filter("stuck", lambda c, asked: c.overdue <= asked.stuck_s, can_lift=True),
    Filter("stale", lambda c, _: c.state is not PodState.STALE, can_lift=True),
    Filter(
        "full",
        lambda c, _: c.standing.max_running is None or c.running < c.standing.max_running,
        can_lift=True,
    ),
    Filter(
        "lora_not_loaded",
        lambda c, asked: (
            not asked.lora or c.standing.loras is None or asked.lora in c.standing.loras
        ),
        can_lift=True,
    ),
)
"""In the order in which they are applied: what is lifted last matters most."""
