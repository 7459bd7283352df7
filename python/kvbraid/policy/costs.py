"""The rule of kvbraid: seconds until the first token, and the seconds that this costs others.

    C  =  w + T(n, h) + loading + decoding               until this request's first token
       -  P (T(n, h) - T(n, f))                          what is present may become resumable
       +  X b/(1-b) (T(n, f) - T0)                       work for what is not present delays others
       +  Y r/(1-b) T(n, f) (w + T(n, h))                the same, for the queue of this very rank

n: tokens, h: resumable, f: present, both with what is in flight; w: the rank's wait; T:
`Seconds.prefill`, T0 its fixed part; b: the share of ranks that are busy; r: arrivals a second and
rank. In a queue, a job of T seconds delays others by about T r (w + T) / (1 - b). A router can
send those elsewhere, so both coefficients are below 1. What is not present also drives something
out, whose loss is work again. Both are charged to tokens that are not *present*: charged to those
that are not resumable, they would scatter prompts of which only a state is missing.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import ClassVar, Final, NamedTuple

from kvbraid.policy.view import FleetView
from kvbraid.reading import Rule, check

_MOST: Final = 1e12
"""With the largest `Seconds`, such a coefficient still gives finite costs."""
_COEFFICIENT: Final = Rule(lambda value: 0 <= value <= _MOST, f"a number from 0 to {_MOST:g}")
_SHARE: Final = Rule(lambda value: 0 <= value <= 1, "a number from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The coefficients of the rule: `potential` is P, `displacement` X, `queue` Y.

    Candidates whose cost is at most `slack` (a share) above the least are equal.

    Raises:
        InvalidValueError: One is below 0 or above 1e12, or the potential is above 1.
    """

    potential: float = 0.5
    displacement: float = 0.5
    queue: float = 0.1
    slack: float = 0.02

    def __post_init__(self) -> None:
        """Refuse coefficients with which costs would be no numbers."""
        for field, value in zip(fields(self), astuple(self), strict=True):
            check(field.name, value, _SHARE if field.name == "potential" else _COEFFICIENT)


class Terms(NamedTuple):
    """The parts of one candidate's cost, in seconds; their sum is the cost."""

    wait: float
    others: float
    prefill: float
    loading: float
    decoding: float
    potential: float
    displacement: float
    queue: float


class CostRule:
    """The rule with its options; it keeps nothing between requests."""

    name: ClassVar[str] = "cost"

    def __init__(self, options: CostOptions | None = None) -> None:
        self.options = options or CostOptions()
        self.slack = self.options.slack

    def costs(self, view: FleetView) -> list[float]:
        """Return the seconds that each candidate costs: the sums of its terms."""
        options, seconds, tokens = self.options, view.seconds, view.tokens
        displaces, queues = self._prices(view)
        lines: dict[tuple[int, int], tuple[float, float]] = {}
        both = zip(view.resumable, view.present, strict=True)
        costs = []  # Most ranks hold the same, and a cost is a linear function of the wait.
        for held, wait in zip(both, view.wait, strict=True):
            line = lines.get(held)
            if line is None:
                prefill = seconds.prefill(tokens, held[0])
                missing = seconds.prefill(tokens, held[1])
                work = prefill - options.potential * (prefill - missing)
                displaced = displaces * (missing - seconds.fixed)
                slope = queues * missing
                line = lines[held] = (work + displaced + slope * prefill, 1 + slope)
            costs.append(line[0] + line[1] * wait)
        if not seconds.per_loaded_token and not seconds.per_decoded_token:
            return costs
        extra = zip(costs, view.loaded, view.resumable, view.running, strict=True)
        return [
            cost + seconds.per_loaded_token * loaded + seconds.decoding(tokens, h, running)
            for cost, loaded, h, running in extra
        ]

    def _prices(self, view: FleetView) -> tuple[float, float]:
        """Return what a second of work costs all others, and what it costs this queue."""
        idle = 1 - view.busy
        return self.options.displacement * view.busy / idle, self.options.queue * view.rate / idle

    def terms(self, view: FleetView, places: Iterable[int] | None = None) -> list[Terms]:
        """Return the terms of each candidate's cost, or of those at some places."""
        options, seconds, tokens = self.options, view.seconds, view.tokens
        displaces, queues = self._prices(view)
        rows = []
        for place in range(len(view)) if places is None else places:
            wait, resumable, present = view.wait[place], view.resumable[place], view.present[place]
            prefill = seconds.prefill(tokens, resumable)
            missing = seconds.prefill(tokens, present)  # Work for what is not even present.
            rows.append(
                Terms(
                    wait=wait - view.others[place],
                    others=view.others[place],
                    prefill=prefill,
                    loading=seconds.per_loaded_token * view.loaded[place],
                    decoding=seconds.decoding(tokens, resumable, view.running[place]),
                    potential=-options.potential * (prefill - missing),
                    displacement=displaces * (missing - seconds.fixed),
                    queue=queues * missing * (wait + prefill),
                )
            )
        return rows
