"""How much of real traffic can an engine reuse under each retention policy, at each memory?

Each combination of public trace, model, share of the working set and policy is one cell, which
takes minutes. Results are lines in a file. A study that was stopped continues where it was: only
cells that are missing, or that another version of the study made, are computed. The table and the
plot are written from the file.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import groupby, product
from multiprocessing import get_context
from os import SEEK_END
from pathlib import Path
from typing import Any, Final, TypeAlias

from kvbraid.cache import Retention
from kvbraid.models import CONFIGS
from kvbraid.report.plot import Curves, Point, draw, load_matplotlib
from kvbraid.sim.traces.memory_size import show_size
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.policies import retention_of
from kvbraid.sim.traces.simulation import HitRate, simulate

from bench.studies import clairvoyant, traces
from bench.studies.traces import footprint_of, num_blocks_of, trace_of

RIVALS: Final = ("dense", "interval-0", "interval-1k", "interval-8k")
"""The policies that the reference engine offers."""

VERSIONS: Final = dict.fromkeys(RIVALS, 1) | {"value": 4}
"""The policies that are compared, and the version of what their cells compute. Raise it if the
cache, the policy or a trace changes."""

SHARES: Final = ("1/8", "1/4", "1/2", "1")

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One figure of the study. `share` is the share of the working set that the pool holds."""

    trace: str
    model: str
    share: str
    policy: str
    limit: int | None = None  # Only the first requests of the trace; None: all of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Where traces are read and results stored, and how many requests of each trace are used."""

    traces: Path
    folder: Path
    num_jobs: int = 1
    limit: int | None = None

    @property
    def results(self) -> Path:
        """One JSON line per cell."""
        return self.folder / "policies.jsonl"

    def cells(self) -> list[Cell]:
        """Return all cells, trace by trace."""
        names = (name.partition(".")[0] for name in traces.TRACES)
        axes = product(names, CONFIGS, SHARES, VERSIONS)
        return [Cell(*axis, self.limit) for axis in axes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStudy:
    """A study whose results are the lines of `name`.jsonl, and whose page is `name`.md.

    Attributes:
        version: Of what a call computes; rows of other versions do not count.
        calls: What computes each row, by its label and in the order in which they are computed.
        label_of: Returns the label of a row.
        page: Returns the lines of the page. It may have some of the rows, and says how many.
    """

    name: str
    version: int
    calls: Mapping[str, Callable[[], Row]]
    label_of: Callable[[Row], str]
    page: Callable[[Sequence[Row]], list[str]]

    def run(self, study: Study) -> int:
        """Compute what is missing, then write the page; return the exit status."""
        path = study.folder / f"{self.name}.jsonl"
        rows = [row for row in read_rows(path) if row["version"] == self.version]
        done = set(map(self.label_of, rows))
        todo = [call for label, call in self.calls.items() if label not in done]
        _say(f"{len(rows)} of {len(self.calls)} points are there")
        try:
            for row in in_parallel(todo, study.num_jobs):
                rows.append(row)
                append_row(path, row)
                _say(f"[{len(rows)} of {len(self.calls)}] {self.label_of(row)}")
        finally:
            (study.folder / f"{self.name}.md").write_text("\n".join(self.page(rows)) + "\n")
        return 0


def label_of_pair(row: Row) -> str:
    """Return the label of a row that has a cell and a seed."""
    return f"{row['cell']}, seed {row['seed']}"


def read_rows(path: Path) -> Iterator[Row]:
    """Read the rows of a file, if it is there; a line that was cut off does not count."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            _say(f"{path}: a line is cut off; what it had is computed again")


def append_row(path: Path, row: Row) -> None:
    """Append a row to a file, on a line of its own even if the last one was cut off."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")


def in_parallel(calls: Sequence[Callable[[], Row]], num_jobs: int) -> Iterator[Row]:
    """Yield what calls return, so many at a time."""
    if num_jobs == 1:
        yield from (call() for call in calls)
        return
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def run(study: Study) -> int:
    """Compute the missing cells, then write the table and the plot; return the exit status."""
    if told := traces.lacks(study.traces):
        print(told, file=sys.stderr)
        return 2
    load_matplotlib()
    study.folder.mkdir(parents=True, exist_ok=True)
    done = read_results(study.results)
    todo = [cell for cell in study.cells() if cell not in done]
    _say(f"{len(done)} cells are there, {len(todo)} to do")
    for row in computed(study, todo):
        done[cell_of(row)] = row
        append_row(study.results, row)
    rows = [done[cell] for cell in study.cells()]
    page = (*table(rows), "", *summary(rows), "", *bounds(study))
    (study.folder / "policies.md").write_text("\n".join(page) + "\n")
    draw(
        study.folder / "policies.png",
        panels(rows),
        columns=len(CONFIGS),
        memory="memory (share of the working set)",
    )
    return 0


def read_results(path: Path) -> dict[Cell, Row]:
    """Read the cells that this version made."""
    rows = read_rows(path)
    return {cell_of(r): r for r in rows if r["version"] == VERSIONS.get(r["policy"])}


def cell_of(row: Row) -> Cell:
    """Return the cell to which a result belongs."""
    return Cell(*(row[name] for name in Cell.__dataclass_fields__))


def computed(study: Study, todo: Sequence[Cell]) -> Iterator[Row]:
    """Compute cells, several at a time if asked, and print the progress."""
    begun = time.monotonic()
    calls = [partial(compute, study.traces, cell) for cell in todo]
    for number, row in enumerate(in_parallel(calls, study.num_jobs), start=1):
        hours = (time.monotonic() - begun) / 3600
        _say(
            f"[{number}/{len(todo)}, {hours:.2f} h] {row['trace']} {row['model']} {row['share']} "
            f"{row['policy']}: {100 * row['hit_rate']:.2f} % in {row['seconds']:.0f} s"
        )
        yield row


def compute(traces: Path, cell: Cell) -> Row:
    """Simulate one cell."""
    begun = time.monotonic()
    trace, model = trace_of(traces, cell.trace, cell.limit), simulated_model(cell.model)
    ideal = footprint_of(traces, cell.trace, cell.model, cell.limit)
    num_blocks = num_blocks_of(traces, cell.trace, cell.model, cell.share, cell.limit)
    retention = retention_of(cell.policy, model)
    result = _simulated(traces, cell.trace, cell.limit, cell.model, num_blocks, retention)
    return {
        "version": VERSIONS[cell.policy],
        **asdict(cell),
        "working_set_bytes": ideal.num_blocks * model.block_bytes,
        "working_set_tokens": ideal.num_tokens,
        "num_conversations": ideal.num_conversations,
        **result.to_json(),
        "notes": dict(trace.notes),
        "seconds": round(time.monotonic() - begun, 1),
    }


@lru_cache(maxsize=1)
def _simulated(
    traces: Path, name: str, limit: int | None, model: str, num_blocks: int, retention: Retention
) -> HitRate:
    """Simulate, with a cache: a full-attention model keeps every block under every policy, so its
    result is the same for all of them."""
    return simulate(trace_of(traces, name, limit), simulated_model(model), num_blocks, retention)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from (
        "# Token hit rates by retention policy",
        "",
        "Written by `make study ONLY=policies` from policies.jsonl; do not edit by hand. Rates",
        "are percentages of the prompt tokens of all requests that the empty pool can hold.",
        "",
    )
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    names = ("trace", "model", "share", "memory", *policies, "best", "left out")
    yield f"| {' | '.join(names)} |"
    yield "|---|---|" + "--:|" * (2 + len(policies)) + "---|--:|"
    for cell, group in groupby(rows, key=lambda row: (row["trace"], row["model"], row["share"])):
        by_policy = {row["policy"]: row for row in group}
        rates = {policy: row["hit_rate"] for policy, row in by_policy.items()}
        any_row = by_policy[policies[0]]
        memory = any_row["working_set_bytes"] * Fraction(any_row["share"])
        shown = (f"{100 * rates[policy]:.2f}" for policy in policies)
        best = max(rates, key=lambda policy: rates[policy])
        left_out = f"{any_row['num_left_out']:,}"
        yield f"| {' | '.join((*cell, show_size(int(memory)), *shown, best, left_out))} |"
    notes = {row["trace"]: row["notes"] for row in rows}
    for trace, counts in notes.items():
        if counts:
            said = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
            yield from ("", f"{trace}: {said}.")


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a comparison of each policy with the best of the rivals in the same pool."""
    yield from (
        "Each policy against the best of the reference engine's in the same pool, in points:",
        "",
        "| policy | not worse | largest loss | where | largest gain | where |",
        "|---|--:|--:|---|--:|---|",
    )
    rates = {cell_of(row): 100 * row["hit_rate"] for row in rows}
    leads: dict[str, list[tuple[float, Cell]]] = {}
    for cell, rate in rates.items():
        best = max(rates[replace(cell, policy=rival)] for rival in RIVALS)
        leads.setdefault(cell.policy, []).append((rate - best, cell))
    for policy, found in leads.items():
        not_worse = sum(lead >= 0 for lead, _ in found)
        ends = (
            f"{lead:+.2f} | {cell.trace}, {cell.model}, {cell.share}"
            for lead, cell in (min(found), max(found))
        )
        yield f"| {policy} | {not_worse} of {len(found)} | {' | '.join(ends)} |"


def bounds(study: Study) -> Iterator[str]:
    """Yield the hit rates of an eviction that knows the future."""
    yield from (
        "With an eviction that knows the future, a full-attention model would reuse, in percent:",
        "",
        f"| trace | {' | '.join(SHARES)} |",
        "|---|" + "--:|" * len(SHARES),
    )
    for name in traces.BOUNDED:
        trace = trace_of(study.traces, name, study.limit)
        whole = clairvoyant.working_set(trace)
        rates = (clairvoyant.hit_rate(trace, int(whole * Fraction(share))) for share in SHARES)
        yield f"| {name} | {' | '.join(f'{100 * rate:.2f}' for rate in rates)} |"


def panels(rows: Sequence[Row]) -> dict[str, Curves]:
    """Return one panel per trace and model."""
    found: dict[str, dict[str, list[Point]]] = {}
    for row in rows:
        curves = found.setdefault(f"{row['trace']}\n{row['model']}", {})
        point = Point(float(Fraction(row["share"])), row["hit_rate"])
        curves.setdefault(row["policy"], []).append(point)
    return dict(found)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
