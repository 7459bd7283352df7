"""Run the benchmarks: one JSON line per row on stdout, progress and spreads on stderr.

`make bench` runs all of them. ONLY=fleet runs an area, ONLY=fleet_score one of its files, and
ONLY=score_8k a row. An area runs in the environment of its rival if there is one, otherwise in
this one. The lines, the machine and the commit are also written to `.bench/results.json`, and to
bench/RESULTS.md if both sides were measured and nothing in the environment makes rows smaller. A
row that cannot be measured gives a line with nulls and exit status 1; a missed target is not an
error.
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

from bench.harness.results import write

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENTS = {
    "beyond": ".venv-bench",
    "cache": ".venv-vllm",
    "fire": ".venv-bench",
    "fleet": ".venv-bench",
    "layout": ".venv-wheel",
    "operate": ".venv-bench",
    "recovery": ".venv-wheel",
    "retention": ".venv-wheel",
    "router": ".venv-bench",
    "transfer": ".venv-vllm",
}
"""The environment of each area (a folder beside this one): that of its rival if it has one."""


def files(only: str | None) -> Iterator[tuple[Path, bool]]:
    """Yield the files to measure, each with whether all its rows are measured or only one."""
    for area in ENVIRONMENTS:
        for path in sorted((ROOT / "bench" / area).glob("bench_*.py")):
            name = f"{area}_{path.stem.removeprefix('bench_')}"
            is_whole = only is None or name.startswith(only)
            if is_whole or f'"{only}"' in path.read_text():
                yield path, is_whole


def command_of(path: Path, *arguments: str) -> list[str]:
    """Return the command that runs `bench.harness.row` on a file in its area's environment."""
    area = path.parent.name
    python = ROOT / ENVIRONMENTS[area] / "bin" / "python"
    executable = str(python) if python.exists() else sys.executable
    return [executable, "-m", "bench.harness.row", f"bench.{area}.{path.stem}", *arguments]


def selected(only: str | None) -> Iterator[tuple[Path, list[str]]]:
    """Yield the files and rows that are measured by one command.

    Importing vLLM takes longer than measuring, so the rows of a file that needs vLLM share one
    process. The rows of other files have a process each.
    """
    for path, is_whole in files(only):
        listed = subprocess.run(
            command_of(path), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        rows = [name for name in json.loads(listed.stdout) if is_whole or name == only]
        if "PRELOAD" in path.read_text():
            yield path, rows
        else:
            yield from ((path, [row]) for row in rows)


def measure(path: Path, rows: list[str], side: str | None) -> Iterator[dict[str, Any]]:
    """Yield the figures of each row that could be measured, as they come."""
    command = command_of(path, *rows)
    if side:
        command += ["--side", side]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # Opened as a pipe above.
        for text in process.stdout:
            yield json.loads(text)


def unmeasured(row: str) -> dict[str, Any]:
    """Return the line of a row that failed."""
    names = ("ours", "rival", "unit", "ratio", "target")
    return {"bench": row, **dict.fromkeys(names), "met": False}


def setting() -> dict[str, Any]:
    """Return the machine and the commit on which the figures were taken."""
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
    """Measure the selected rows, or print the environments that they need."""
    parser = argparse.ArgumentParser(prog="python -m bench.harness.run")
    parser.add_argument("--only", help="an area (fleet), a file (fleet_score) or a row (score_8k)")
    parser.add_argument("--side", choices=("ours", "rival"), help="measure only this side")
    parser.add_argument(
        "--environments", action="store_true", help="print the environments that this needs"
    )
    options = parser.parse_args()
    areas = dict.fromkeys(path.parent.name for path, _ in files(options.only))
    if not areas:
        print(f"no benchmark is called {options.only!r}; see bench/*/bench_*.py", file=sys.stderr)
        return 2
    if options.environments:
        print(*dict.fromkeys(ENVIRONMENTS[area] for area in areas))
        return 0
    return report(options.only, options.side)


def report(only: str | None, side: str | None) -> int:
    """Measure the selected rows, print and store them; return the exit status."""
    results: list[dict[str, Any]] = []
    measured: list[tuple[str, dict[str, Any]]] = []
    taken = setting()
    written = {"setting": taken, "rows": results}
    failed: list[str] = []
    for path, rows in selected(only):
        missing = dict.fromkeys(rows)
        for figures in measure(path, rows, side):
            del missing[figures["bench"]]
            results.append(figures)
            measured.append((path.parent.name, figures))
            print(json.dumps(figures), flush=True)
        for row in missing:
            results.append(unmeasured(row))
            print(json.dumps(results[-1]), flush=True)
        failed += missing
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(written, indent=1) + "\n")
    if not side and not any(name.startswith("KVBRAID_BENCH_") for name in os.environ):
        write(taken, measured)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
