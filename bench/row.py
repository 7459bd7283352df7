"""Measure one row in this process and print its JSON line; everything else goes to stderr.

`python -m bench.row MODULE ROW [--side SIDE]`; started by `run.py`, one process a row, so that no
row runs in the memory that another left behind. Without ROW, print the rows and their questions.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from bench.measure import Figures, Row, take_samples


def line(row: Row, taken: dict[str, Figures]) -> str:
    """Return the row's JSON line; null stands for a side that was not measured."""
    ours, rival = (taken[side].median if side in taken else None for side in ("ours", "rival"))
    better, worse = (ours, rival) if row.larger_is_better else (rival, ours)
    ratio = better / worse if better and worse else None
    figures = {
        "bench": row.name,
        "ours": _rounded(ours),
        "rival": _rounded(rival),
        "unit": row.unit,
        "ratio": _rounded(ratio),
        "target": str(row.target),
        "met": None if ours is None else row.target.is_met(ours, ratio),
    }
    return json.dumps(figures)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the row that the command line names, or list the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.row")
    parser.add_argument("module")
    parser.add_argument("row", nargs="?")
    parser.add_argument("--side", choices=("ours", "rival"), help="measure this side alone")
    options = parser.parse_args(arguments)
    module = importlib.import_module(f"bench.{options.module}")
    if options.row is None:
        print(json.dumps({row.name: row.question for row in module.ROWS}))
        return
    row = next(row for row in module.ROWS if row.name == options.row)
    sides = [options.side] if options.side else ["ours", "rival", *row.beside]
    if row.check and not options.side:
        row.check()
    taken = take_samples(row, sides)
    for side, figures in taken.items():
        text = f"  {side}: {figures.median:.4g} {row.unit} ({figures.spread})"
        print(text, file=sys.stderr)
    print(line(row, taken))


if __name__ == "__main__":
    main()
