"""`kvbraid cache simulate`: every policy at every memory, shown as a table, lines or a plot."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.progress import Progress, TaskID, TimeElapsedColumn
from rich.table import Table

from kvbraid.report.console import progress, stdout
from kvbraid.report.plot import draw, load_matplotlib
from kvbraid.sim.traces.footprint import Footprint, footprint
from kvbraid.sim.traces.grid import Grid, GridCell
from kvbraid.sim.traces.memory_size import show_size


def run_simulations(grid: Grid, *, as_json: bool, plot: Path | None = None) -> None:
    """Simulate every cell. Progress goes to stderr, results go to stdout.

    Raises:
        InvalidValueError: A plot is asked for without matplotlib (raised before anything is
            simulated), or the plot cannot be written.
    """
    if plot is not None:
        load_matplotlib()
    working_set = footprint(grid.trace, grid.model)
    cells = []
    for cell in _cells(grid):
        cells.append(cell)
        if as_json:
            line = json.dumps(_to_json(grid, working_set, cell))
            print(line, flush=True)  # noqa: T201 - the output itself
    if not as_json:
        _show(grid, working_set, cells)
    if plot is not None:
        draw(plot, {f"{grid.trace.name}, {grid.model.name}": _curves(cells)})


def _cells(grid: Grid) -> Iterator[GridCell]:
    """Simulate cell by cell, with a bar for each."""
    with progress(TimeElapsedColumn()) as bars:
        for memory, policy in grid.cases():
            label = f"{show_size(memory)} {policy}"
            task = bars.add_task(label, total=grid.trace.num_requests)
            yield grid.cell(memory, policy, partial(_advance, bars, task))


def _advance(bars: Progress, task: TaskID, num_done: int) -> None:
    bars.update(task, completed=num_done)


def _to_json(grid: Grid, working_set: Footprint, cell: GridCell) -> dict[str, Any]:
    return {
        "trace": grid.trace.name,
        "model": grid.model.name,
        "memory_bytes": cell.memory_bytes,
        "policy": cell.policy,
        **cell.result.to_json(),
        "working_set_bytes": working_set.num_blocks * grid.model.block_bytes,
        "notes": dict(grid.trace.notes),
    }


def _show(grid: Grid, working_set: Footprint, cells: Sequence[GridCell]) -> None:
    table = Table(
        title="token hit rate (%)", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for name in ("memory", "blocks", *grid.policies, "left out"):
        table.add_column(name, justify="right", no_wrap=True)
    for memory in grid.memories:
        row = {cell.policy: cell.result for cell in cells if cell.memory_bytes == memory}
        rates = [f"{100 * result.rate:.2f}" for result in row.values()]
        any_result = next(iter(row.values()))  # Every policy leaves out the same requests.
        left_out = f"{any_result.num_left_out:,}"
        table.add_row(show_size(memory), f"{any_result.num_blocks:,}", *rates, left_out)
    console = stdout()
    console.print(table)
    for line in _about(grid, working_set):
        console.print(line, soft_wrap=True)


def _about(grid: Grid, working_set: Footprint) -> list[str]:
    trace, model = grid.trace, grid.model
    notes = "".join(f"; {name}: {value:,}" for name, value in trace.notes.items())
    num_bytes = working_set.num_blocks * model.block_bytes
    return [
        f"{trace.name}: {trace.num_requests:,} requests in "
        f"{working_set.num_conversations:,} conversations{notes}",
        f"{model.name}: hits end every {model.alignment} tokens; blocks of "
        f"{show_size(model.block_bytes)}; all that could be reused takes {show_size(num_bytes)}",
    ]


def _curves(cells: Sequence[GridCell]) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        point = (cell.memory_bytes / 2**30, cell.result.rate)
        curves.setdefault(cell.policy, []).append(point)
    return curves
