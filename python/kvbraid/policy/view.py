"""What is known about the candidates when one of them is chosen: a column for each number.

A policy turns a view into a cost for each candidate, and knows nothing else. So rules can be
compared on equal terms, and a simulation runs the very rule that a gateway runs.
"""

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final, Protocol, TypeAlias

import msgspec

from kvbraid.fleet import Request
from kvbraid.ids import PodId
from kvbraid.policy.seconds import Seconds

RankId: TypeAlias = tuple[PodId, int]
"""A pod, and the data-parallel rank of its engine."""


class RankNames(Protocol):
    """Some ranks, however they are named: pods, each with all its ranks, do not list them."""

    def __contains__(self, rank: object, /) -> bool:
        """Return whether a rank is one of them."""
        ...

    def __len__(self) -> int:
        """Return how many names there are."""
        ...


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its candidates, whose columns are in the order of `ranks`.

    `resumable` and `present` are tokens of the prompt that the rank will have when the request
    gets there: with what is in flight, unless the router was told to look at events alone.
    `loaded` are those of the resumable tokens that come from a slower tier than the GPU.

    `wait` is in seconds, and `others` is the part of it that others than this router have sent.
    `running` are requests in flight, and `running_tokens` the tokens of
    their prompts; `waiting` are those of them without a first token, and `waiting_tokens` what
    their prefills have to compute. `usage` is the share of the pool in use, as the engine reports
    it; 0 if it reports none.

    `busy` is the share of ranks with work over the last hundred arrivals, below 1; `rate` the
    arrivals a second and rank. Chance is part of the view, so that a run can be repeated.
    """

    request: Request
    tokens: int
    ranks: Sequence[RankId]
    resumable: Sequence[int]
    present: Sequence[int]
    loaded: Sequence[int]
    wait: Sequence[float]
    others: Sequence[float]
    running: Sequence[int]
    running_tokens: Sequence[int]
    waiting: Sequence[int]
    waiting_tokens: Sequence[int]
    usage: Sequence[float]
    busy: float
    rate: float
    seconds: Seconds
    chance: Random

    def __len__(self) -> int:
        return len(self.ranks)

    def of(self, rows: Sequence[int]) -> "FleetView":
        """Return the view of some of the candidates."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        chosen = {name: [column[row] for row in rows] for name, column in columns.items()}
        return msgspec.structs.replace(self, **chosen)


_COLUMNS: Final = (
    "ranks", "resumable", "present", "loaded", "wait", "others", "running", "running_tokens",
    "waiting", "waiting_tokens", "usage",
)  # fmt: skip


class RoutingPolicy(Protocol):
    """A rule: what it costs to send the request of a view to each of its candidates.

    The candidate of the least cost is chosen. Costs may be of any unit and sign.
    """

    name: ClassVar[str]

    @property
    def slack(self) -> float:
        """By which share a cost may be above the least and count as equal. Chance decides then."""
        ...

    def costs(self, view: FleetView) -> list[float]:
        """Return a cost for each candidate. May draw from `view.chance`; changes only itself."""
        ...
