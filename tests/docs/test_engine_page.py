"""docs/engine.md names every field and every reason, and is what the example does."""

import re
from dataclasses import fields

import pytest
from kvbraid.cache import (
    Allocation,
    CacheConfig,
    CacheManager,
    GroupOptions,
    Match,
    Need,
    NoFit,
    Work,
)

from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "engine.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_engine.py").read_text()
RECORDS = {
    "Need": [field.name for field in fields(Need)],
    "GroupOptions": [field.name for field in fields(GroupOptions)],
    "CacheConfig": [field.name for field in fields(CacheConfig)],
    "Allocation": [field.name for field in fields(Allocation)],
    "Match": list(Match._fields),
    "Work": list(Work._fields),
    "NoFit": [reason.name for reason in NoFit],
}


def rows() -> list[str]:
    return [line for line in PAGE.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(("record", "names"), RECORDS.items(), ids=RECORDS.keys())
def test_every_field_has_its_row(record: str, names: list[str]) -> None:
    named = {name for row in rows() for name in re.findall(r"`(?:\w+\.)?(\w+)", row)}
    assert [name for name in names if name not in named] == [], record


def test_every_call_of_the_example_is_explained() -> None:
    calls = set(re.findall(r"self\.cache\.(\w+)\(", EXAMPLE))
    assert {"start_step", "allocate", "take_work", "roll_back", "preempt"} <= calls
    assert [call for call in sorted(calls) if f"`{call}" not in PAGE] == []


def test_every_call_that_the_page_names_exists() -> None:
    """The right column of the tables from other engines, and the numbered calls."""
    ours = re.findall(r"^\|[^|\n]*\| `([a-z_]+)(?:\(|`)", PAGE, re.MULTILINE)
    assert len(ours) > 20
    others = {name for names in RECORDS.values() for name in names}
    assert [n for n in ours if not hasattr(CacheManager, n) and n not in others] == []
