"""Prints what came of the live engines: one line at column 0, for programs."""

import json
from collections import Counter
from typing import Any, Final

import pytest

SEEN: Final[dict[str, Counter[str]]] = {}
"""What live tests counted, by model."""
LATE: Final[dict[str, Counter[str]]] = {}
"""What came of late reports, by model and mode."""
STOCK: Final[dict[str, str]] = {}
"""What became of the engine's own scheduler, by model."""


def pytest_terminal_summary(terminalreporter: Any) -> None:  # noqa: ANN401 - pytest's own type.
    if SEEN:
        total: Counter[str] = sum(SEEN.values(), Counter())
        keys = ("failed_loads", "mismatches", "near_ties")
        changed = f"{total['control_changed']}/{total['control']}"
        line: dict[str, Any] = {
            "models": {name: counts["failed_loads"] for name, counts in SEEN.items()}
        }
        line |= {key: total[key] for key in keys}
        line |= {"control_changed": changed, "recomputed": total["recomputed"]}
        terminalreporter.write_line(json.dumps({"recovery": line}))
    if LATE:
        terminalreporter.write_line(json.dumps({"late_reports": LATE}))
    if STOCK:
        terminalreporter.write_line(json.dumps({"stock": STOCK}))


@pytest.fixture
def seen() -> dict[str, Counter[str]]:
    return SEEN


@pytest.fixture
def late() -> dict[str, Counter[str]]:
    return LATE


@pytest.fixture
def stock() -> dict[str, str]:
    return STOCK
