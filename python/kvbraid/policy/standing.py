"""What is said about a rank besides its cache and its bookings, and who may be chosen.

The table `FILTERS` is all there is: each row leaves ranks out. A row that must be kept is kept
even if nobody is left. Any other is lifted where it would leave nobody, and the decision says so.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.ids import PodId, PodState
from kvbraid.policy.engine_load import Readings
from kvbraid.policy.view import RankId


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


class Standings:
    """What is said about ranks, and about pods for those of their ranks of which nothing is said.

    Payloads may name ranks that nobody has configured: these stand as their pod does.
    """

    def __init__(self) -> None:
        self._said: dict[RankId | PodId, Standing] = {}
        self._ranks: Sequence[RankId] | None = None  # Those that were last asked about.
        self._rows: Mapping[int, Standing] = {}

    def note(self, whom: RankId | PodId, standing: Standing) -> None:
        """Note what is said about a rank, or about a pod."""
        self._said[whom] = standing
        self._ranks = None

    def forget(self, whom: RankId | PodId) -> None:
        """Forget what was said about it."""
        self._said.pop(whom, None)
        self._ranks = None

    def of(self, ranks: Sequence[RankId]) -> Mapping[int, Standing]:
        """Return what is said about the rows of an answer, whose ranks never change in place."""
        if ranks is not self._ranks:  # An index gives the same ones until a pod comes or goes.
            of = self._said.get
            both = enumerate(ranks if self._said else ())
            rows = {row: it for row, rank in both if (it := of(rank) or of(rank[0])) is not None}
            self._ranks, self._rows = ranks, rows
        return self._rows


class Said(NamedTuple):
    """What there is to say about the rows of an answer, before one is chosen.

    `standings` has the rows that are not as usual, `states` and `running` are columns of all rows,
    `stuck` are rows. `readings` has what engines say, also of adapters.
    """

    standings: Mapping[int, Standing]
    states: Sequence[PodState]
    running: Sequence[int]
    stuck: Set[int]
    readings: Readings

    @property
    def is_nothing(self) -> bool:
        """Whether only the adapter of a request can leave a row out."""
        return not self.standings and not self.stuck and PodState.STALE not in self.states


class Filter(NamedTuple):
    """Why rows are left out, which ones (for an adapter), and whether it may be lifted."""

    name: str
    leaves_out: Callable[[Said, str | None], Set[int]]
    can_lift: bool


def _not_ready(said: Said, _: str | None) -> Set[int]:
    return {row for row, standing in said.standings.items() if not standing.is_ready}


def _draining(said: Said, _: str | None) -> Set[int]:
    return {row for row, standing in said.standings.items() if standing.drains}


def _stuck(said: Said, _: str | None) -> Set[int]:
    return said.stuck


def _stale(said: Said, _: str | None) -> Set[int]:
    return {row for row, state in enumerate(said.states) if state is PodState.STALE}


def _full(said: Said, _: str | None) -> Set[int]:
    running = said.running
    return {
        row
        for row, standing in said.standings.items()
        if standing.max_running is not None and running[row] >= standing.max_running
    }


def _without_adapter(said: Said, lora: str | None) -> Set[int]:
    if lora is None:
        return frozenset()
    loaded = {row: standing.loras for row, standing in said.standings.items()}
    for row, reading in said.readings.items():
        if reading.load.loras is not None:
            loaded[row] = reading.load.loras
    return {row for row, loras in loaded.items() if loras is not None and lora not in loras}


FILTERS: Final = (
    Filter("not_ready", _not_ready, can_lift=False),
    Filter("draining", _draining, can_lift=False),
    Filter("stuck", _stuck, can_lift=True),
    Filter("stale", _stale, can_lift=True),
    Filter("full", _full, can_lift=True),
    Filter("lora_not_loaded", _without_adapter, can_lift=True),
)
"""In the order in which they are applied."""


class Filtered(NamedTuple):
    """The rows that are left, which filters were lifted, and how many rows others left out."""

    rows: list[int]
    lifted: tuple[str, ...]
    left_out: dict[str, int]


def filtered(rows: list[int], said: Said, lora: str | None) -> Filtered:
    """Apply the filters to rows."""
    if said.is_nothing and lora is None:
        return Filtered(rows, (), {})
    lifted, left_out = [], {}
    for name, leaves_out, can_lift in FILTERS:
        out = leaves_out(said, lora)
        kept = [row for row in rows if row not in out] if out else rows
        if kept or not can_lift:
            if len(kept) < len(rows):
                left_out[name] = len(rows) - len(kept)
            rows = kept
        elif rows:
            lifted.append(name)
    return Filtered(rows, tuple(lifted), left_out)
