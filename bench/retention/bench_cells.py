"""How far is retention by value from the best policy of the reference engine, traffic by traffic?

A cell is a workload, a model and a pool. Its figure is ours minus the best of the engine's
policies (dense, and intervals of 0, 1 024 and 8 192 tokens), in points of the tokens reused, after
500 requests that are not counted. `KVBRAID_BENCH_SEED` names other texts. `KVBRAID_BENCH_LENGTH`
and `KVBRAID_BENCH_COUNT` are factors for their lengths and for how many there are.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from bench.harness.measure import Row, Side, Slice, Target, counted
from bench.retention.play import MODELS, OURS, WARM_UP, hit_rate
from bench.retention.workloads import (
    WORKLOADS,
    Ask,
    Shape,
    Workload,
    asks,
    hot_prefix,
    second_requests,
)

NUM_REQUESTS = WARM_UP + 1_000
SEED = os.environ.get("KVBRAID_BENCH_SEED", "")
SHAPE = Shape(
    length=float(os.environ.get("KVBRAID_BENCH_LENGTH", "1")),
    count=float(os.environ.get("KVBRAID_BENCH_COUNT", "1")),
)
HOT_DISTANCES = (5, 20, 50, 100, 200, 280)
HOT_POOLS = {"full": 20_000, "gptoss": 20_000, "gemma": 40_000, "mamba": 3_000}
SECOND_DISTANCES = (0, 1, 5, 20)
SLICE_WARM_UP, SLICE_REQUESTS = 300, 800
"""A slice has fewer requests, and of each workload and model the pool in the middle."""
SLICE_USES = 14
SLICE_LEAST = {("chat", "full"): -1.3}
"""Where the target of a row is not reached in so few requests: what the slice is at instead."""
LEAST_MEANS = {"full": 1.5, "gptoss": 5.6, "gemma": 7.8, "mamba": 7.5}
"""What the slices of a model's workloads must be ahead by on average."""

Requests = Callable[[], list[Ask]]


@dataclass(frozen=True, slots=True)
class Play:
    """Requests, how many of the first are not counted, and how far from the best ours may be."""

    requests: Requests
    warm_up: int
    least: float


@cache
def rates(model: str, pool: int, requests: Requests, warm_up: int) -> dict[str, float]:
    """Return the rate of each policy in a cell, ours first, in percent."""
    policies = {"value": OURS, **MODELS[model].rivals}
    played = requests()
    return {
        name: hit_rate(MODELS[model], pool, policy, played, warm_up=warm_up)
        for name, policy in policies.items()
    }


def row(
    name: str, question: str, cell: tuple[str, int], play: Play, part: Play | None = None
) -> Row:
    """One cell, with the rate of each policy beside the difference; `part` is its slice."""
    model, pool = cell

    def side(policy: str) -> Side:
        return counted(lambda: rates(model, pool, play.requests, play.warm_up)[policy])

    def lead(play: Play) -> float:
        found = rates(model, pool, play.requests, play.warm_up)
        return found["value"] - max(rate for policy, rate in found.items() if policy != "value")

    return Row(
        name=f"retention_{name}",
        question=question,
        unit="points ahead of the engine's best",
        ours=counted(lambda: lead(play)),
        target=Target(least=play.least),
        samples=1,
        slice=Slice(lambda: lead(part), Target(least=part.least)) if part else None,
        larger_is_better=True,
        beside={policy: side(policy) for policy in ("value", *MODELS[model].rivals)},
    )


def cells() -> Iterator[Row]:
    """Yield a row per workload, model and pool."""
    for name, workload in WORKLOADS.items():

        @cache
        def requests(name: str = name, workload: Workload = workload) -> list[Ask]:
            return asks(workload, SEED + name, NUM_REQUESTS, SHAPE)

        @cache
        def first(name: str = name, workload: Workload = workload) -> list[Ask]:
            return asks(workload, name, SLICE_REQUESTS)

        whole = Play(requests, WARM_UP, -1)
        for model, shape in MODELS.items():
            for pool in shape.pools:
                question = f"{name} on {model}, {pool:,} blocks"
                part = Play(first, SLICE_WARM_UP, SLICE_LEAST.get((name, model), -1))
                of_it = part if pool == shape.pools[1] else None
                yield row(f"{name}_{model}_{pool}", question, (model, pool), whole, of_it)


def hot() -> Iterator[Row]:
    """Yield a row per model and distance between two uses of a prefix."""
    for model, pool in HOT_POOLS.items():
        unit = MODELS[model].unit
        for distance in HOT_DISTANCES:
            uses = 40 if distance > 50 else 80

            def requests(
                uses: int = uses, distance: int = distance, unit: int = unit
            ) -> list[Ask]:
                return list(hot_prefix("hot", distance, uses, unit))

            def first(requests: Callable[[int], list[Ask]] = requests) -> list[Ask]:
                return requests(SLICE_USES)

            question = f"a prefix every {distance} one-off prompts on {model}, {pool:,} blocks"
            warm_up = 10 * (distance + 1)
            whole, part = Play(requests, warm_up, -2), Play(first, warm_up, -2)
            yield row(f"hot_{model}_{distance}", question, (model, pool), whole, part)


def second() -> Iterator[Row]:
    """Yield a row per model and distance between the first two uses of a prefix."""
    for model in ("gptoss", "gemma"):
        for distance in SECOND_DISTANCES:

            def requests(distance: int = distance, unit: int = MODELS[model].unit) -> list[Ask]:
                return list(second_requests("second", distance, 10, unit))

            question = f"the second of two requests, {distance} prompts apart, on {model}, warm"
            play = Play(requests, 400, -1)
            yield row(f"second_{model}_{distance}", question, (model, 20_000), play, play)


ROWS = (*cells(), *hot(), *second())
