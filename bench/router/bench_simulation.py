"""How many requests does a simulated fleet play in a minute of one core?

Eight pods with real caches, a real index and a real router play prompts of about 6 000 tokens, on
a clock of their own. The figure counts the CPU time of the process, requests made up included.
"""

import contextlib
import time
from collections.abc import Iterator

from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, simulate
from kvbraid.sim.routing.loads import idle_rate, pool_blocks
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.pod import SimulatedFleet
from kvbraid.sim.routing.workloads import Scale, made_up
from kvbraid.sim.traces.models import simulated_model

from bench.harness.measure import Row, Sample, Side, Target

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
)
