"""The study of policies: it continues after a stop, and its page says what was computed."""

import json
from pathlib import Path

import pytest
from kvbraid.models import CONFIGS

from bench.studies import policies, traces
from bench.studies.policies import Study


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A prompt of 1 025 tokens, one that shares its first 512, and the first again."""
    rows = [(1_025, [1, 2, 3]), (1_025, [1, 4, 5]), (1_025, [1, 2, 3])]
    lines = [json.dumps({"input_length": n, "hash_ids": ids}) for n, ids in rows]
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def study(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr(traces, "TRACES", {"small.jsonl": "here"})
    monkeypatch.setattr(policies, "SHARES", ("1/2", "1"))
    monkeypatch.setattr(traces, "BOUNDED", ("small",))
    traces.trace_of.cache_clear()
    traces.footprint_of.cache_clear()
    return Study(traces=trace.parent, folder=tmp_path / "results")


def test_a_study_computes_what_is_missing_and_nothing_else(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert policies.run(study) == 0
    num_cells = len(CONFIGS) * 2 * len(policies.VERSIONS)
    lines = study.results.read_text().splitlines()
    assert len(lines) == num_cells
    page = (study.folder / "policies.md").read_text()
    assert "| small | gpt-oss-120b | 1 | " in page
    assert "| value | 10 of 10 | +0.00 | small, " in page
    assert "| small | 33.30 | 49.95 |" in page  # One block, and all three.
    stale = json.dumps({**json.loads(lines[1]), "version": -1})
    study.results.write_text("\n".join([stale, *lines[2:], lines[0][:50]]))
    capsys.readouterr()
    assert policies.run(study) == 0
    said = capsys.readouterr().err
    assert f"{num_cells - 2} cells are there, 2 to do" in said
    assert "a line is cut off" in said
    assert (study.folder / "policies.md").read_text() == page
    assert (study.folder / "policies.png").exists()


def test_a_study_without_its_traces_says_what_to_fetch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert policies.run(Study(traces=tmp_path, folder=tmp_path / "results")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"the folder {tmp_path} lacks mooncake_conversation_trace.jsonl.zst (")
    assert line.endswith("; TRACES=folder chooses one")
