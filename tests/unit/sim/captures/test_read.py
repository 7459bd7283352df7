"""Capture directories: a broken one is refused with its file and the reason."""

import json
import lzma
import shutil
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli, main
from kvbraid.errors import CaptureError, TopologyError
from kvbraid.sim.captures.read import Lookup, read_capture
from kvbraid.sim.captures.replay import percent
from kvbraid.spec import EngineDialect
from kvbraid.spec_mapping import topology_from_mapping

from tests.captures import FIXTURES
from tests.captures import SGLANG_FIXTURES as SGLANG
from tests.cut_capture import cut

GOOD: Final = FIXTURES / "gptoss"


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


@pytest.mark.parametrize(
    ("folder", "excused"),
    [
        (FIXTURES / "qwen3next", "late_clear 1"),
        (SGLANG / "dense_p16_conc4", "in_flight 4"),
    ],
    ids=["a late clear", "requests in flight"],
)
def test_an_excused_answer_is_not_exact_in_any_column_nor_for_the_status(
    folder: Path, excused: str
) -> None:
    runner = CliRunner(env={"COLUMNS": "200"})
    report = json.loads(runner.invoke(cli, ["replay", "--json", str(folder)]).stdout)
    count = int(excused.split()[1])
    asked, exact = report["requests"], report["exact"]
    assert (asked - exact, report["excused"]) == (count, count)
    assert report["exact_pct"] == percent(exact, asked, decimals=4) < 100
    result = runner.invoke(cli, ["replay", "--fail-under", "100", str(folder)])
    (row,) = (line for line in result.stdout.splitlines() if folder.name in line)
    share = f"{percent(exact, asked, decimals=2):.2f}"
    assert row.split()[1:3] == [str(asked), str(exact)]
    assert row.split()[6:8] == [str(count), share]
    assert row.endswith(excused)
    assert result.exit_code == 1


def test_a_share_is_100_only_of_all() -> None:
    assert percent(21_999, 22_000, decimals=2) == 99.99
    assert percent(22_000, 22_000, decimals=2) == percent(0, 0, decimals=2) == 100


def test_a_capture_of_sglang_is_judged_by_the_last_lookup_before_prefill() -> None:
    capture = read_capture(SGLANG / "hicache_wt_p16")
    assert (capture.engine.dialect, capture.tiers) == (EngineDialect.SGLANG, ("gpu", "cpu"))
    rows = lzma.decompress((SGLANG / "hicache_wt_p16" / "requests.jsonl.xz").read_bytes())
    row = json.loads(rows.splitlines()[-1])
    last = capture.operations[-1]
    assert isinstance(last, Lookup)
    assert last.reused_tokens == row["admitted"]["hit"]
    assert last.messages_seen == row["ev_before"]


def test_with_requests_in_flight_lookups_are_in_the_order_of_the_pieces_they_saw() -> None:
    capture = read_capture(SGLANG / "dense_p16_conc4")
    seen = [op.pieces_seen for op in capture.operations if isinstance(op, Lookup)]
    assert seen == sorted(seen)
    assert seen[-1] == len(capture.pieces) > len(capture.messages)


@pytest.mark.parametrize(
    ("data", "place"), [(b"\0\0\0\5abc", "4 of 7"), (b"\0\0\0\1a\0\0", "7 of 7")]
)
def test_a_piece_that_breaks_off_is_refused_with_its_place(
    tmp_path: Path, data: bytes, place: str
) -> None:
    folder = Path(shutil.copytree(SGLANG / "dense_p16_conc4", tmp_path / "broken"))
    (folder / "pieces.bin.xz").unlink()
    (folder / "pieces.bin").write_bytes(data)
    with pytest.raises(CaptureError, match=rf"pieces\.bin: broken piece near byte {place}"):
        read_capture(folder)


def test_a_cut_capture_has_the_messages_up_to_the_end_of_its_last_operation(
    tmp_path: Path,
) -> None:
    cut(SGLANG / "dense_p16_spaces", tmp_path / "cut", 40)
    part, whole = read_capture(tmp_path / "cut"), read_capture(SGLANG / "dense_p16_spaces")
    assert part.operations == whole.operations[:40]
    assert part.messages == whole.messages[: len(part.messages)]
    assert 0 < len(part.messages) < len(whole.messages)


def test_the_table_shows_how_often_the_expected_value_is_right_and_how_wide_bounds_are() -> None:
    folder = SGLANG / "dense_p16_conc4"
    result = CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["replay", str(folder)])
    (row,) = (line for line in result.stdout.splitlines() if folder.name in line)
    (report,) = map(
        json.loads, CliRunner().invoke(cli, ["replay", "--json", str(folder)]).stdout.splitlines()
    )
    expected = f"{percent(report['expected_exact'], report['requests'], decimals=2):.2f}"
    width = f"{report['width_sum'] / report['requests']:.1f}"
    assert row.split()[8:10] == [expected, width]


def test_a_setting_replaces_a_field_of_the_topology() -> None:
    command = ["replay", "--json", str(SGLANG / "dense_p16_real"), "--set"]
    result = CliRunner().invoke(cli, [*command, "extra_keys=true"])
    report = json.loads(result.stdout)
    assert (report["lower_sum"], report["upper_sum"]) == (0, report["true_sum"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("alignment", "--set 'alignment'; expected NAME=JSON"),
        ("alignment=x", "expected NAME=JSON"),
        ("alignment=0", "topology.alignment = 0: expected"),
        ("aligment=1", "did you mean alignment?"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, setting: str, told: str
) -> None:
    folder = str(SGLANG / "dense_p16_real")
    monkeypatch.setattr("sys.argv", ["kvbraid", "replay", folder, "--set", setting])
    with pytest.raises(SystemExit, match="2"):
        main()
    out, err = capsys.readouterr()
    (line,) = (line for line in err.splitlines() if line)
    assert told in line
    assert out == ""


def test_a_folder_that_is_refused_keeps_none_of_the_others_from_being_shown(
    tmp_path: Path, broken: Path
) -> None:
    with_config(broken, groups=[{"kind": "rnn"}])
    folders = [str(GOOD), str(tmp_path / "absent"), str(broken), str(FIXTURES / "gemma3")]
    result = CliRunner().invoke(cli, ["replay", *folders, "--fail-under", "100"])
    assert result.exit_code == 2
    shown = [line.split()[:3] for line in result.stdout.splitlines() if line]
    assert ["gptoss", "110", "110"] in shown
    assert ["gemma3", "89", "89"] in shown
    first, second = (line for line in result.stderr.splitlines() if line)
    assert first.startswith(f"kvbraid: {tmp_path / 'absent' / 'config.json'}: No such file")
    assert second.startswith(f"kvbraid: {broken}: topology.groups[0].kind = 'rnn': expected")
    lines = CliRunner().invoke(cli, ["replay", "--json", *folders]).stdout.splitlines()
    assert [json.loads(line)["capture"] for line in lines] == ["gptoss", "gemma3"]


def test_below_several_captures_is_their_total_and_below_one_there_is_none() -> None:
    names = ("gptoss", "qwen3next")
    command = ["replay", *(str(FIXTURES / name) for name in names)]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli, command)
    cells = result.stdout.splitlines()[-1].split()
    reports = [
        json.loads(line)
        for line in CliRunner().invoke(cli, [*command, "--json"]).stdout.splitlines()
    ]
    lower, true = (sum(report[name] for report in reports) for name in ("lower_sum", "true_sum"))
    assert cells[:9] == ["all", "2", "captures", "219", "218", "1", "0", "0", "1"]
    assert cells[9:] == ["99.54", "99.54", "0.0", str(lower), str(true), "late_clear", "1"]
    assert "all" not in CliRunner().invoke(cli, command[:2]).stdout


def test_what_a_group_says_of_its_recording_is_let_through(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    of_recording = {
        "names": ["a"], "page_bytes": [1], "layer_ids": [0], "spec_block_size": 16,
        "spec": "X", "manager": "Y",
    }  # fmt: skip
    groups = [{**group, **of_recording} for group in config["groups"]]
    assert read_capture(with_config(broken, groups=groups)).topology == read_capture(GOOD).topology
    for name in of_recording:
        with pytest.raises(TopologyError, match=rf"groups\[0\]\.{name} = .*: no such field"):
            topology_from_mapping({"groups": [{"kind": "mamba", "block_size": 1, name: 1}]})
    with pytest.raises(TopologyError, match=r"broken: topology\.groups\[0\]\.nams = 1: no such"):
        read_capture(with_config(broken, groups=[{**config["groups"][0], "nams": 1}]))


def test_extra_keys_of_recorded_requests_are_declared(tmp_path: Path) -> None:
    assert not read_capture(SGLANG / "dense_p16_real").engine.extra_keys
    folder = Path(shutil.copytree(SGLANG / "dense_p16_real", tmp_path / "keyed"))
    rows = lzma.decompress((folder / "requests.jsonl.xz").read_bytes())
    (folder / "requests.jsonl.xz").unlink()
    (folder / "requests.jsonl").write_bytes(
        rows.replace(b'"extra_key": null', b'"extra_key": "a"', 1)
    )
    assert read_capture(folder).engine.extra_keys
    assert not read_capture(folder, {"extra_keys": False}).engine.extra_keys


def with_config(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("name", "changes", "never_short"),
    [
        ("swa_p16_ratio1", {}, True),
        ("swa_p16_ratio1", {"size_swa": 8191}, False),
        ("mamba_buf_p64", {}, False),
        ("mamba_buf_p64", {"mamba_slots": 8192 // 64 + 8}, True),
        ("mamba_buf_p64", {"mamba_slots": 8192 // 64 + 7}, False),
        ("dense_p16_real", {}, False),
    ],
)
def test_pools_that_can_hold_all_that_pages_can_have_never_run_short(
    tmp_path: Path, name: str, changes: dict[str, object], *, never_short: bool
) -> None:
    folder = with_config(Path(shutil.copytree(SGLANG / name, tmp_path / name)), **changes)
    assert read_capture(folder).engine.silent_pools_never_short is never_short
