"""docs/engine.md names every field and every reason, and is what the example does."""

import re
from dataclasses import fields
from typing import Any

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
from kvbraid.events import BlockStored, decode

from tests.docs.markdown import ROOT, blocks

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


@pytest.mark.parametrize("page", ["engine.md", "cache.md"])
def test_the_first_examples_payload_has_the_events_of_its_steps(page: str) -> None:
    """Four whole blocks of the prompt's 70 tokens, in each of the two groups."""
    program = next(b.text for b in blocks(ROOT / "docs" / page) if b.language == "python")
    names: dict[str, Any] = {}
    exec(program, names)
    events = decode(names["payload"]).events
    stored = [
        (event.group_idx, event.token_ids, len(event.block_hashes))
        for event in events
        if isinstance(event, BlockStored)
    ]
    assert stored == [(group, tuple(range(64)), 4) for group in (0, 1)]
    assert len(events) == len(stored)


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
