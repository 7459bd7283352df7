"""Run vLLM's own tests of its cache and of failed loads on ours, and say what came of it.

    python -m upstream.run FOLDER         the folder that fetch.py filled

Prints what is amiss, a count by file, and one line of JSON. The exit status is the verdict's.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .verdict import Case, Verdict, cases_of, judge, read_list

HERE: Final = Path(__file__).resolve().parent
TESTS: Final = (
    "tests/v1/core/test_prefix_caching.py",
    "tests/v1/core/test_single_type_kv_cache_manager.py",
    "tests/v1/core/prefix_cache",
    "tests/v1/kv_connector/unit",
)


def run_tests(folder: Path) -> Path:
    """Run the tests in a process in which `tests` is vLLM's package; return the outcomes' file."""
    outcomes = folder / "outcomes.json"
    outcomes.unlink(missing_ok=True)
    path = [str(folder), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "KVBRAID_UPSTREAM_OUTCOMES": str(outcomes),
        "HF_HUB_OFFLINE": "1",
    }
    options = ["-q", "--tb=no", "-r", "E", "-p", "no:randomly", "-p", "no:cacheprovider"]
    settings = ["-c", str(HERE / "pytest.ini"), "--rootdir", str(folder), "-p", "upstream.plugin"]
    command = [sys.executable, "-m", "pytest", *options, *settings, *TESTS]
    log = folder / "pytest.log"
    with log.open("w") as output:
        subprocess.run(
            command,
            check=False,  # Tests that fail are judged below.
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if not outcomes.exists():
        sys.exit(f"the tests did not run:\n{log.read_text()}")
    return outcomes


def show(verdict: Verdict) -> None:
    """Print the verdict; the last line is for programs."""
    for complaint in verdict.complaints:
        print(f"  {complaint}")
    columns: dict[str, Sequence[Case]] = {
        "passed": verdict.passed,
        "listed": verdict.listed,
        "apart": verdict.apart,
    }
    counts = {name: Counter(entry.file for entry in rows) for name, rows in columns.items()}
    print(f"{'cases':64}{'passed':>8}{'listed':>8}{'apart':>8}")
    for file in sorted({file for column in counts.values() for file in column}):
        numbers = "".join(f"{column[file]:8}" for column in counts.values())
        print(f"{file:64}{numbers}")
    print("apart: passed, and never called our code")
    print(json.dumps({"upstream": verdict.counts()}, separators=(",", ":")))


def main(folder: Path) -> int:
    """Run, judge and show."""
    outcomes = json.loads(run_tests(folder).read_text())
    verdict = judge(cases_of(outcomes), read_list(HERE / "cannot.toml"))
    show(verdict)
    return bool(verdict.complaints)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
