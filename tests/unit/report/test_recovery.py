"""`kvbraid recover` as people and programs see it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from kvbraid.cli import cli
from kvbraid.recovery import read
from kvbraid.report.recovery import recovery_json, recovery_text

from tests.unit.recovery.states import GROUPS, SHARED, Json, as_bytes, run, state, states


@pytest.fixture
def explained(tmp_path: Path) -> Any:  # noqa: ANN401 - a function
    def explain(found: Json, *options: str) -> str:
        path = tmp_path / "state.json"
        path.write_bytes(as_bytes(found))
        result = CliRunner().invoke(
            cli, ["recover", "--explain", str(path), *options], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    return explain


def text_of(found: Json) -> str:
    held = read(as_bytes(found))
    return recovery_text(held, held.decide(max_refusals=9))


def json_of(found: Json) -> Any:  # noqa: ANN401 - JSON
    held = read(as_bytes(found))
    return json.loads(json.dumps(recovery_json(held, held.decide(max_refusals=9))))


def test_the_command_prints_the_decision_as_one_json_object(explained: Any) -> None:  # noqa: ANN401
    text = explained(SHARED, "--json")
    assert text.count("\n") == 1
    found = json.loads(text)
    assert list(found["requests"]) == ["3", "4"]
    first, second = found["requests"].values()
    assert (first["action"], first["resume"], first["recompute"]) == ("rewind", 0, 11)
    assert first["owner_of"] == [1]
    assert second["waits_for"] == [1]


def test_the_command_prints_sentences(explained: Any) -> None:  # noqa: ANN401
    assert explained(SHARED) == text_of(SHARED) + "\n"


def test_nothing_to_do_is_said() -> None:
    assert text_of(state()) == (
        "No request is affected: nothing failed that a load of one of them fills."
    )


def test_each_action_has_its_sentence() -> None:
    failures = {"blocks": [2]}
    again = text_of(state(failures=failures))
    assert "Request 7 goes back to 4 tokens in place, and computes 4 tokens again." in again
    assert "- Steps in flight: the outputs of 3 tokens are dropped." in again
    states_too = {"groups": [GROUPS[0], GROUPS[4]]}
    over = text_of(state(topology=states_too, failures=failures))
    assert "Request 7 gives its blocks back and starts over." in over
    fail = text_of(state(policy="fail", failures=failures))
    assert "Request 7 ends with an error, as the policy says." in fail
    handed_out = run(7, num_tokens=12, num_processed_tokens=12, num_computed_tokens=12)
    assert "ends with the error tainted_output" in text_of(state(handed_out, failures=failures))


REFUSED: dict[str, tuple[Json, dict[str, Any], str]] = {
    "a tainted block": (
        state(failures={"blocks": [2]}),
        {"boundary": 8, "group": 0, "position": 1, "block": 2, "why": "bad"},
        "group 0 (full_attention) needs block 2 at position 1, which is tainted.",
    ),
    "a window that has moved on": (
        state(run(7, tables=[[1, 2, 3], [0, 5, 6]]), failures={"blocks": [2]}),
        {"boundary": 8, "group": 1, "position": 0, "block": 0, "why": "not_held"},
        "group 1 (sliding_window of 8 tokens) needs position 0, and has no block there any more.",
    ),
    "a state of other tokens": (
        state(
            run(7, tables=[[1, 2, 3], [4, 5, 6]], states=[[], [[8, 1]]]),
            topology={"groups": [GROUPS[0], GROUPS[4]]},
            failures={"blocks": [2]},
        ),
        {"boundary": 4, "group": 1, "position": 0, "block": 4, "why": "not_held"},
        "group 1 (mamba) has no state there: block 4 holds one of other tokens.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_why_a_boundary_is_refused_is_said(case: str) -> None:
    found, expected, sentence = REFUSED[case]
    (request,) = json_of(found)["requests"].values()
    assert expected in request["refused"]
    words = f"- Boundary {expected['boundary']} is refused: {sentence}"
    assert words in " ".join(text_of(found).split())


def test_what_is_held_dropped_and_not_counted_is_said() -> None:
    causes = [
        {"tier": "disk\u202e", "key": "00", "cause": "miss"},
        {"tier": "peer", "key": "01", "cause": "timeout"},
        {"tier": "peer", "key": "02", "cause": "io_error"},
    ]
    found = text_of(
        state(
            run(7),
            run(8, tables=[[11, 12, 13], [14, 15, 16]]),
            failures={"requests": [7, 9], "causes": causes},
            busy={"blocks": [2]},
        )
    )
    assert "Tainted, and to be forgotten by the cache and all tiers: blocks 1-6." in found
    assert "Untouched: request 8." in found
    assert "In quarantine until every rank has reported the end of its transfer: block 2." in found
    assert r"Dropped: record 1 of disk\u202e." in found
    assert "Backed off: records 2 of peer." in found
    assert "Parts of the report that do not count: 1 unknown_request." in found


def test_blocks_of_two_pools_have_their_own_numbers() -> None:
    found = run(7, tables=[[1, 2, 3], [1, 2, 3]])
    shown = json_of(state(found, pools=[0, 1], failures={"group_blocks": [[1, 2]]}))
    assert shown["tainted"] == [3, 2, 3]


@given(found=states())
def test_any_decision_fits_a_terminal_and_json(found: Json) -> None:
    text = text_of(found)
    assert max(map(len, text.splitlines())) <= 80
    assert all(line.isprintable() for line in text.splitlines())
    shown = json_of(found)
    for request, each in shown["requests"].items():
        assert f"Request {request} " in text
        assert {"resume", "recompute", "owner_of", "waits_for", "refused"} <= each.keys()
        assert each["recompute"] >= 0


def refused(*arguments: str) -> str:
    """Run the real command, and return its one line on stderr; the exit status is 2."""
    main = "import sys; from kvbraid.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", main, "recover", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def test_errors_are_one_line_that_names_the_file_and_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    line = refused("--explain", str(path))
    assert line.endswith("cannot be read: No such file or directory; give the path of a state "
                         "that was dumped")  # fmt: skip
    path.write_bytes(as_bytes(state(num_blocks=-1)))
    assert f"{path}: num_blocks = -1: expected `int` >= 1; docs/recovery.md" in refused(
        "--explain", str(path), "--json"
    )
