"""How much longer do users wait with two replicas than with one router that gets all requests?

The same requests come at the same times to the same simulated pods, in cells of `bench.router`.
Chance gives each request one of two routers. These tell each other of their load ten times a
second and of each request at once, a millisecond late; or tell each other nothing. There is no
clock in it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from statistics import geometric_mean, mean
from typing import Final

from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, SimulatedReplicas, simulate
from kvbraid.sim.routing.results import Result

from bench.harness.measure import Row, Side, Slice, Target, counted
from bench.router.cells import AGAIN, CELLS, OURS, RoutingCell, ready

SHARED: Final = replace(OURS, replicas=SimulatedReplicas(num=2))
APART: Final = replace(OURS, replicas=SimulatedReplicas(num=2, every_s=inf))
LOAD_ALONE: Final = replace(OURS, replicas=SimulatedReplicas(num=2, promises=False))
FOUR: Final = replace(OURS, replicas=SimulatedReplicas(num=4))


def p99_s(result: Result) -> float:
    """The wait that one request in a hundred exceeds."""
    return result.ttft_p99_s


def mean_s(result: Result) -> float:
    """The mean wait."""
    return result.ttft_mean_s


@cache
def results(cell: RoutingCell, rule: RoutingRule) -> list[Result]:
    """Play a cell under a rule, once for each of its seeds."""
    played = []
    for seed, rate in enumerate(cell.rates, start=1):
        work, fleet = ready(cell.model, cell.work, seed)
        played.append(simulate(work, fleet, OpenLoop(rate), rule, seed=seed))
    return played


def ratio(rule: RoutingRule, figure: Callable[[Result], float] = p99_s) -> float:
    """Return a figure under a rule over that of one router: the geometric mean of all cells."""

    def of_cell(cell: RoutingCell) -> float:
        ours, one = (mean(map(figure, results(cell, each))) for each in (rule, OURS))
        return ours / one

    return geometric_mean(map(of_cell, CELLS))


def over_one(rule: RoutingRule, figure: Callable[[Result], float] = p99_s) -> Side:
    """Return a side that counts a figure under a rule over that of one router."""
    return counted(lambda: ratio(rule, figure))


ROWS = (
    Row(
        name="two_replicas",
        question="p99 wait for a first token, over that with one router; the rival books apart",
        unit="x",
        ours=over_one(SHARED),
        rival=over_one(APART),
        target=Target(ours=1.05),
        samples=1,
        slice=Slice(lambda: ratio(SHARED), Target(ours=1.05)),
        beside={
            "mean": over_one(SHARED, mean_s),
            "mean apart": over_one(APART, mean_s),
            "load alone": over_one(LOAD_ALONE),
            "four replicas": over_one(FOUR),
            "one router, other ties": over_one(AGAIN),
        },
    ),
)
