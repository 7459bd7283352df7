"""The verdict on the outcomes of vLLM's own tests, given which of them cannot pass on our cache.

A test function has a case for each set of its parameters, and each case is judged by itself. A
case that passes without ever calling our code says nothing about it and is counted separately. The
list must be exact: it is a failure if a case fails and is not listed, or if a listed one passes or
is not where the list says.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

LEAST_PASSED: Final = {
    "test_prefix_caching.py": 85,
    "prefix_cache/": 125,
    "kv_connector/unit/": 14,
}
"""Cases that have to pass, by part of their file's path."""


class Case(NamedTuple):
    """A case of a test function; `parameters` as pytest names them, empty without any."""

    file: str
    name: str
    parameters: str
    line: int
    passed: bool
    reached: bool
    why: str


class Listed(NamedTuple):
    """A function that cannot pass, and what it reaches for; `cases`: only these, if any."""

    file: str
    name: str
    line: int
    reaches: str
    cases: frozenset[str] = frozenset()

    def has(self, case: Case) -> bool:
        """Return whether the case is one that cannot pass."""
        return not self.cases or case.parameters in self.cases


@dataclass(kw_only=True)
class Verdict:
    """Cases by what became of them; `complaints` are sentences."""

    passed: list[Case] = field(default_factory=list)
    apart: list[Case] = field(default_factory=list)
    listed: list[Case] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the numbers to publish."""
        return {
            "passed": len(self.passed),
            "failed": len(self.complaints),
            "listed": len(self.listed),
        }


def cases_of(outcomes: Mapping[str, Mapping[str, Any]]) -> list[Case]:
    """Return the cases that the plugin noted."""
    cases = []
    for node, outcome in outcomes.items():
        function, _, parameters = node.partition("[")
        file, name = function.split("::")
        cases.append(
            Case(
                file,
                name,
                parameters.removesuffix("]"),
                outcome.get("line", 0),
                outcome.get("passed", False),
                outcome["reached"],
                outcome.get("why", ""),
            )
        )
    return cases


def read_list(path: Path) -> list[Listed]:
    """Read the functions that cannot pass."""
    tables = tomllib.loads(path.read_text())["cannot"]
    return [
        Listed(
            table["file"],
            name,
            line,
            table["reaches"],
            frozenset(table.get("cases", {}).get(name, ())),
        )
        for table in tables
        for name, line in table["functions"].items()
    ]


def judge(cases: Iterable[Case], listed: Iterable[Listed]) -> Verdict:
    """Compare what happened with what is known."""
    verdict = Verdict()
    known = {(entry.file, entry.name): entry for entry in listed}
    for case in cases:
        entry = known.get((case.file, case.name))
        if entry is not None and entry.has(case):
            _judge_listed(verdict, case, entry)
        elif not case.passed:
            verdict.complaints.append(f"{_place(case)} fails and is not listed: {case.why}")
        else:
            (verdict.passed if case.reached else verdict.apart).append(case)
    verdict.complaints += _not_run(verdict.listed, known.values())
    for part, least in LEAST_PASSED.items():
        count = sum(part in case.file for case in verdict.passed)
        if count < least:
            verdict.complaints.append(f"{count} cases of {part} pass; expected {least}")
    return verdict


def _place(case: Case) -> str:
    parameters = f"[{case.parameters}]" if case.parameters else ""
    return f"{case.file}:{case.line} {case.name}{parameters}"


def _judge_listed(verdict: Verdict, case: Case, entry: Listed) -> None:
    verdict.listed.append(case)
    if case.passed:
        verdict.complaints.append(f"{_place(case)} passes: take it off the list")
    elif entry.line != case.line:
        verdict.complaints.append(f"{_place(case)} is listed at line {entry.line}")


def _not_run(ran: Iterable[Case], entries: Iterable[Listed]) -> Iterable[str]:
    seen: dict[tuple[str, str], set[str]] = {}
    for case in ran:
        seen.setdefault((case.file, case.name), set()).add(case.parameters)
    for entry in entries:
        there = seen.get((entry.file, entry.name), set())
        missing = sorted(entry.cases - there)
        if not there or missing:
            which = f"[{', '.join(missing)}]" if missing else ""
            yield f"{entry.file}:{entry.line} {entry.name}{which} is listed, but was not run"
