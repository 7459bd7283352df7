"""Shows replays: progress while they run, then a table or one JSON line per capture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.progress import Progress

from kvbraid.report.console import progress, stdout
from kvbraid.report.tables import Column, Listing, print_listing
from kvbraid.sim.captures.read import Capture, read_capture
from kvbraid.sim.captures.replay import ReplayOptions, Report, percent, replay


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
        print_listing(stdout(), listing_of(reports))
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
"""The columns of counts, each with the field of the report that it shows."""

_COLUMNS: Final = (
    Column("capture", is_left=True),
    *map(Column, (*_COUNTS, "excused", "%", "expected %", "width")),
    Column("why not exact", is_left=True, wraps=True),
)


def listing_of(reports: Sequence[Report]) -> Listing:
    """Return the table of replays, with a row for each capture."""
    rows = [
        (
            report.capture,
            *(str(getattr(report, name)) for name in _COUNTS.values()),
            str(report.excused),
            f"{percent(report.exact, report.requests, decimals=2):.2f}",
            f"{percent(report.expected_exact, report.requests, decimals=2):.2f}",
            f"{report.width_sum / max(1, report.requests):.1f}",
            ", ".join(f"{name} {count}" for name, count in report.by_class.items() if count),
        )
        for report in reports
    ]
    title = "predicted before the fact, against the engine's own reuse"
    return Listing(title=title, columns=_COLUMNS, rows=rows)
