"""How long do users wait under the rule of kvbraid, beside the best of the published rules?

`make study ONLY=routing` plays five workloads on four model shapes, three sizes of pools and
three loads, each with eight seeds, and as further forms a closed loop of users and prefills that
decoding slows down. A point is one of these with one seed: all rules meet the same requests at
the same times. Points come in an order that chance has made, seed by seed, so what was computed
until a stop stands for the whole. Results are lines of `routing.jsonl`; the same command goes on
from there.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Final, NamedTuple

from kvbraid.sim.routing.arrivals import ClosedLoop, OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, simulate
from kvbraid.sim.routing.loads import idle_rate, rate_of
from kvbraid.sim.routing.pod import SimulatedFleet
from kvbraid.sim.routing.workloads import KINDS, Workload

from bench.router.cells import AGAIN, LENGTH, MODELS, NUM_PODS, OURS, Size, ready
from bench.studies.policies import Row, RowStudy, Study

VERSION: Final = 1
"""Of what a point computes. Raise it if the rule, the simulation or a workload changes."""

SIZE: Final = Size(num_requests=640, sessions=1.0)
POOLS: Final = ("1/4", "1/2", "1")
LOADS: Final = (0.5, 0.8, 0.95)
SEEDS: Final = range(1, 9)
USERS: Final = ClosedLoop(users=64, think_s=2.0)
"""Of a closed loop, which has no load: its users wait if the pods cannot keep up."""

SLOWER_S: Final = 3e-4 / LENGTH
"""By how much a step is longer for each answer that it decodes: 6 000 tokens are read."""

LOOKING: Final = (
    "llm_d", "llm_d_gate", "dynamo", "lmetric", "cache_aware", "load_aware", "full_attention",
)  # fmt: skip
"""Published rules that look at caches. What ships of them knows events alone."""

BLIND: Final = ("bounded_hash", "least_loaded")
SHIPPED: Final = (*BLIND, *(f"{name} events" for name in LOOKING))
BASELINES: Final = (*SHIPPED, *LOOKING, "greedy", "greedy events")
RULES: Final = {
    "cost": OURS,
    AGAIN.name: AGAIN,
    "cost events": RoutingRule.named("cost", in_flight=False),
    **{
        name: RoutingRule.named(
            name.removesuffix(" events"), in_flight=not name.endswith("events")
        )
        for name in BASELINES
    },
}


class Point(NamedTuple):
    """One cell of the study with one seed. `form` says what differs from an open loop."""

    seed: int
    form: str
    work: str
    model: str
    pool: str
    load: float

    @property
    def cell(self) -> "Point":
        """The point without its seed."""
        return self._replace(seed=0)


def points() -> list[Point]:
    """Return all points, seed by seed, each seed's in an order that chance has made."""
    matrix = product(SEEDS, ("open",), KINDS, MODELS, POOLS, LOADS)
    decode = product(SEEDS, ("decode",), KINDS, MODELS, ("1",), (0.8,))
    closed = product(SEEDS, ("closed",), KINDS, MODELS, ("1",), (0.0,))
    return sorted((Point(*axes) for axes in (*matrix, *decode, *closed)), key=_turn)


def _turn(point: Point) -> tuple[int, bytes]:
    return point.seed, hashlib.blake2b(repr(point).encode()).digest()


def compute(point: Point) -> Row:
    """Play all rules at one point."""
    begun = time.monotonic()
    asks, fleet = ready(point.model, point.work, point.seed, float(Fraction(point.pool)), SIZE)
    if point.form == "decode":
        prefill = replace(fleet.pace.prefill, per_decoded_token=SLOWER_S)
        fleet = replace(fleet, pace=replace(fleet.pace, prefill=prefill))
    arrivals = USERS if point.form == "closed" else _at_load(point, asks, fleet)
    means = {
        name: simulate(asks, fleet, arrivals, rule, seed=point.seed).ttft_mean_s
        for name, rule in RULES.items()
    }
    return {
        "version": VERSION,
        **point._asdict(),
        "num_blocks": fleet.num_blocks,
        "rate": round(arrivals.rate, 4) if isinstance(arrivals, OpenLoop) else None,
        "ttft_s": {name: round(mean, 5) for name, mean in means.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }


def _at_load(point: Point, asks: Workload, fleet: SimulatedFleet) -> OpenLoop:
    """Return the arrivals under which our rule keeps the pods as busy as the point says."""

    def utilisation(rate: float) -> float:
        return simulate(asks, fleet, OpenLoop(rate), OURS, seed=point.seed).utilisation

    guess = idle_rate(asks, fleet.pace, load=point.load, num_pods=NUM_PODS)
    return OpenLoop(rate_of(point.load, utilisation, guess=guess))


def run(study: Study, *, page: Callable[[Sequence[Row]], list[str]]) -> int:
    """Compute the missing points, then write the page; return the exit status."""
    calls = {_label(point): partial(compute, point) for point in points()}
    return RowStudy(
        name="routing",
        version=VERSION,
        calls=calls,
        label_of=lambda row: _label(point_of(row)),
        page=page,
    ).run(study)


def _label(point: Point) -> str:
    return " ".join(map(str, point))


def point_of(row: Row) -> Point:
    """Return the point to which a result belongs."""
    return Point(*(row[name] for name in Point._fields))
