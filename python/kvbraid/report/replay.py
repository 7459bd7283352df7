"""Shows replays: progress while they run, then a table or one JSON line per capture.

A folder that cannot be read is told of at the end, and does not keep the others from being shown.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.progress import Progress

from kvbraid.errors import KvbraidError, counted
from kvbraid.report.console import progress, stdout
from kvbraid.report.tables import Column, Listing, Row, print_listing
from kvbraid.sim.captures.read import Capture, read_capture
from kvbraid.sim.captures.replay import ReplayOptions, Report, percent, replay, total


class Replays(NamedTuple):
    """The reports of all captures that could be read, and why each of the others could not."""

    reports: list[Report]
    refused: list[KvbraidError]


def run_replays(
    directories: Sequence[Path],
    options: ReplayOptions,
    *,
    settings: Mapping[str, object],
    as_json: bool,
) -> Replays:
    """Replay captures. Progress goes to stderr, results to stdout.

    `settings` replaces fields of each capture's topology. A capture that is refused does not
    keep the others from being replayed.
    """
    replays = Replays([], [])
    with progress() as bars:
        for directory in directories:
            try:
                report = _replay_one(read_capture(directory, settings), options, bars)
            except KvbraidError as error:
                replays.refused.append(error)
                continue
            replays.reports.append(report)
            if as_json:
                print(json.dumps(report.to_dict()), flush=True)  # noqa: T201 - the output itself
    if replays.reports and not as_json:
        print_listing(stdout(), listing_of(replays.reports))
    return replays


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
    *map(Column, (*_COUNTS, "excused", "%", "expected %", "width", "promised", "reused")),
    Column("why not exact", is_left=True, wraps=True),
)


def listing_of(reports: Sequence[Report]) -> Listing:
    """Return the table of replays, with a row for each capture; below several, their total."""
    name = f"all {counted(len(reports), 'capture')}"
    footer = [_row(total(reports, name))] if len(reports) > 1 else []
    title = "predicted before the fact, against the engine's own reuse"
    return Listing(title=title, columns=_COLUMNS, rows=[*map(_row, reports)], footer=footer)


def _row(report: Report) -> Row:
    return (
        report.capture,
        *(str(getattr(report, name)) for name in _COUNTS.values()),
        str(report.excused),
        f"{percent(report.exact, report.requests, decimals=2):.2f}",
        f"{percent(report.expected_exact, report.requests, decimals=2):.2f}",
        f"{report.width_sum / max(1, report.requests):.1f}",
        str(report.lower_sum),
        str(report.true_sum),
        ", ".join(f"{name} {count}" for name, count in report.by_class.items() if count),
    )
