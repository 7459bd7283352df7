"""`kvbraid cache simulate`: every policy at every memory, shown as a table, lines or a plot."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvbraid.sim.traces.footprint import Footprint, footprint
from kvbraid.sim.traces.memory_size import parse_size, show_size
from kvbraid.sim.traces.models import CacheModel, cache_model
from kvbraid.sim.traces.plot import draw, load_matplotlib
from kvbraid.sim.traces.policies import CACHE_POLICIES, retention_of
from kvbraid.sim.traces.read import read_trace
from kvbraid.sim.traces.simulation import HitRate, check_pool, simulate
from kvbraid.sim.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """What to simulate: `memories` as people write them; no policy given: all of them."""

    model: str
    memories: Sequence[str]
    policies: Sequence[str] = ()
    num_requests: int | None = None
    plot: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One result."""

    memory_bytes: int
    policy: str
    result: HitRate


def run_simulations(path: Path, options: SimulationOptions, *, as_json: bool) -> list[Cell]:
    """Simulate every combination; progress on stderr, results on stdout.

    Raises:
        TraceError: The trace cannot be read.
        InvalidValueError: A size that is none, a pool that holds nothing, or no matplotlib.
        UnknownError: No such model or policy.
    """
    model = cache_model(options.model)
    memories = sorted({parse_size(text) for text in options.memories})
    policies = {name: retention_of(name, model) for name in options.policies or CACHE_POLICIES}
    if options.plot is not None:
        load_matplotlib()
    trace = read_trace(path)
    if options.num_requests is not None:
        trace = trace.first(options.num_requests)
    for memory in memories:
        check_pool(model, model.num_blocks(memory))
    cells = []
    with _progress() as progress:
        working_set = footprint(trace, model)
        for memory in memories:
            for policy in policies:
                cell = _simulate(trace, model, (memory, policy), progress)
                cells.append(cell)
                if as_json:
                    line = json.dumps(_to_json(trace, model, working_set, cell))
                    print(line, flush=True)  # noqa: T201 - the output itself
    if not as_json:
        _show(trace, model, working_set, cells)
    if options.plot is not None:
        draw(options.plot, {f"{trace.name}, {model.name}": _curves(cells)})
    return cells


def _simulate(trace: Trace, model: CacheModel, case: tuple[int, str], progress: Progress) -> Cell:
    memory, policy = case
    task = progress.add_task(f"{show_size(memory)} {policy}", total=trace.num_requests)
    result = simulate(
        trace,
        model,
        model.num_blocks(memory),
        retention_of(policy, model),
        progress=lambda done: progress.update(task, completed=done),
    )
    return Cell(memory_bytes=memory, policy=policy, result=result)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _to_json(
    trace: Trace, model: CacheModel, working_set: Footprint, cell: Cell
) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "model": model.name,
        "memory_bytes": cell.memory_bytes,
        "policy": cell.policy,
        **cell.result.to_json(),
        "working_set_bytes": working_set.num_blocks * model.block_bytes,
        "notes": dict(trace.notes),
    }


def _show(trace: Trace, model: CacheModel, working_set: Footprint, cells: Sequence[Cell]) -> None:
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    table = Table(
        title="token hit rate (%)", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for name in ("memory", "blocks", *policies, "left out"):
        table.add_column(name, justify="right", no_wrap=True)
    for memory in dict.fromkeys(cell.memory_bytes for cell in cells):
        row = {cell.policy: cell.result for cell in cells if cell.memory_bytes == memory}
        any_result = row[policies[0]]  # All policies leave out the same requests.
        rates = (f"{100 * row[policy].rate:.2f}" for policy in policies)
        left_out = f"{any_result.num_left_out:,}"
        table.add_row(show_size(memory), f"{any_result.num_blocks:,}", *rates, left_out)
    console = Console(highlight=False)
    console.print(table)
    for line in _about(trace, model, working_set):
        console.print(line, soft_wrap=True)


def _about(trace: Trace, model: CacheModel, working_set: Footprint) -> list[str]:
    notes = "".join(f"; {name}: {value:,}" for name, value in trace.notes.items())
    num_bytes = working_set.num_blocks * model.block_bytes
    return [
        f"{trace.name}: {trace.num_requests:,} requests in "
        f"{working_set.num_conversations:,} conversations{notes}",
        f"{model.name}: hits end every {model.alignment} tokens; blocks of "
        f"{show_size(model.block_bytes)}; all that could be reused takes {show_size(num_bytes)}",
    ]


def _curves(cells: Sequence[Cell]) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        point = (cell.memory_bytes / 2**30, cell.result.rate)
        curves.setdefault(cell.policy, []).append(point)
    return curves
