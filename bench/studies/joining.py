"""Does a pod that joins a busy fleet need a share of the requests until its cache has filled?

Our rule sends a request to an empty pod when its wait is shorter by more than the prefill that
another one saves, and by chance among equals: nobody sees to it that the pod fills. Here the last
of four pods joins after a quarter of the requests. Without a share, the rule alone decides. With
one, that part of the requests goes there whatever it costs, until the pod has computed as many
tokens as its pool has room for. A pod that is there from the start bounds what any share could
gain.

`make study ONLY=joining` plays every cell with three seeds, seed by seed, and goes on where it was
stopped. Agents get five seeds more, because two runs of them differ most. Texts have an eighth of
their usual length (`bench/router/cells.py`). A load is that of all four pods, so three of them
have a third more. A ratio divides by the geometric mean of two runs without a share, whose ties
chance decides differently.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import product
from math import inf, log, sqrt
from statistics import geometric_mean, mean, stdev
from typing import ClassVar, Final, NamedTuple

from kvbraid.ids import PodId
from kvbraid.policy import CostRule, Decision, FleetView
from kvbraid.policy.view import RankId
from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, play
from kvbraid.sim.routing.pod import SimulatedFleet

from bench.router.cells import NUM_PODS, RoutingCell, Size, found_rate, ready
from bench.studies.policies import Row, RowStudy, Study, label_of_pair

VERSION: Final = 1
SEEDS: Final = range(1, 4)
FURTHER: Final = range(4, 9)
"""Seeds of agents alone."""

SIZE: Final = Size(num_requests=960, sessions=0.5)
JOINS_AT: Final = 240
EARLY: Final = 120
"""So many requests after it has joined are also shown alone."""

NEW: Final[RankId] = (PodId(f"pod-{NUM_PODS - 1}"), 0)
CELLS: Final = tuple(
    (RoutingCell(model, work, load, ()), pool)
    for pool, model, work, load in product(
        (1.0, 0.25), ("full", "states"), ("agents", "shared", "chat", "mixed"), (0.5, 0.7)
    )
)
"""Each with the share of the working set that the pools of four pods hold."""

PAIRS: Final = (
    *product(SEEDS, CELLS),
    *((seed, cell) for seed, cell in product(FURTHER, CELLS) if cell[0].work == "agents"),
)


class Joins(NamedTuple):
    """When the last pod joins, the share of the requests that it gets, and how ties fall."""

    share: float = 0.0
    at: int = JOINS_AT
    draws: int = 0


WITHOUT: Final = ("none", "none, other ties")
SHARES: Final = {
    WITHOUT[0]: Joins(),
    WITHOUT[1]: Joins(draws=1),
    "10 %": Joins(share=0.1),
    "25 %": Joins(share=0.25),
    "50 %": Joins(share=0.5),
    "there from the start": Joins(at=0),
}


class Joining(CostRule):
    """Our rule in a fleet whose last pod joins late. `computed` are the tokens of its
    prefills, and `room` those that its pool can hold."""

    name: ClassVar[str] = "joining"

    def __init__(self, fleet: SimulatedFleet, joins: Joins) -> None:
        super().__init__()
        groups = fleet.model.topology.groups
        self.room = (fleet.num_blocks - 1) * groups[0].block_size // len(groups)
        self._joins = joins
        self._num_asked = 0
        self.computed = 0

    def costs(self, view: FleetView) -> list[float]:
        """Return the costs: the pod is not there yet, or is the only one to choose, or neither."""
        for _ in range(self._joins.draws):
            view.chance.random()
        costs = super().costs(view)
        new = list(view.ranks).index(NEW)
        self._num_asked += 1
        if self._num_asked <= self._joins.at:
            costs[new] = inf
        elif self._fills() and view.chance.random() < self._joins.share:
            costs = [cost if place == new else inf for place, cost in enumerate(costs)]
        return costs

    def chosen(self, decision: Decision) -> None:
        """Note what the pod is going to compute."""
        if decision.rank == NEW:
            self.computed += decision.view.tokens - decision.resumable

    def _fills(self) -> bool:
        return self._joins.share > 0 and self.computed < self.room


def compute(cell: RoutingCell, pool: float, seed: int) -> Row:
    """Play a cell with one seed, with each share."""
    asks, fleet = ready(cell.model, cell.work, seed, pool, SIZE)
    arrivals = OpenLoop(found_rate(cell, seed))
    ttft_s: dict[str, list[float]] = {}
    sent: dict[str, list[float]] = {}
    for name, joins in SHARES.items():
        rule = RoutingRule(name, partial(Joining, fleet, joins))
        after = play(asks, fleet, arrivals, rule, seed=seed)[JOINS_AT:]
        parts = after, after[:EARLY], after[EARLY:]
        ttft_s[name] = [round(mean(each.ttft_s for each in part), 5) for part in parts[:2]]
        sent[name] = [
            round(mean(each.pod == NUM_PODS - 1 for each in part), 4) for part in parts[1:]
        ]
    return {
        "version": VERSION,
        "cell": f"{cell} {pool}",
        "seed": seed,
        "ttft_s": ttft_s,
        "sent": sent,
    }


def run(study: Study) -> int:
    """Compute what is missing, then write the page; return the exit status."""
    calls = {
        f"{cell} {pool}, seed {seed}": partial(compute, cell, pool, seed)
        for seed, (cell, pool) in PAIRS
    }
    return RowStudy(
        name="joining", version=VERSION, calls=calls, label_of=label_of_pair, page=page
    ).run(study)


def page(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# Whether a pod that joins needs a share of the requests",
        "",
        "Written by `make study ONLY=joining`; do not edit by hand. The last of four pods joins",
        f"after {JOINS_AT} of {SIZE.num_requests} requests. The mean time until the first token",
        "of those after that, over that of our rule without a share: the geometric mean over the",
        "pairs of a cell and a seed, its standard error, the worst cell, and the geometric mean",
        f"of the first {EARLY} alone. Then, how many of these first ones and of all others the",
        "pod got; a quarter is its equal part.",
        "",
        f"Played so far: {len(rows)} of {len(PAIRS)} pairs.",
        "",
        *_table([row for row in rows if row["seed"] in SEEDS]),
        "",
        f"Agents alone, with seeds {SEEDS[0]} to {FURTHER[-1]}:",
        "",
        *_table([row for row in rows if "agents" in row["cell"]]),
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    return [
        f"| share | geometric mean | standard error | worst cell | first {EARLY} "
        "| got of these, % | got later, % |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(_line(rows, name) for name in SHARES),
    ]


def _line(rows: Sequence[Row], name: str) -> str:
    ratios = [row["ttft_s"][name][0] / _without(row, 0) for row in rows]
    cells: dict[str, list[float]] = defaultdict(list)
    for row, ratio in zip(rows, ratios, strict=True):
        cells[row["cell"]].append(ratio)
    error = stdev(map(log, ratios)) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    early = geometric_mean(row["ttft_s"][name][1] / _without(row, 1) for row in rows)
    soon, later = (100 * mean(row["sent"][name][part] for row in rows) for part in (0, 1))
    worst = max(map(geometric_mean, cells.values()))
    return (
        f"| {name} | {geometric_mean(ratios):.3f} | {error:.3f} | {worst:.2f} | {early:.3f} "
        f"| {soon:.1f} | {later:.1f} |"
    )


def _without(row: Row, part: int) -> float:
    return geometric_mean(row["ttft_s"][name][part] for name in WITHOUT)
