"""Cells in which routing policies are compared: a model, a workload and a load of four pods.

Invariant: a cell is a function of its seeds. Texts, windows and steps have an eighth of their
usual length, and a token takes eight times as long, so waiting and prefill are what they are at
full length. Pools hold the working set, or a share of it. The rate of a seed is the one at which
the rule of kvbraid keeps the pods busy for the share `load` of their time. `python -m
bench.router.cells` finds the rates anew, and prints the table of rules.
"""

import statistics
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from kvbraid.policy import CostRule, FleetView, Seconds
from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, simulate
from kvbraid.sim.routing.loads import idle_rate, pool_blocks, rate_of
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.pod import SimulatedFleet
from kvbraid.sim.routing.workloads import Scale, Workload, made_up
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.spec import GroupSpec, SpecKind, Topology

NUM_PODS: Final = 4
LENGTH: Final = 1 / 8


class Size(NamedTuple):
    """How many requests are played, and the share of the usual live sessions that they are of."""

    num_requests: int
    sessions: float


SMALL: Final = Size(num_requests=320, sessions=0.5)

_FULL: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
_STATE: Final = GroupSpec(kind=SpecKind.MAMBA, block_size=16)


def _window(tokens: int) -> GroupSpec:
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=tokens)


MODELS: Final[Mapping[str, tuple[tuple[GroupSpec, ...], float]]] = {
    "full": ((_FULL,), 1.0),
    "gptoss": ((_window(128 // 8), _FULL), 0.5),
    "gemma": ((*[_window(1024 // 8)] * 5, _FULL), 1 / 6),
    "states": ((_STATE, _STATE, _STATE, _FULL), 0.25),
}
"""The groups of each model, and the share of its layers that look at all tokens."""


class ConstantDisplacement(CostRule):
    """The rule with one price for work, whatever the load is: a mutant."""

    def _prices(self, view: FleetView) -> tuple[float, float]:
        del view
        return 0.5, 0.0


class OtherTies(CostRule):
    """The rule, for which chance decides otherwise among equals: the noise of a comparison."""

    def costs(self, view: FleetView) -> list[float]:
        """Draw once, and return the costs."""
        view.chance.random()
        return super().costs(view)


OURS: Final = RoutingRule.named("cost")
AGAIN: Final = RoutingRule("cost again", OtherTies)
RIVALS: Final = tuple(map(RoutingRule.named, ("llm_d", "full_attention", "greedy")))
MUTANTS: Final = (
    RoutingRule("events only", CostRule, in_flight=False),
    RoutingRule("constant displacement", ConstantDisplacement),
)


class RoutingCell(NamedTuple):
    """One model on one workload at one load; `rates` are those of the seeds from 1 on."""

    model: str
    work: str
    load: float
    rates: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.model} {self.work} {self.load}"


CELLS: Final = (
    RoutingCell("full", "agents", 0.5, (7.43, 7.8)),
    RoutingCell("full", "agents", 0.9, (14.0, 16.3)),
    RoutingCell("full", "shared", 0.5, (16.7, 14.0)),
    RoutingCell("full", "shared", 0.9, (30.5, 24.7)),
    RoutingCell("full", "mixed", 0.5, (4.67, 5.15)),
    RoutingCell("full", "mixed", 0.9, (8.93, 9.81)),
    RoutingCell("states", "agents", 0.5, (5.61, 4.45)),
    RoutingCell("states", "agents", 0.9, (10.5, 10.4)),
    RoutingCell("states", "shared", 0.5, (11.8, 10.7)),
    RoutingCell("states", "shared", 0.9, (22.5, 19.4)),
    RoutingCell("states", "mixed", 0.5, (4.62, 5.19)),
    RoutingCell("states", "mixed", 0.9, (8.54, 9.49)),
)


@cache
def ready(
    model: str, work: str, seed: int, pool: float = 1.0, size: Size = SMALL
) -> tuple[Workload, SimulatedFleet]:
    """Return the requests and the pods of a seed; `pool` is a share of the working set."""
    groups, share = MODELS[model]
    simulated = SimulatedModel(name=model, topology=Topology(groups=groups), block_bytes=1)
    scale = Scale(length=LENGTH, count=size.sessions)
    asks = made_up(work, seed=seed, num_requests=size.num_requests, scale=scale)
    usual = Pace()
    seconds = Seconds(
        per_token=usual.prefill.per_token / LENGTH,
        per_pair=share * usual.prefill.per_pair / LENGTH**2,
        step_tokens=round(usual.prefill.step_tokens * LENGTH),
    )
    fleet = SimulatedFleet(
        model=simulated,
        num_blocks=pool_blocks(
            asks,
            simulated,
            share=pool,
            num_pods=NUM_PODS,
            step_tokens=seconds.step_tokens,
        ),
        num_pods=NUM_PODS,
        pace=Pace(
            prefill=seconds,
            step_s=usual.step_s / LENGTH,
            read_s=usual.read_s / LENGTH**2,
        ),
    )
    return asks, fleet


def found_rate(cell: RoutingCell, seed: int) -> float:
    """Find the rate that has the cell's load, for one seed."""
    asks, fleet = ready(cell.model, cell.work, seed)

    def utilisation(rate: float) -> float:
        return simulate(asks, fleet, OpenLoop(rate), OURS, seed=seed).utilisation

    guess = idle_rate(asks, fleet.pace, load=cell.load, num_pods=NUM_PODS)
    return rate_of(cell.load, utilisation, guess=guess)


@cache
def ttft_s(cell: RoutingCell, rule: RoutingRule) -> float:
    """Return the mean time until the first token over the cell's seeds."""
    means = []
    for seed, rate in enumerate(cell.rates, start=1):
        asks, fleet = ready(cell.model, cell.work, seed)
        means.append(simulate(asks, fleet, OpenLoop(rate), rule, seed=seed).ttft_mean_s)
    return statistics.mean(means)


def main() -> None:
    """Print the rates that the cells have now, and what each rule takes beside the best rival."""
    for cell in CELLS:
        rates = [round(found_rate(cell, seed), 2) for seed in range(1, len(cell.rates) + 1)]
        best = min(ttft_s(cell, rival) for rival in RIVALS)
        rules = (OURS, *RIVALS, *MUTANTS)
        ratios = [f"{rule.name} {ttft_s(cell, rule) / best:.3f}" for rule in rules]
        print(f"{cell}: rates {rates}; {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
