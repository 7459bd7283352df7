"""`kvbraid cache simulate`: every policy at every memory, shown as a table, lines or a plot."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from kvbraid.cache import PolicyChoice
from kvbraid.errors import counted
from kvbraid.report.console import progress, stdout
from kvbraid.report.plot import Point, check_path, draw
from kvbraid.report.tables import Column, Listing, print_lines, print_listing
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
        check_path(plot)
    working_set = footprint(grid.trace, grid.model)
    cells = []
    for cell in _cells(grid):
        cells.append(cell)
        for policy in cell.policies if as_json else ():
            line = json.dumps(_to_json(grid, working_set, cell, policy))
            print(line, flush=True)  # noqa: T201 - the output itself
    if not as_json:
        show_rates(stdout(), grid, working_set, cells)
    if plot is not None:
        title = f"{grid.trace.name}, {model_label(grid.model.name)}"
        draw(plot, {title: _curves(cells)}, tick=lambda memory: show_size(int(memory)))


def _cells(grid: Grid) -> Iterator[GridCell]:
    """Simulate cell by cell, with a bar for each."""
    with progress(TimeElapsedColumn()) as bars:
        for memory, policies in grid.cases():
            label = f"{show_size(memory)} {policies[0]}"
            task = bars.add_task(label, total=grid.trace.num_requests)
            yield grid.cell(memory, policies, partial(_advance, bars, task))


def _advance(bars: Progress, task: TaskID, num_done: int) -> None:
    bars.update(task, completed=num_done)


def _to_json(grid: Grid, working_set: Footprint, cell: GridCell, policy: str) -> dict[str, Any]:
    return {
        "trace": grid.trace.name,
        "model": grid.model.name,
        "num_ranks": grid.model.num_ranks,
        "memory_bytes": cell.memory_bytes,
        "policy": policy,
        **cell.result.to_json(),
        "working_set_bytes": working_set.num_blocks * grid.model.block_bytes,
        "notes": dict(grid.trace.notes),
    }


def show_rates(
    console: Console, grid: Grid, working_set: Footprint, cells: Sequence[GridCell]
) -> None:
    """Print a row for each different policy, with a column for each memory."""
    columns = [Column("policy", is_left=True), *(Column(show_size(m)) for m in grid.memories)]
    rates: dict[str, list[str]] = {}
    for cell in cells:
        rates.setdefault(_named(cell), []).append(f"{100 * cell.result.rate:.2f}")
    # Every policy has the same pools, and leaves out the same requests.
    results = [cell.result for cell in cells[:: len(rates)]]
    listing = Listing(
        title="token hit rate (%)",
        columns=columns,
        rows=[(name, *row) for name, row in rates.items()],
        footer=[
            ("blocks of the pool", *(f"{result.num_blocks:,}" for result in results)),
            ("requests left out", *(f"{result.num_left_out:,}" for result in results)),
        ],
    )
    print_listing(console, listing)
    if choices := _choices(cells):
        console.print()
        print_listing(console, choices)
        console.print()
    print_lines(console, _about(grid, working_set))


def _choices(cells: Sequence[GridCell]) -> Listing | None:
    """Return a row for each policy that adapts and each memory; None if none does."""
    chosen = [
        (_named(cell), cell.memory_bytes, cell.result.policy_choice)
        for cell in sorted(cells, key=_named)
        if cell.result.policy_choice is not None
    ]
    if not chosen:
        return None
    return Listing(
        title="what was evicted first at the end, since which request, and ahead of which rival",
        columns=[
            Column("policy", is_left=True),
            Column("memory"),
            Column("evicts", is_left=True),
            Column("since"),
            Column("rival", is_left=True),
            Column("ahead (%)"),
        ],
        rows=[(name, show_size(memory), *_choice_cells(now)) for name, memory, now in chosen],
    )


def _choice_cells(choice: PolicyChoice) -> tuple[str, str, str, str]:
    """Return the choice, since when it is, and its gain over the rival that is nearest."""
    rival, gain = min(choice.gains.items(), key=itemgetter(1))
    since = f"{choice.since:,}" if choice.num_changes else "start"
    return choice.now.name, since, rival, f"{100 * gain:+.2f}"


def model_label(name: str) -> str:
    """Return what people call a model: its name, or what the path of a config.json tells best."""
    path = Path(name)
    if path.is_dir():
        return path.absolute().name
    if path.name == "config.json":
        return path.absolute().parent.name
    return path.stem if path.suffix == ".json" else name


def _named(cell: GridCell) -> str:
    return ", ".join(cell.policies)


def _about(grid: Grid, working_set: Footprint) -> list[str]:
    trace, model = grid.trace, grid.model
    notes = "".join(f"; {name}: {value:,}" for name, value in trace.notes.items())
    num_bytes = working_set.num_blocks * model.block_bytes
    ranks = "" if model.num_ranks == 1 else f", on each of {model.num_ranks} ranks"
    return [
        f"{trace.name}: {counted(trace.num_requests, 'request')} in "
        f"{counted(working_set.num_conversations, 'conversation')}{notes}",
        f"{model_label(model.name)}{ranks}: hits end every {model.alignment} tokens; blocks of "
        f"{show_size(model.block_bytes)}; all that could be reused takes {show_size(num_bytes)}",
    ]


def _curves(cells: Sequence[GridCell]) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    for cell in cells:
        choice = cell.result.policy_choice
        name = "" if choice is None else choice.now.name
        point = Point(cell.memory_bytes, cell.result.rate, name)
        curves.setdefault(_named(cell), []).append(point)
    return curves
