"""The verdict on the outcomes of vLLM's own tests, given which of them cannot pass on our cache.

A function passes if each of its cases does. A function that passes without ever calling our code
says nothing about it and is counted separately. The list must be exact: it is a failure if a
function fails and is not listed, or if a listed one passes or is not where the list says.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

LEAST_PASSED: Final = {
    "test_prefix_caching.py": 65,
    "prefix_cache/": 40,
    "kv_connector/unit/": 8,
}
"""Functions that have to pass, by part of their file's path."""


class Function(NamedTuple):
    """A test function over all its cases."""

    file: str
    name: str
    line: int
    passed: bool
    reached: bool
    why: str


class Listed(NamedTuple):
    """A function that cannot pass, and what it reaches for."""

    file: str
    name: str
    line: int
    reaches: str


@dataclass(kw_only=True)
class Verdict:
    """Functions by what became of them; `complaints` are sentences."""

    passed: list[Function] = field(default_factory=list)
    apart: list[Function] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the numbers to publish."""
        return {
            "passed": len(self.passed),
            "failed": len(self.complaints),
            "listed": len(self.listed),
        }


def functions_of(outcomes: Mapping[str, Mapping[str, Any]]) -> list[Function]:
    """Gather the cases of each function, as the plugin noted them."""
    functions: dict[tuple[str, str], Function] = {}
    for node, outcome in outcomes.items():
        file, name = node.split("[")[0].split("::")
        case = Function(
            file,
            name,
            outcome.get("line", 0),
            outcome.get("passed", False),
            outcome["reached"],
            outcome.get("why", ""),
        )
        before = functions.get((file, name), case)
        functions[file, name] = case._replace(
            passed=case.passed and before.passed,
            reached=case.reached or before.reached,
            why=before.why or case.why,
        )
    return list(functions.values())


def read_list(path: Path) -> list[Listed]:
    """Read the functions that cannot pass."""
    tables = tomllib.loads(path.read_text())["cannot"]
    return [
        Listed(table["file"], name, line, table["reaches"])
        for table in tables
        for name, line in table["functions"].items()
    ]


def judge(functions: Iterable[Function], listed: Iterable[Listed]) -> Verdict:
    """Compare what happened with what is known."""
    verdict = Verdict(listed=list(listed))
    known = {(entry.file, entry.name): entry for entry in verdict.listed}
    for function in functions:
        entry = known.pop((function.file, function.name), None)
        place = f"{function.file}:{function.line} {function.name}"
        if entry is not None:
            if function.passed:
                verdict.complaints.append(f"{place} passes: take it off the list")
            elif entry.line != function.line:
                verdict.complaints.append(f"{place} is listed at line {entry.line}")
        elif not function.passed:
            verdict.complaints.append(f"{place} fails and is not listed: {function.why}")
        elif function.reached:
            verdict.passed.append(function)
        else:
            verdict.apart.append(function)
    for entry in known.values():
        verdict.complaints.append(
            f"{entry.file}:{entry.line} {entry.name} is listed, but was not run"
        )
    for part, least in LEAST_PASSED.items():
        count = sum(part in function.file for function in verdict.passed)
        if count < least:
            verdict.complaints.append(f"{count} functions of {part} pass; expected {least}")
    return verdict
