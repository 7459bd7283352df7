"""Plants each mutant of the table in a copy of the tree, and expects its tests to fail.

`python -m tests.mutants.run [NAME ...]` prints a row per mutant and one line of JSON, and exits
with 1 unless all are killed. The copy and its build stay under `target/mutants`, so that a mutant
costs an incremental build and its tests. Nothing outside of `target` is written.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.pytest_report import REPORT
from tests.mutants.table import MUTANTS

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / "target" / "mutants"
TREE: Final = PLACE / "tree"
BUILD: Final = PLACE / "build"
COPIED: Final = ("Cargo.lock", "Cargo.toml", "clippy.toml", "crates", "pyproject.toml", "python")
TESTED: Final = ("tests", "rust-toolchain.toml")
OWN_TREE: Final = (
    "tests/test_architecture.py::test_the_package_under_test_is_the_one_the_run_claims_to_test"
)
"""Fails unless the copy's package is what is imported."""

ASSERTIONS: Final = frozenset({"AssertionError", "PanicException"})
"""How a test fails that has caught something; the core's integrity check panics."""

TIMEOUT: Final = 300  # Seconds a test may take; shared machines are slow.
SHOWN: Final = 3_000  # Characters of what pytest printed, when it is asked for.

ENVIRONMENT: Final = {
    "CARGO_TARGET_DIR": str(BUILD),
    # Release builds check neither: what users run is what must be caught.
    "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
    "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
    "HYPOTHESIS_PROFILE": "mutants",
    "PYTHONPATH": os.pathsep.join((str(TREE / "python"), str(TREE))),
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of tests: those that passed, and how the others failed."""

    passed: Sequence[str]
    failed: Mapping[str, Sequence[str]]
    printed: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one mutant; `problem` is empty if it was killed."""

    mutant: Mutant
    problem: str
    seconds: float

    def __str__(self) -> str:
        word = f"NOT KILLED: {self.problem}" if self.problem else "killed"
        return f"{self.mutant.name:22} {self.seconds:5.1f} s  {word}"


def tracked_files() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *COPIED, *TESTED],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listing.stdout.decode().split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def write(path: Path, content: bytes) -> None:
    """Write what has changed only: what has not needs no new build."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def copy_tree() -> None:
    """Make the copy equal to the tree, its own build artefacts aside."""
    names = tracked_files()
    for name in names:
        write(TREE / name, (ROOT / name).read_bytes())
    wanted = {TREE / name for name in names}
    for path in TREE.rglob("*"):
        if path.is_file() and path not in wanted and path.suffix != ".so":
            path.unlink()
    # A run that was stopped may have left the build of a mutant.
    shutil.rmtree(BUILD / "debug" / "incremental", ignore_errors=True)
    for root in TREE.glob("crates/*/src/lib.rs"):
        root.touch()


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Have a mutant's edits in the copy."""
    before = {edit.file: (TREE / edit.file).read_bytes() for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            path = TREE / edit.file
            text = path.read_text()
            assert text.count(edit.text) == 1, f"{edit.file}: {edit.text!r} is not there once"
            path.write_text(text.replace(edit.text, edit.instead))
        yield
    finally:
        for name, content in before.items():
            (TREE / name).write_bytes(content)


def build() -> str:
    """Build the copy's native module into its package; return the compiler's complaint, if any."""
    done = subprocess.run(
        ["cargo", "build", "--quiet", "--locked", "--package", "kvbraid-python"],
        cwd=TREE,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        shutil.copy(BUILD / "debug" / "lib_native.so", TREE / "python/kvbraid/_native.abi3.so")
    return done.stderr if done.returncode else ""


def verdict_on(nodes: Sequence[str]) -> Verdict:
    """Run tests in the copy; nothing passed or failed if pytest did not get as far as that."""
    report = PLACE / "verdict.json"
    report.write_text('{"passed": [], "failed": {}}')
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "tests.mutants.pytest_report", f"--timeout={TIMEOUT}", *nodes],
        cwd=TREE,
        env=os.environ | ENVIRONMENT | {REPORT: str(report)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Verdict(**json.loads(report.read_text()), printed=done.stdout + done.stderr)


def problem_of(mutant: Mutant) -> str:
    """Say why a mutant does not count as killed; nothing if it does."""
    if errors := build():
        return f"it does not build\n{errors}"
    verdict = verdict_on(mutant.killed_by)
    for node in mutant.killed_by:
        if node in verdict.passed:
            return f"{node} passes"
        if not ASSERTIONS & set(verdict.failed.get(node, ())):
            how = verdict.failed.get(node, "not run")
            return f"{node} fails otherwise: {how}\n{verdict.printed[-SHOWN:]}"
    return ""


def judge(mutant: Mutant) -> Outcome:
    start = time.monotonic()
    with planted(mutant):
        problem = problem_of(mutant)
    return Outcome(mutant, problem, time.monotonic() - start)


def check_unplanted(mutants: Sequence[Mutant]) -> None:
    """Exit unless all tests pass without any mutant."""
    if errors := build():
        sys.exit(f"the tree does not build\n{errors}")
    nodes = {OWN_TREE, *(node for mutant in mutants for node in mutant.killed_by)}
    verdict = verdict_on(sorted(nodes))
    if verdict.failed or set(verdict.passed) != nodes:
        missing = sorted(nodes - set(verdict.passed))
        sys.exit(f"without mutants, these do not pass: {missing}\n{verdict.printed[-SHOWN:]}")


def main(names: Sequence[str]) -> int:
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        sys.exit(f"no such mutants: {sorted(unknown)}; the table has {[m.name for m in MUTANTS]}")
    start = time.monotonic()
    mutants = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    copy_tree()
    check_unplanted(mutants)
    print(f"{'unplanted':22} {time.monotonic() - start:5.1f} s  passes", flush=True)  # noqa: T201
    killed = 0
    for mutant in mutants:
        outcome = judge(mutant)
        killed += not outcome.problem
        print(outcome, flush=True)  # noqa: T201 - the result.
    print(json.dumps({"mutants": {"planted": len(mutants), "killed": killed}}))  # noqa: T201
    return int(killed < len(mutants))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
