"""A small cell of the router's benchmarks, played by a policy that a test looks into."""

from collections.abc import Callable
from typing import TypeVar

from kvbraid.policy import RoutingPolicy
from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, play
from kvbraid.sim.routing.pod import SimulatedFleet
from kvbraid.sim.routing.results import Served

from bench.router.cells import RoutingCell, ready

P = TypeVar("P", bound=RoutingPolicy)


def played(cell: RoutingCell, make: Callable[[SimulatedFleet], P]) -> tuple[P, list[Served]]:
    """Play a cell's first seed; return the policy and what it sent where."""
    asks, fleet = ready(cell.model, cell.work, 1)
    policy = make(fleet)
    rule = RoutingRule(policy.name, lambda: policy)
    return policy, play(asks, fleet, OpenLoop(cell.rates[0]), rule)
