"""Print as a table what `make bench ONLY=retention` measured last, and what it adds up to.

`python -m bench.retention.table` reads `.bench/results.json`, or the file that is given.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

RESULTS = Path(__file__).resolve().parents[2] / ".bench" / "results.json"
POLICIES = ("dense", "interval-0", "interval-1k", "interval-8k", "value")

Figures: TypeAlias = dict[str, Any]


def lines(rows: Sequence[Figures]) -> Iterator[str]:
    """Yield the table: a line per cell, rates in percent, the difference in points."""
    yield f"| cell | {' | '.join(POLICIES)} | ahead |"
    yield "|---|" + "--:|" * (len(POLICIES) + 1)
    for row in rows:
        rates = row["beside"]
        shown = (f"{rates[policy]:.1f}" if policy in rates else "" for policy in POLICIES)
        yield f"| {cell_of(row)} | {' | '.join(shown)} | {row['ours']:+.1f} |"


def summary(rows: Sequence[Figures]) -> Iterator[str]:
    """Yield what all cells add up to."""
    leads = [row["ours"] for row in rows]
    missed = [row for row in rows if not row["met"]]
    ahead = sum(lead >= 5 for lead in leads)
    span = f"{min(leads):+.1f} to {max(leads):+.1f} points, mean {mean(leads):+.2f}"
    yield f"{len(rows)} cells: {span};"
    yield f"ahead by 5 or more in {ahead}, below the target in {len(missed)}."
    yield from (f"- {cell_of(row)}" for row in missed)


def cell_of(row: Figures) -> str:
    """Return the name of a row's cell."""
    return str(row["bench"]).removeprefix("retention_")


def main() -> None:
    """Print the table of a results file."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    measured = json.loads(path.read_text())["rows"]
    rows = [row for row in measured if row["bench"].startswith("retention_") and row.get("beside")]
    if not rows:
        sys.exit(f"{path}: no row of retention; run `make bench ONLY=retention` first")
    print("\n".join((*lines(rows), "", *summary(rows))))


if __name__ == "__main__":
    main()
