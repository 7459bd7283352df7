"""Measure rows of one module and print a JSON line for each; everything else goes to stderr.

`run.py` starts `python -m bench.harness.row MODULE [ROW …] [--side SIDE]`. No row runs in the
memory that another row left: if there are several, each is measured in a fork. The module that
MODULE names as `PRELOAD` is imported once, before the forks. Without ROW, the rows and their
questions are printed, except rows that lack an input.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
from collections.abc import Iterable, Sequence

from bench.harness.measure import Figures, Row, take_samples


def line(row: Row, taken: dict[str, Figures]) -> str:
    """Return the row's JSON line; null stands for a side that was not measured.

    The figures beside the row are in a field of their own, if they were measured.
    """
    ours, rival = (taken[side].median if side in taken else None for side in ("ours", "rival"))
    better, worse = (ours, rival) if row.larger_is_better else (rival, ours)
    ratio = better / worse if better and worse else None
    figures: dict[str, object] = {
        "bench": row.name,
        "ours": _rounded(ours),
        "rival": _rounded(rival),
        "unit": row.unit,
        "ratio": _rounded(ratio),
        "target": str(row.target),
        "met": None if ours is None else row.target.is_met(ours, ratio),
    }
    if not row.beside.keys().isdisjoint(taken):
        figures["beside"] = {name: _rounded(taken[name].median) for name in row.beside}
    return json.dumps(figures)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def measure(row: Row, side: str | None) -> None:
    """Measure both sides of a row, or one, and print the row's line."""
    sides = [side] if side else ["ours", "rival", *row.beside]
    if row.check and not side:
        row.check()
    taken = take_samples(row, sides)
    for name, figures in taken.items():
        text = f"  {name}: {figures.median:.4g} {row.unit} ({figures.spread})"
        print(text, file=sys.stderr)
    print(line(row, taken), flush=True)


def present(rows: Iterable[Row]) -> dict[str, str]:
    """Return the questions of the rows that lack nothing; say why the others are left out."""
    left_out: dict[str, list[str]] = {}
    for row in rows:
        if row.lacks:
            left_out.setdefault(row.lacks, []).append(row.name)
    for reason, names in left_out.items():
        print(f"left out: {', '.join(names)}: {reason}", file=sys.stderr)
    return {row.name: row.question for row in rows if not row.lacks}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows that the command line names, or list them all."""
    parser = argparse.ArgumentParser(prog="python -m bench.harness.row")
    parser.add_argument("module")
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--side", choices=("ours", "rival"), help="measure only this side")
    options = parser.parse_args(arguments)
    module = importlib.import_module(options.module)
    rows: dict[str, Row] = {row.name: row for row in module.ROWS}
    if not options.rows:
        print(json.dumps(present(rows.values())))
        return
    if options.side != "ours" and hasattr(module, "PRELOAD"):
        importlib.import_module(module.PRELOAD)
    fork = multiprocessing.get_context("fork")
    for name in options.rows:
        print(f"{name}: {rows[name].question}", file=sys.stderr, flush=True)
        child = fork.Process(target=measure, args=(rows[name], options.side))
        if len(options.rows) == 1:
            child.run()
        else:
            child.start()
            child.join()


if __name__ == "__main__":
    main()
