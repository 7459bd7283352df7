"""Which parts of retention by value earn their place?

`make study ONLY=ablation` plays the cells of the bench `retention` with their middle pools and
three seeds, and the first requests of public traces. It takes a quarter of an hour on one core.
The thresholds were written down before the first run:

* a part stays if it adds 0.5 points on average somewhere that public traces show, or protects from
  2 points of loss that a fixed policy has;
* what stays loses at most 1 point against the best policy of the reference engine in every cell.

`value` always evicts what saves least, with learned lengths; `adapts` also has simulated caches.
Learned lengths have no switch: to leave them out, let `Overlaps::note` return at once. They stay
because of cells with the smallest pool (`retention.md`, "What learned lengths add").
"""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product, repeat
from pathlib import Path
from statistics import mean
from typing import Final

from kvbraid.cache import ByValue, Dense, EvictionPolicy, Interval, Retention
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.policies import retention_of
from kvbraid.sim.traces.simulation import simulate

from bench.retention import play
from bench.retention.bench_cells import NUM_REQUESTS
from bench.retention.workloads import WORKLOADS, asks
from bench.studies.policies import RIVALS, Study
from bench.studies.traces import BOUNDED, TIGHT, lacks, num_blocks_of, trace_of

POLICIES: Final[Mapping[str, Retention]] = {
    "dense": Dense(),
    "interval-0": Interval(0),
    "interval-1k": Interval(1_024),
    "interval-8k": Interval(8_192),
    "value": ByValue(policy=EvictionPolicy.VALUE),
    "adapts": ByValue(),
}
SEEDS: Final = ("s1", "s2", "s3")
TRACED: Final = ("gpt-oss-120b", "gemma-3-27b", "qwen3-next-80b-a3b", "llama-3.1-8b")
NUM_TRACED: Final = 2_000
NUM_SHOWN: Final = 4
PLAYED: Final = tuple(name for name in WORKLOADS if name != "never")
"""In the one that is left out nothing can be reused."""

Rates = dict[str, float]


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload with a seed, or a trace with a share of its working set, on a model."""

    traffic: str
    model: str
    which: str

    def __str__(self) -> str:
        return f"{self.traffic}, {self.model}, {self.which}"


def run(study: Study) -> int:
    """Compute all cells and write the page; return the exit status."""
    if said := lacks(study.traces):
        print(said, file=sys.stderr)
        return 2
    played = [Cell(*axes) for axes in product(PLAYED, play.MODELS, SEEDS)]
    traced = [Cell(*axes) for axes in product(BOUNDED, TRACED, TIGHT)]
    with ProcessPoolExecutor(study.num_jobs) as pool:
        of_cells = dict(zip(played, pool.map(of_workload, played), strict=True))
        of_traces = dict(
            zip(traced, pool.map(of_trace, repeat(study.traces), traced), strict=True)
        )
    (study.folder / "ablation.md").write_text("\n".join(page(of_cells, of_traces)) + "\n")
    return 0


def of_workload(cell: Cell) -> Rates:
    """Return the rate of each policy after the warm-up, in percent."""
    model = play.MODELS[cell.model]
    played = asks(WORKLOADS[cell.traffic], cell.which + cell.traffic, NUM_REQUESTS)
    return {
        name: play.hit_rate(model, model.pools[1], policy, played)
        for name, policy in POLICIES.items()
    }


def of_trace(traces: Path, cell: Cell) -> Rates:
    """Return the rate of each policy from an empty pool on, in percent."""
    trace, model = trace_of(traces, cell.traffic, NUM_TRACED), simulated_model(cell.model)
    num_blocks = num_blocks_of(traces, cell.traffic, cell.model, cell.which, NUM_TRACED)
    always = ByValue(interval=8_192, policy=EvictionPolicy.VALUE, cost=model.cost).aligned(
        model.alignment
    )
    policies = {name: retention_of(name, model) for name in RIVALS}
    policies |= {"value": always, "adapts": retention_of("value", model)}
    return {
        name: 100 * simulate(trace, model, num_blocks, policy).rate
        for name, policy in policies.items()
    }


def page(of_cells: Mapping[Cell, Rates], of_traces: Mapping[Cell, Rates]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# What each part of retention by value adds",
        "",
        "Written by `make study ONLY=ablation`; do not edit by hand. A lead is the rate of a",
        "policy minus that of the best of the reference engine's policies in the same cell, in",
        "points. `value` has a fixed policy with learned lengths, and `adapts` has simulated",
        "caches too.",
        *table("Cells of the bench `retention`", of_cells),
        *table(f"The first {NUM_TRACED:,} requests of public traces", of_traces),
    ]


def table(title: str, rates: Mapping[Cell, Rates]) -> list[str]:
    """Return a line per policy: its mean rate, its leads, and where it loses most."""
    lines = [
        "",
        f"## {title}: {len(rates)}",
        "",
        "| policy | rate | mean lead | below -1 | below -2 | largest losses |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for policy in POLICIES:
        leads = {
            cell: found[policy] - max(found[rival] for rival in RIVALS)
            for cell, found in rates.items()
        }
        low: Sequence[Cell] = sorted(leads, key=lambda cell: leads[cell])[:NUM_SHOWN]
        shown = (
            f"{mean(found[policy] for found in rates.values()):.2f}",
            f"{mean(leads.values()):+.2f}",
            str(sum(lead < -1 for lead in leads.values())),
            str(sum(lead < -2 for lead in leads.values())),
            "; ".join(f"{cell}: {leads[cell]:+.1f}" for cell in low if leads[cell] < -0.05),
        )
        lines.append(f"| `{policy}` | {' | '.join(shown)} |")
    return lines
