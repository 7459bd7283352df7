"""Writes bench/RESULTS.md: every row as `make bench` printed it last, and the run that did.

Invariant: nobody writes the page by hand. A run replaces the rows that it measured and leaves the
others. A row is marked if the code that it measures is not that of its run's commit.
"""

import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "bench" / "RESULTS.md"

_CACHE: Final = (
    "crates/core/src/adaptive",
    "crates/core/src/blocks",
    "crates/core/src/cache",
    "crates/core/src/hash",
    "crates/core/src/rule",
    "crates/python/src/cache",
    "python/kvbraid/cache",
)
_INDEX: Final = (
    "crates/core/src/fleet",
    "crates/core/src/wire",
    "crates/python/src/fleet",
    "python/kvbraid/fleet",
)
MEASURED: Final[Mapping[str, tuple[str, ...]]] = {
    "beyond": (
        *_CACHE,
        *_INDEX,
        "python/kvbraid/integrations/replicas",
        "python/kvbraid/policy",
        "python/kvbraid/service/http",
        "python/kvbraid/service/shards",
        "python/kvbraid/service/shared",
        "python/kvbraid/sim/routing",
    ),
    "cache": _CACHE,
    "fire": _INDEX,
    "fleet": (*_INDEX, "python/kvbraid/service"),
    "layout": ("python/kvbraid/layout", "python/kvbraid/models"),
    "operate": (*_INDEX, "python/kvbraid/console", "python/kvbraid/service"),
    "recovery": (*_CACHE, "crates/core/src/recovery", "python/kvbraid/recovery"),
    "retention": _CACHE,
    "router": (
        *_CACHE,
        *_INDEX,
        "python/kvbraid/gateway",
        "python/kvbraid/policy",
        "python/kvbraid/sim/routing",
    ),
    "transfer": (*_CACHE, "python/kvbraid/layout", "python/kvbraid/transfer"),
}
"""The code that the rows of each area measure, beside the area's own folder."""

OPENING: Final = """\
# Results

`make bench` writes this page, and nobody else does: each row is what it printed last, and its run.
[The guide](README.md) says what the figures are. A row is marked *older* if the code that it
measures is not that of its run's commit.
"""
RUNS: Final = "| run | commit | machine | load before it | Python |\n|---|---|---|--:|---|\n"
ROWS: Final = """\
| bench | ours | rival | unit | ratio | target | met | beside | run |
|---|--:|--:|---|--:|---|---|---|---|
"""
OLDER: Final = ", *older*"

Figures: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class Page:
    """The cells of the page: those of runs by their date, those of rows by area and name."""

    runs: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> "Page":
        """Read the page that `text` printed, or any other as an empty one."""
        page = cls()
        for part in text.split("\n## ")[1:]:
            area, _, table = part.partition("\n")
            lines = [line.strip("| ").split(" | ") for line in table.splitlines() if "|" in line]
            for first, *others in lines[2:]:
                known = page.runs if area == "Runs" else page.rows.setdefault(area, {})
                known[first] = [cell.removesuffix(OLDER) for cell in others]
        return page

    def add(self, setting: Figures, area: str, row: Figures) -> None:
        """Replace a row by what a run printed."""
        run = setting["date"][:16].replace("T", " ")
        machine = f"{setting['cores']} x {setting['cpu']}"
        self.runs[run] = [setting["commit"], machine, f"{setting['load']:.1f}", setting["python"]]
        beside = "; ".join(f"{name}: {_shown(it)}" for name, it in row.get("beside", {}).items())
        names = ("ours", "rival", "unit", "ratio", "target", "met")
        cells = [*(_shown(row[name]) for name in names), beside or "-", run]
        self.rows.setdefault(area, {})[f"`{row['bench']}`"] = cells

    def text(self, is_older: Callable[[str, str], bool]) -> str:
        """Return the page; `is_older` says whether the code of an area is not a commit's."""
        used = {cells[-1] for rows in self.rows.values() for cells in rows.values()}
        lines = [_line(run, *cells) for run, cells in sorted(self.runs.items()) if run in used]
        parts = [OPENING, "## Runs\n", RUNS + "".join(lines)]
        for area, rows in sorted(self.rows.items()):
            lines = []
            for name, (*cells, run) in rows.items():
                mark = OLDER if is_older(area, self.runs[run][0]) else ""
                lines.append(_line(name, *cells, run + mark))
            parts += [f"## {area}\n", ROWS + "".join(lines)]
        return "\n".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:.15g}" if isinstance(value, float) else str(value)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


@cache
def has_changed(area: str, commit: str) -> bool:
    """Whether the code of an area differs from a commit's, or nobody knows that commit."""
    paths = [*MEASURED[area], f"bench/{area}"]
    command = ["git", "diff", "--quiet", commit.removesuffix("-dirty"), "--", *paths]
    return (
        subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode != 0
    )


def write(setting: Figures, measured: Iterable[tuple[str, Figures]], page: Path = PAGE) -> None:
    """Add the rows of a run, each with its area, to the page."""
    whole = Page.read(page.read_text())
    for area, row in measured:
        whole.add(setting, area, row)
    page.write_text(whole.text(has_changed))
