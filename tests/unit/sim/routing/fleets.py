"""Small fleets for tests: a model of full attention alone, and one with states."""

from array import array
from collections.abc import Sequence
from functools import partial

from kvbraid.policy import Seconds
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.pod import SimulatedFleet
from kvbraid.sim.routing.workloads import Ask, Workload
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL = SimulatedModel(
    name="full",
    topology=Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),)),
    block_bytes=1,
)
STATES = SimulatedModel(
    name="states",
    topology=Topology(
        groups=(
            GroupSpec(kind=SpecKind.MAMBA, block_size=16),
            GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
        )
    ),
    block_bytes=1,
)

PACE = Pace(prefill=Seconds(fixed=1.0, per_token=0.01, per_pair=0.0), step_s=0.5, read_s=0.0)
"""A prefill takes a second and a hundredth of one a computed token; a token of an answer half."""


def fleet(
    model: SimulatedModel = FULL,
    *,
    num_pods: int = 1,
    num_blocks: int = 100,
    delay_s: float = 0.02,
    loss: float = 0.0,
) -> SimulatedFleet:
    return SimulatedFleet(
        model=model,
        num_blocks=num_blocks,
        num_pods=num_pods,
        pace=PACE,
        delay_s=delay_s,
        loss=loss,
    )


def ask(session: int, tokens: Sequence[int], *, num_outputs: int = 0) -> Ask:
    return Ask(session, partial(array, "I", tokens), len(tokens), num_outputs)


def work(*asks: Ask) -> Workload:
    return Workload("test", asks)
