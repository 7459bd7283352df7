"""How fast is a simulated fleet played, and how long do its users wait under our rule?

Eight pods with real caches, a real index and a real router play prompts of about 6 000 tokens, on
a clock of their own. `sim_speed` counts the CPU time of the process, requests made up included.
`policy_sim` has no clock: it is the slice of `make study ONLY=routing` that takes a minute or two.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from statistics import geometric_mean
from typing import Final

from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, simulate
from kvbraid.sim.routing.loads import idle_rate, pool_blocks, rate_of
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.pod import SimulatedFleet
from kvbraid.sim.routing.workloads import Scale, made_up
from kvbraid.sim.traces.models import simulated_model

from bench.harness.measure import Row, Sample, Side, Target, counted
from bench.router.cells import AGAIN, CELLS, OURS, RIVALS, RoutingCell, ready, ttft_s

NUM_PODS = 8
NUM_REQUESTS = 1_000
SCALE = Scale(length=1.6)  # Of shared prompts, whose mean is 3 750 tokens.


def played(model_name: str) -> Side:
    """Play a thousand prompts; a sample is the requests a minute."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        model = simulated_model(model_name)
        asks = made_up("shared", seed=1, num_requests=NUM_REQUESTS, scale=SCALE)
        fleet = SimulatedFleet(
            model=model,
            num_blocks=pool_blocks(asks, model, share=1.0, num_pods=NUM_PODS),
            num_pods=NUM_PODS,
            pace=Pace.of_model(model),
        )
        arrivals = OpenLoop(idle_rate(asks, fleet.pace, load=0.8, num_pods=NUM_PODS))
        rule = RoutingRule.named("cost")

        def sample() -> float:
            begin = time.process_time()
            simulate(asks, fleet, arrivals, rule)
            return 60 * NUM_REQUESTS / (time.process_time() - begin)

        yield sample

    return side


EVENTS_ONLY: Final = tuple(RoutingRule.named(rival.name, in_flight=False) for rival in RIVALS)
ALL: Final = (*RIVALS, *EVENTS_ONLY)
SHIPPED: Final = tuple(rival for rival in EVENTS_ONLY if rival.name != "greedy")
BOUND_S: Final = 2.0


def beside_best(
    rule: RoutingRule,
    rivals: Sequence[RoutingRule],
    of_cells: Callable[[list[float]], float] = geometric_mean,
) -> Side:
    """Return a side that counts a rule's wait over that of the best rival of each cell."""

    def figure() -> float:
        best = [min(ttft_s(cell, rival) for rival in rivals) for cell in CELLS]
        return of_cells([ttft_s(c, rule) / b for c, b in zip(CELLS, best, strict=True)])

    return counted(figure)


@cache
def capacity(cell: RoutingCell, rule: RoutingRule) -> float:
    """Return the requests a second at which users wait `BOUND_S` in the mean, for one seed."""
    asks, fleet = ready(cell.model, cell.work, 1)

    def share(rate: float) -> float:
        return simulate(asks, fleet, OpenLoop(rate), rule).ttft_mean_s / (2 * BOUND_S)

    return rate_of(0.5, share, guess=cell.rates[0])


def over_what_ships() -> float:
    """Return our capacity over that of the best rule that ships, over busy cells."""
    busy = [cell for cell in CELLS if cell.load == max(each.load for each in CELLS)]
    best = [max(capacity(cell, rival) for rival in SHIPPED) for cell in busy]
    return geometric_mean(capacity(c, OURS) / b for c, b in zip(busy, best, strict=True))


ROWS = (
    Row(
        name="sim_speed",
        question="requests of 6 000 tokens that a simulated fleet of 8 pods plays, full attention",
        unit="requests/min",
        ours=played("llama-3.1-8b"),
        target=Target(least=20_000),
        samples=5,
        larger_is_better=True,
        beside={"gptoss": played("gpt-oss-120b"), "qwen": played("qwen3-next-80b-a3b")},
    ),
    Row(
        name="policy_sim",
        question="wait for the first token under our rule, over the best baseline of each cell",
        unit="x",
        ours=beside_best(OURS, ALL),
        target=Target(ours=0.85),
        samples=1,
        beside={
            "worst": beside_best(OURS, ALL, max),
            "other ties": beside_best(AGAIN, ALL),
            "other ties, worst": beside_best(AGAIN, ALL, max),
            "over what ships": beside_best(OURS, SHIPPED),
            "over what ships, worst": beside_best(OURS, SHIPPED, max),
            "capacity over what ships": counted(over_what_ships),
        },
    ),
)
