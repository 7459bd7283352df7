"""Run the benchmarks: one JSON line per row on stdout, progress and spreads on stderr.

`make bench`, `make bench ONLY=fleet` (files bench_fleet*.py), `make bench ONLY=score_8k` (a row).
The lines, the machine and the commit are also written to `.bench/results.json`. A row that
cannot be measured is a line with nulls, and exit status 1; a missed target is not an error.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def selected(only: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield (module, row, question) of every row that `only` names by file, group or row."""
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        module = importlib.import_module(f"bench.{path.stem}")
        whole_file = only is None or path.stem.removeprefix("bench_").startswith(only)
        for row in module.ROWS:
            if whole_file or row.name == only:
                yield path.stem, row.name, row.question


def measure(module: str, row: str, side: str | None) -> dict[str, Any] | None:
    """Measure one row in a process of its own; None when that failed."""
    command = [sys.executable, "-m", "bench.row", module, row]
    if side:
        command += ["--side", side]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return None
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def unmeasured(row: str) -> dict[str, Any]:
    """Return the line of a row that failed."""
    names = ("ours", "rival", "unit", "ratio", "target")
    return {"bench": row, **dict.fromkeys(names), "met": False}


def setting() -> dict[str, Any]:
    """Return where and on what the figures were taken."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    models = [
        text.partition(":")[2].strip()
        for text in Path("/proc/cpuinfo").read_text().splitlines()
        if text.startswith("model name")
    ]
    return {
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def main() -> int:
    """Measure the selected rows."""
    parser = argparse.ArgumentParser(prog="bench/run.py")
    parser.add_argument("--only", help="a file (fleet, fleet_score) or a row (score_8k)")
    parser.add_argument("--side", choices=("ours", "rival"), help="measure this side alone")
    options = parser.parse_args()
    rows = list(selected(options.only))
    if not rows:
        print(f"no benchmark is called {options.only!r}; see bench/bench_*.py", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    failed = False
    report = {"setting": setting(), "rows": results}
    for module, row, question in rows:
        print(f"{row}: {question}", file=sys.stderr)
        figures = measure(module, row, options.side)
        failed |= figures is None
        results.append(figures or unmeasured(row))
        print(json.dumps(results[-1]), flush=True)
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
