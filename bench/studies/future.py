"""How far is retention by value from one that knows the future, and from what is published?

`make study ONLY=future` plays every workload of the bench `retention` on every model and pool,
and writes the table. It takes a quarter of an hour.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Final

from kvbraid.cache import Retention
from kvbraid.sim.traces.trace import Trace, TraceRequest

from bench.retention import play
from bench.retention.bench_cells import NUM_REQUESTS
from bench.retention.checkpoints import Cache, Policy, Sizes, Visit, hit_rate, visits
from bench.retention.oracle import Oracle
from bench.retention.play import MODELS, OURS, WARM_UP
from bench.retention.published import Placed, Utility
from bench.retention.workloads import WORKLOADS, asks
from bench.studies import clairvoyant

if TYPE_CHECKING:
    from bench.studies.policies import Study

COLUMNS: Final = ("engine", "value", "utility", "placed", "future", "bound")

Rates = dict[str, float]


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload, a model and a pool in blocks."""

    workload: str
    model: str
    pool: int
    num_requests: int = NUM_REQUESTS
    warm_up: int = WARM_UP


def cells() -> list[Cell]:
    """Return all cells, workload by workload."""
    models = [(name, pool) for name, model in MODELS.items() for pool in model.pools]
    return [Cell(workload, *model) for workload, model in product(WORKLOADS, models)]


def run(study: "Study") -> int:
    """Compute all cells and write the page; return the exit status."""
    todo = cells()
    rows: list[tuple[Cell, Rates]] = []
    with ProcessPoolExecutor(study.num_jobs) as pool:
        for cell, rates in zip(todo, pool.map(compute, todo), strict=True):
            rows.append((cell, rates))
            shown = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
            said = f"[{len(rows)}/{len(todo)}] {cell.workload} {cell.model} {cell.pool}: {shown}"
            print(said, file=sys.stderr, flush=True)
    page = (*table(rows), "", *summary(rows))
    (study.folder / "future.md").write_text("\n".join(page) + "\n")
    return 0


def compute(cell: Cell) -> Rates:
    """Return the rate of each column of a cell, in percent."""
    model = MODELS[cell.model]
    sizes = Sizes.of(model.groups)
    played = asks(WORKLOADS[cell.workload], cell.workload, cell.num_requests)
    seen = visits(played, sizes, cell.pool)

    def of_engine(retention: Retention) -> float:
        return play.hit_rate(model, cell.pool, retention, played, warm_up=cell.warm_up)

    def of_model(policy: Policy) -> float:
        return hit_rate(Cache(sizes, cell.pool, policy), seen, warm_up=cell.warm_up)

    return {
        "engine": max(map(of_engine, model.rivals.values())),
        "value": of_engine(OURS),
        "utility": of_model(Utility()),
        "placed": of_model(Placed()),
        "future": of_model(Oracle(seen, sizes.unit)),
        "bound": bound(seen, sizes, cell),
    }


def bound(seen: Sequence[Visit], sizes: Sizes, cell: Cell) -> float:
    """Return what no retention exceeds: windows and states are free, the future is known."""
    requests = [
        TraceRequest(conversation=visit.number, num_tokens=visit.num_tokens, ids=list(visit.path))
        for visit in seen
    ]
    trace = Trace(
        name=cell.workload,
        block_tokens=sizes.unit,
        num_requests=len(requests),
        play=lambda: requests,
    )
    skipped = sum(visit.number < cell.warm_up for visit in seen)
    return 100 * clairvoyant.hit_rate(trace, cell.pool // sizes.per_unit, warm_up=skipped)


def table(rows: Sequence[tuple[Cell, Rates]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from (
        "# Retention by value, the published policies and the future",
        "",
        "Written by `make study ONLY=future`; do not edit by hand. Rates are percentages of",
        f"the prompt tokens of {NUM_REQUESTS - WARM_UP:,} requests, after {WARM_UP} that do not",
        "count.",
        "",
        "| column | what it is |",
        "|---|---|",
        "| engine | the best of the engine's own policies in that cell |",
        "| value | `ByValue()` |",
        "| utility | recency and compute saved per block, with a tuned weight (Marconi) |",
        "| placed | four checkpoints where requests overlapped, by dynamic programming |",
        "| future | a greedy retention that knows when each boundary is resumed next |",
        "| bound | Belady's eviction, with windows and states for free; nothing exceeds it |",
        "",
        f"| workload | model | pool | {' | '.join(COLUMNS)} |",
        "|---|---|--:|" + "--:|" * len(COLUMNS),
    )
    for cell, rates in rows:
        shown = " | ".join(f"{rates[name]:.1f}" for name in COLUMNS)
        yield f"| {cell.workload} | {cell.model} | {cell.pool:,} | {shown} |"


def summary(rows: Sequence[tuple[Cell, Rates]]) -> Iterator[str]:
    """Yield how much of the way from the engine's best to the future each policy goes."""
    yield from (
        "In points of the mean over all cells of a workload:",
        "",
        f"| workload | {' | '.join(COLUMNS)} |",
        "|---|" + "--:|" * len(COLUMNS),
    )
    for workload in dict.fromkeys(cell.workload for cell, _ in rows):
        found = [rates for cell, rates in rows if cell.workload == workload]
        yield f"| {workload} | {_means(found)} |"
    yield f"| all | {_means([rates for _, rates in rows])} |"


def _means(found: Sequence[Rates]) -> str:
    return " | ".join(f"{mean(rates[name] for rates in found):.1f}" for name in COLUMNS)
