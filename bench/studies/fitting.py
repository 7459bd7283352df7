"""What is it worth that a router finds out what a prefill takes, if what it was given is wrong?

Our rule plays with the right coefficients, and with all of them wrong by the same factor: as they
were given, and fitted from there (`kvbraid.policy.fitting`). Simulated prefills take what their
formula says, so a fit is exact as soon as it is used; how it bears noise and lies is a matter for
its tests. The first quarter of the requests is not counted, and most of it has no fit yet.

`make study ONLY=fitting` plays the cells of `bench/router/cells.py` with six seeds, seed by seed,
and goes on where it was stopped. A ratio divides by the geometric mean of two runs with the right
coefficients, whose ties chance decides differently.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import log, sqrt
from statistics import geometric_mean, stdev
from typing import Final

from kvbraid.policy import Seconds
from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, simulate

from bench.router.cells import AGAIN, CELLS, OURS, RoutingCell, found_rate, ready
from bench.studies.policies import Row, RowStudy, Study, label_of_pair

VERSION: Final = 1
SEEDS: Final = range(1, 7)
RIGHT: Final = ("right", "right, other ties")
FACTORS: Final = {"a tenth": 1 / 10, "a third": 1 / 3, "right": 1.0, "three times": 3.0}
FITTED: Final = {f"{name}, fitted": factor for name, factor in FACTORS.items()}
GIVEN: Final = {name: factor for name, factor in FACTORS.items() if name != RIGHT[0]}
NAMES: Final = (*RIGHT, *GIVEN, *FITTED)


def scaled(seconds: Seconds, factor: float) -> Seconds:
    """Return the coefficients of a prefill, all of them so many times what they are."""
    names = ("fixed", "per_token", "per_pair")
    return replace(seconds, **{name: factor * getattr(seconds, name) for name in names})


def rules(seconds: Seconds) -> list[RoutingRule]:
    """Return what is compared; `seconds` are the right ones."""
    return [
        replace(OURS, name=RIGHT[0]),
        replace(AGAIN, name=RIGHT[1]),
        *(replace(OURS, name=n, seconds=scaled(seconds, by)) for n, by in GIVEN.items()),
        *(
            replace(OURS, name=n, seconds=scaled(seconds, by), fits=True)
            for n, by in FITTED.items()
        ),
    ]


def compute(cell: RoutingCell, seed: int) -> Row:
    """Play a cell with one seed, with each kind of coefficients."""
    asks, fleet = ready(cell.model, cell.work, seed)
    arrivals = OpenLoop(found_rate(cell, seed))
    means = {
        rule.name: simulate(asks, fleet, arrivals, rule, seed=seed).ttft_mean_s
        for rule in rules(fleet.pace.prefill)
    }
    return {
        "version": VERSION,
        "cell": str(cell),
        "seed": seed,
        "ttft_s": {name: round(mean, 5) for name, mean in means.items()},
    }


def run(study: Study) -> int:
    """Compute what is missing, then write the page; return the exit status."""
    calls = {
        f"{cell}, seed {seed}": partial(compute, cell, seed)
        for seed, cell in product(SEEDS, CELLS)
    }
    return RowStudy(
        name="fitting", version=VERSION, calls=calls, label_of=label_of_pair, page=page
    ).run(study)


def page(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# What it is worth to fit the coefficients of a prefill",
        "",
        "Written by `make study ONLY=fitting`; do not edit by hand. The mean time until the first",
        "token, over that with the right coefficients: the geometric mean over the pairs of a",
        "cell and a seed, its standard error, and the worst cell. The coefficients that the",
        "router was given are so many times the right ones; if they are fitted, it is from there.",
        "",
        f"Played so far: {len(rows)} of {len(SEEDS) * len(CELLS)} pairs.",
        "",
        "| coefficients | geometric mean | standard error | worst cell |",
        "|---|--:|--:|--:|",
        *(_line(rows, name) for name in NAMES),
    ]


def _line(rows: Sequence[Row], name: str) -> str:
    ratios = [row["ttft_s"][name] / _right(row) for row in rows]
    cells: dict[str, list[float]] = defaultdict(list)
    for row, ratio in zip(rows, ratios, strict=True):
        cells[row["cell"]].append(ratio)
    error = stdev(map(log, ratios)) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    worst = max(map(geometric_mean, cells.values()))
    return f"| {name} | {geometric_mean(ratios):.3f} | {error:.3f} | {worst:.2f} |"


def _right(row: Row) -> float:
    return geometric_mean(row["ttft_s"][name] for name in RIGHT)
