"""Several routers before one simulated fleet: what they tell each other, and what it is worth."""

from dataclasses import replace
from math import inf

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import SimulatedReplicas, simulate
from kvbraid.sim.routing.results import Result

from bench.router.cells import CELLS, OURS, ready

(CELL,) = (c for c in CELLS if (c.model, c.work, c.load) == ("full", "shared", 0.9))


def played(replicas: SimulatedReplicas) -> Result:
    work, fleet = ready(CELL.model, CELL.work, 1)
    rule = replace(OURS, replicas=replicas)
    return simulate(work, fleet, OpenLoop(CELL.rates[0]), rule, seed=1)


def test_two_routers_that_share_are_nearly_one_and_better_than_two_apart() -> None:
    one = played(SimulatedReplicas())
    shared, alone, apart = (
        played(SimulatedReplicas(num=2, **options))
        for options in ({}, {"promises": False}, {"every_s": inf})
    )
    assert one.num_requests == shared.num_requests == apart.num_requests
    assert one.num_violated == shared.num_violated == apart.num_violated == 0
    assert shared.ttft_mean_s < 1.2 * one.ttft_mean_s
    assert shared.ttft_mean_s < alone.ttft_mean_s < apart.ttft_mean_s
    assert shared.hit_tokens > apart.hit_tokens


@pytest.mark.parametrize("options", [{"num": 0}, {"every_s": 0.0}, {"every_s": -1.0}])
def test_replicas_that_there_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError):
        SimulatedReplicas(**options)  # type: ignore[arg-type]
