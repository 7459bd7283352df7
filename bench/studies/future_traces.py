"""How far is retention by value from one that knows the future, on public traces?

`make study ONLY=future_traces` plays what `make study ONLY=future` plays for the workloads of the
bench `retention`: the engine's policies and ours as `kvbraid cache simulate` does, and the
policies of papers, who knows the future and the bound as models.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product, repeat
from pathlib import Path
from typing import Final

from kvbraid.sim.traces.footprint import tail_blocks
from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.policies import retention_of
from kvbraid.sim.traces.prefix_hashes import PrefixHashes
from kvbraid.sim.traces.simulation import simulate
from kvbraid.sim.traces.trace import Trace

from bench.retention.checkpoints import Cache, Policy, Sizes, Visit, hit_rate
from bench.retention.oracle import Oracle
from bench.retention.published import Placed, Utility
from bench.studies import clairvoyant
from bench.studies.future import COLUMNS, Rates
from bench.studies.policies import RIVALS, Study
from bench.studies.traces import BOUNDED, TIGHT, lacks, num_blocks_of, trace_of

NUM_REQUESTS: Final = 2_000
"""The first requests of a trace, which are played."""

TRACED: Final = ("gpt-oss-120b", "qwen3-next-80b-a3b")


@dataclass(frozen=True, slots=True)
class Cell:
    """A trace, a model, and the share of the working set that the pool holds."""

    trace: str
    model: str
    share: str


def run(study: Study) -> int:
    """Compute all cells and write the page; return the exit status."""
    if said := lacks(study.traces):
        print(said, file=sys.stderr)
        return 2
    cells = [Cell(*axes) for axes in product(BOUNDED, TRACED, TIGHT)]
    with ProcessPoolExecutor(study.num_jobs) as pool:
        rows = []
        for cell, rates in zip(cells, pool.map(compute, repeat(study.traces), cells), strict=True):
            rows.append((cell, rates))
            print(f"[{len(rows)}/{len(cells)}] {cell}: {rates}", file=sys.stderr, flush=True)
    (study.folder / "future_traces.md").write_text("\n".join(page(rows)) + "\n")
    return 0


def compute(traces: Path, cell: Cell) -> Rates:
    """Return the rate of each column of a cell, in percent."""
    trace, model = trace_of(traces, cell.trace, NUM_REQUESTS), simulated_model(cell.model)
    num_blocks = num_blocks_of(traces, cell.trace, cell.model, cell.share, NUM_REQUESTS)
    sizes = sizes_of(model, trace)
    seen = visits(trace, sizes, num_blocks)

    def of_engine(policy: str) -> float:
        result = simulate(trace, model, num_blocks, retention_of(policy, model))
        assert result.num_requests == len(seen), "all play the same requests"
        return 100 * result.rate

    def of_model(policy: Policy) -> float:
        return hit_rate(Cache(sizes, num_blocks, policy), seen, warm_up=0)

    held = num_blocks * sizes.unit // (sizes.per_unit * trace.block_tokens)
    return {
        "engine": max(map(of_engine, RIVALS)),
        "value": of_engine("value"),
        "utility": of_model(Utility()),
        "placed": of_model(Placed()),
        "future": of_model(Oracle(seen, sizes.unit)),
        "bound": 100 * clairvoyant.hit_rate(trace, held),
    }


def sizes_of(model: SimulatedModel, trace: Trace) -> Sizes:
    """Return the blocks of a model per unit: a block of the trace, or what hits are aligned to."""
    groups, unit = model.topology.groups, trace.block_tokens
    if unit % model.alignment:
        unit = model.alignment
    full = (unit // group.block_size for group in groups if group.kind.is_full)
    return Sizes(unit, sum(full), tail_blocks(groups, 1_000 * unit))


def visits(trace: Trace, sizes: Sizes, num_blocks: int) -> list[Visit]:
    """Return the requests that the empty pool can hold, as `simulate` plays them."""
    hashes = PrefixHashes(trace.block_tokens, sizes.unit)
    seen = []
    for number, request in enumerate(trace.play()):
        path = tuple(int.from_bytes(digest) for digest in hashes.of(request))
        num_tokens = min(request.num_tokens, len(request.ids) * trace.block_tokens + 1)
        blocks = -(-num_tokens // sizes.unit) * sizes.per_unit + sizes.per_checkpoint
        if blocks < num_blocks:
            seen.append(Visit(number, path, num_tokens, request.num_tokens))
    return seen


def page(rows: Sequence[tuple[Cell, Rates]]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# Retention by value, the published policies and the future, on traces",
        "",
        "Written by `make study ONLY=future_traces`; do not edit by hand. Rates are percentages",
        f"of the prompt tokens of the first {NUM_REQUESTS:,} requests of a trace. The columns are",
        "those of [future.md](future.md); the pool holds a share of the working set.",
        "",
        f"| trace | model | share | {' | '.join(COLUMNS)} |",
        "|---|---|--:|" + "--:|" * len(COLUMNS),
        *(
            f"| {cell.trace} | {cell.model} | {cell.share} | "
            + " | ".join(f"{rates[name]:.1f}" for name in COLUMNS)
            + " |"
            for cell, rates in rows
        ),
    ]
