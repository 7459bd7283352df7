"""docs/recovery.md: its state is decided over as it says, and its tables are those of the code."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.loads import Cause
from kvbraid.recovery import Action, Ignored, Policy
from kvbraid.recovery.document import reading

from tests.docs.markdown import blocks, codes, firsts, tables
from tests.docs.recovery_page import PAGE, rendered


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    assert PAGE.read_text() == rendered(PAGE), "run `make docs`"
    state, shown = (block.text for block in blocks(PAGE) if block.language == "json")
    texts = [block.text for block in blocks(PAGE) if block.language == "text"]
    path = tmp_path / "state.json"
    path.write_text(state)
    printed = next(text for text in texts if text.startswith("Tainted"))
    for options, expected in (([], printed), (["--json"], None)):
        done = CliRunner().invoke(cli, ["recover", "--explain", str(path), *options])
        assert done.exit_code == 0, done.output
        if expected is None:
            assert json.loads(done.output) == json.loads(shown)
        else:
            assert done.output == expected


def test_the_example_has_an_owner_a_waiter_and_a_refusal() -> None:
    _, shown = (block.text for block in blocks(PAGE) if block.language == "json")
    first, second = json.loads(shown)["requests"].values()
    assert (first["resume"], first["recompute"], first["owner_of"]) == (8, 4, [3])
    assert (second["resume"], second["recompute"], second["waits_for"]) == (12, 0, [3])
    assert [(r["boundary"], r["group"], r["block"], r["why"]) for r in first["refused"]] == [
        (12, 0, 3, "bad")
    ]


@pytest.mark.parametrize(
    ("heading", "number", "names"),
    [
        ("What is decided", 1, Action),
        ("What is decided", 2, Ignored),
        ("The state as JSON", 0, reading.StateFields.__struct_fields__),
        ("The state as JSON", 1, reading.RunFields.__struct_fields__),
        ("The state as JSON", 2, reading.FailureFields.__struct_fields__),
        ("Policies", 0, Policy),
    ],
)
def test_a_table_names_what_there_is(heading: str, number: int, names: Iterable[str]) -> None:
    listed = firsts(tables("recovery.md", heading)[number])
    assert sorted(listed) == sorted(str(name) for name in names)


def test_all_causes_are_named() -> None:
    (row,) = (row for row in tables("recovery.md", "The state as JSON")[2] if "causes" in row[0])
    assert {cause.value for cause in Cause} <= set(codes(row[1]))
