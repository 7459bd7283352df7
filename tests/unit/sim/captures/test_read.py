"""Capture directories: a broken one is refused with its file and the reason."""

import json
import shutil
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.errors import CaptureError
from kvbraid.sim.captures.read import Lookup, read_capture

GOOD: Final = Path(__file__).resolve().parents[3] / "fixtures" / "captures" / "gptoss"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOOD, tmp_path / "broken"))


def test_a_capture_has_its_requests_in_order_with_what_was_known_by_then() -> None:
    capture = read_capture(GOOD)
    seen = [op.messages_seen for op in capture.operations if isinstance(op, Lookup)]
    assert seen == sorted(seen)
    assert [m.seq for m in capture.messages] == list(range(len(capture.messages)))


def test_a_missing_file_is_named(broken: Path) -> None:
    (broken / "events.bin.xz").unlink()
    with pytest.raises(CaptureError, match=r"events\.bin: No such file"):
        read_capture(broken)


def test_a_damaged_archive_is_named(broken: Path) -> None:
    (broken / "events.bin.xz").write_bytes(b"not an archive")
    with pytest.raises(CaptureError, match=r"events\.bin\.xz: "):
        read_capture(broken)


def test_a_message_that_breaks_off_is_refused_with_its_place(broken: Path) -> None:
    (broken / "events.bin.xz").unlink()
    (broken / "events.bin").write_bytes(b"\x00\x00\x00\x03\x00\x00\x00\x09abc")
    with pytest.raises(CaptureError, match="broken message near byte 11 of 11"):
        read_capture(broken)


@pytest.mark.parametrize(
    ("line", "reason"), [("{", "line 1: "), ('{"op": "req"}', "no field 'i'"), ("[]", "line 1")]
)
def test_a_bad_operation_is_refused_with_its_line(broken: Path, line: str, reason: str) -> None:
    (broken / "requests.jsonl.xz").unlink()
    (broken / "requests.jsonl").write_text(line)
    with pytest.raises(CaptureError, match=reason):
        read_capture(broken)


def test_requests_that_saw_more_messages_than_there_are_are_refused(broken: Path) -> None:
    (broken / "events.bin.xz").unlink()
    (broken / "events.bin").write_bytes(b"")
    with pytest.raises(CaptureError, match="0 messages, but a request saw"):
        read_capture(broken)


def test_replay_prints_one_json_line_a_capture_and_nothing_else_on_stdout() -> None:
    result = CliRunner().invoke(cli, ["replay", "--json", str(GOOD)])
    (line,) = result.stdout.splitlines()
    report = json.loads(line)
    assert (result.exit_code, report["requests"], report["exact"]) == (0, 110, 110)
    assert report["placed"].keys() == {"tokens", "join", "query", "unplaced"}


def test_replay_fails_below_the_percentage_asked_for() -> None:
    command = ["replay", "--json", "--model", "set", str(GOOD), "--fail-under"]
    assert CliRunner().invoke(cli, [*command, "99.9"]).exit_code == 1
    assert CliRunner().invoke(cli, [*command, "1"]).exit_code == 0
