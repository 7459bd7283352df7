"""Would a router choose better that knows what its choices will have done to each pod's cache?

Our rule counts a prompt as cached where it was sent (`FleetIndex.promise`). It does not foresee
what that prompt drives out. Here each pod has a replica: a cache that runs what is sent to the pod
when it is sent. The events of the replicas feed a second index, and the rule takes from it what
will be resumable and present. A replica is exact here, because pods run one prompt after the
other, keep no answers, and get nothing from anybody else; so there are also wrong ones.

`make study ONLY=look_ahead` plays the cells of `bench/router/cells.py` with six seeds, seed by
seed, and goes on where it was stopped. A ratio divides by the geometric mean of two runs without
replicas, whose ties chance decides differently.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product, starmap
from math import log, sqrt
from statistics import geometric_mean, mean, stdev
from typing import ClassVar, Final, NamedTuple

from kvbraid.fleet import FleetIndex
from kvbraid.ids import PodId, PodState
from kvbraid.policy import CostRule, Decision, FleetView
from kvbraid.sim.routing.arrivals import OpenLoop
from kvbraid.sim.routing.fleet import RoutingRule, play
from kvbraid.sim.routing.pod import MODEL, SimulatedFleet, SimulatedPod
from kvbraid.sim.routing.results import result_of
from msgspec import structs

from bench.router.cells import AGAIN, CELLS, NUM_PODS, OURS, RoutingCell, found_rate, ready
from bench.studies.policies import Row, RowStudy, Study, label_of_pair

VERSION: Final = 1
SEEDS: Final = range(1, 7)
WITHOUT: Final = (OURS.name, AGAIN.name)


class Replica(NamedTuple):
    """What a router knows of the pods, and where it uses its replicas.

    `blocks` is what it takes for the size of a pool, over the true size. With `near`, only
    candidates count as their replicas say whose cost without replicas is at most this share above
    the least.
    """

    blocks: float = 1.0
    near: float = float("inf")


REPLICAS: Final = {
    "exact": Replica(),
    "exact, near the best only": Replica(near=0.25),
    "pools 10 % too small": Replica(blocks=0.9),
    "pools 10 % too large": Replica(blocks=1.1),
}


class LookAhead(CostRule):
    """Our rule, which takes from replicas what will be cached. `foreseen` has it by request."""

    name: ClassVar[str] = "look_ahead"

    def __init__(self, fleet: SimulatedFleet, replica: Replica) -> None:
        super().__init__()
        self._replica = replica
        fleet = replace(fleet, num_blocks=1 + round((fleet.num_blocks - 1) * replica.blocks))
        self._index = FleetIndex()
        names = [PodId(f"pod-{number}") for number in range(fleet.num_pods)]
        for name in names:
            self._index.register(
                name, model=MODEL, topology=fleet.model.topology, engine=fleet.engine()
            )
            self._index.set_state(name, PodState.EXACT)
        self._pods = {name: SimulatedPod(name, fleet) for name in names}
        self._ahead: Sequence[int] = ()
        self.foreseen: dict[int, int] = {}

    def costs(self, view: FleetView) -> list[float]:
        """Return the costs by what will be cached, where a replica counts."""
        columns = self._index.score(view.request).columns()
        self._ahead = columns.expected
        costs = super().costs(view)
        most = min(costs) * (1 + self._replica.near)
        counts = [cost <= most for cost in costs]
        resumable = zip(counts, columns.expected, view.resumable, strict=True)
        present = zip(counts, columns.present, view.present, strict=True)
        ahead = structs.replace(
            view,
            resumable=[a if ahead else b for ahead, a, b in resumable],
            present=[a if ahead else b for ahead, a, b in present],
        )
        return super().costs(ahead)

    def chosen(self, decision: Decision) -> None:
        """Let the replica of the chosen pod run the prompt."""
        pod = self._pods[decision.rank[0]]
        self.foreseen[int(decision.name)] = self._ahead[decision.place]
        for message in pod.prefill(decision.view.request.token_ids).messages:  # type: ignore[arg-type]
            self._index.apply(pod.name, message)


def compute(cell: RoutingCell, seed: int) -> Row:
    """Play a cell with one seed: without replicas, and with each kind."""
    asks, fleet = ready(cell.model, cell.work, seed)
    arrivals = OpenLoop(found_rate(cell, seed))
    ttft_s: dict[str, float] = {}
    came_true: dict[str, float] = {}
    policies = {name: LookAhead(fleet, replica) for name, replica in REPLICAS.items()}
    for rule in (OURS, AGAIN, *starmap(_rule, policies.items())):
        served = play(asks, fleet, arrivals, rule, seed=seed)
        result = result_of(served, NUM_PODS, policy=rule.name, in_flight=True)
        ttft_s[rule.name] = round(result.ttft_mean_s, 5)
        foreseen = policies[rule.name].foreseen if rule.name in policies else {}
        hits = (foreseen.get(each.number, each.expected) == each.cached for each in served)
        came_true[rule.name] = round(mean(hits), 4)
    return {
        "version": VERSION,
        "cell": str(cell),
        "seed": seed,
        "ttft_s": ttft_s,
        "came_true": came_true,
    }


def _rule(name: str, policy: LookAhead) -> RoutingRule:
    return RoutingRule(name, lambda: policy)


def run(study: Study) -> int:
    """Compute what is missing, then write the page; return the exit status."""
    calls = {
        f"{cell}, seed {seed}": partial(compute, cell, seed)
        for seed, cell in product(SEEDS, CELLS)
    }
    return RowStudy(
        name="look_ahead", version=VERSION, calls=calls, label_of=label_of_pair, page=page
    ).run(study)


def page(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# What a look-ahead is worth",
        "",
        "Written by `make study ONLY=look_ahead`; do not edit by hand. The mean time until the",
        "first token with replicas, over that without them: the geometric mean over the pairs of",
        "a cell and a seed, its standard error, and the worst cell. The last column is the share",
        "of requests that reused exactly what had been foreseen when they were sent.",
        "",
        f"Played so far: {len(rows)} of {len(SEEDS) * len(CELLS)} pairs.",
        "",
        "| replicas | geometric mean | standard error | worst cell | foreseen, % |",
        "|---|--:|--:|--:|--:|",
        *(_line(rows, name) for name in (*WITHOUT, *REPLICAS)),
    ]


def _line(rows: Sequence[Row], name: str) -> str:
    ratios = [row["ttft_s"][name] / _without(row) for row in rows]
    cells: dict[str, list[float]] = defaultdict(list)
    for row, ratio in zip(rows, ratios, strict=True):
        cells[row["cell"]].append(ratio)
    error = stdev(map(log, ratios)) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    true = 100 * mean(row["came_true"][name] for row in rows)
    what = "none" + (", other ties" if name == AGAIN.name else "") if name in WITHOUT else name
    worst = max(map(geometric_mean, cells.values()))
    return f"| {what} | {geometric_mean(ratios):.3f} | {error:.3f} | {worst:.2f} | {true:.1f} |"


def _without(row: Row) -> float:
    return geometric_mean(row["ttft_s"][name] for name in WITHOUT)
