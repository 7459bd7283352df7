"""Run the benchmarks: one JSON line per row on stdout, progress and spreads on stderr.

`make bench`, `make bench ONLY=fleet` (files bench_fleet*.py), `make bench ONLY=score_8k` (a row).
Each area runs in the environment that has its rival, where that exists, else in this one.
The lines, the machine and the commit are also written to `.bench/results.json`. A row that
cannot be measured is a line with nulls, and exit status 1; a missed target is not an error.
"""

import argparse
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

ENVIRONMENTS = {"cache": ".venv-vllm", "fire": ".venv-bench", "fleet": ".venv-bench"}
"""Where an area is measured, beside its rival if it has one; files' names begin with the area."""


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `bench.row` on a module in its area's environment."""
    area = module.split("_")[1]
    python = ROOT / ENVIRONMENTS[area] / "bin" / "python"
    executable = str(python) if python.exists() else sys.executable
    return [executable, "-m", "bench.row", module, *arguments]


def selected(only: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules and rows that are measured by one command.

    `only` names them by file, group or row. Importing vLLM takes longer than measuring, so that
    the rows of a module share it; other modules start a process for each row.
    """
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        whole_file = only is None or path.stem.removeprefix("bench_").startswith(only)
        if not whole_file and f'"{only}"' not in path.read_text():
            continue  # Its environment may not be there, and need not be.
        listed = subprocess.run(
            command_of(path.stem), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        rows = [name for name in json.loads(listed.stdout) if whole_file or name == only]
        if "PRELOAD" in path.read_text():
            yield path.stem, rows
        else:
            yield from ((path.stem, [row]) for row in rows)


def measure(module: str, rows: list[str], side: str | None) -> Iterator[dict[str, Any]]:
    """Yield the figures of each row that could be measured, as they come."""
    command = command_of(module, *rows)
    if side:
        command += ["--side", side]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # Asked for above.
        for text in process.stdout:
            yield json.loads(text)


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
    chosen = list(selected(options.only))
    if not chosen:
        print(f"no benchmark is called {options.only!r}; see bench/bench_*.py", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    report = {"setting": setting(), "rows": results}
    failed: list[str] = []
    for module, rows in chosen:
        missing = dict.fromkeys(rows)
        for figures in measure(module, rows, options.side):
            del missing[figures["bench"]]
            results.append(figures)
            print(json.dumps(figures), flush=True)
        for row in missing:
            results.append(unmeasured(row))
            print(json.dumps(results[-1]), flush=True)
        failed += missing
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
