"""Shows replays: progress while they run, then a table or one JSON line per capture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.progress import Progress
from rich.table import Table

from kvbraid.report.console import progress, stdout
from kvbraid.sim.captures.read import Capture, read_capture
from kvbraid.sim.captures.replay import ReplayOptions, Report, replay


def run_replays(
    directories: Sequence[Path],
    options: ReplayOptions,
    *,
    settings: Mapping[str, object],
    as_json: bool,
) -> list[Report]:
    """Replay captures and return the reports. Progress goes to stderr, results to stdout.

    `settings` replaces fields of each capture's topology.

    Raises:
        CaptureError: A capture cannot be read; the captures before it have been reported.
        TopologyError: A setting that no topology can have.
    """
    reports = []
    with progress() as bars:
        for directory in directories:
            report = _replay_one(read_capture(directory, settings), options, bars)
            reports.append(report)
            if as_json:
                print(json.dumps(report.to_dict()), flush=True)  # noqa: T201 - the output itself
    if not as_json:
        stdout().print(_table(reports))
    return reports


def _replay_one(capture: Capture, options: ReplayOptions, bars: Progress) -> Report:
    task = bars.add_task(capture.name, total=len(capture.operations))

    def show(done: int, _total: int) -> None:
        bars.update(task, completed=done)

    return replay(capture, options, progress=show)


_COUNTS = {
    "asked": "requests",
    "exact": "exact",
    "over": "over",
    "under": "under",
    "bound": "bounded",
}
"""The columns of the table, each with the field of the report that it shows."""


def _table(reports: Sequence[Report]) -> Table:
    title = "predicted before the fact, against the engine's own reuse"
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("capture", no_wrap=True)
    for name in (*_COUNTS, "%", "expected %", "width"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why not exact")
    for report in reports:
        asked = max(1, report.requests)
        reasons = [f"{name} {count}" for name, count in report.by_class.items() if count]
        table.add_row(
            report.capture,
            *(str(getattr(report, name)) for name in _COUNTS.values()),
            f"{report.exact_pct:.2f}",
            f"{100 * report.expected_exact / asked:.2f}",
            f"{report.width_sum / asked:.1f}",
            ", ".join(reasons),
        )
    return table
