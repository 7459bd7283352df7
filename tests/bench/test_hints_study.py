"""The study of hints: what is told comes from the traffic, and it continues after a stop."""

import json
from pathlib import Path

import pytest

from bench.studies import hints, traces
from bench.studies.hints import Cell, told
from bench.studies.policies import Study

TALK = [(1, [10]), (2, [20]), (1, [10, 11]), (3, []), (1, [10, 11, 12]), (2, [20])]


def test_an_end_returns_if_a_later_prompt_has_it() -> None:
    assert told(TALK, 100) == [True, True, True, False, False, False]
    assert told(TALK, None) == []


def test_sessions_are_told_wrongly_as_a_whole_and_as_many_as_asked() -> None:
    truth = told(TALK, 100)
    assert told(TALK, 0) == [not one for one in truth]
    sessions = [(session, [session]) for session in range(2_000)] * 2
    half = [
        one == other for one, other in zip(told(sessions, 50), told(sessions, 100), strict=True)
    ]
    assert half[:2_000] == half[2_000:]
    assert 900 < sum(half[:2_000]) < 1_100


def test_only_missing_cells_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        Cell("small", "gpt-oss-120b", "1", "value", None),
        Cell("small", "gpt-oss-120b", "1", "value", 50),
        Cell("chat", "gptoss", "1500", "adapts", 100),
    ]
    rows = [(1_025, [1, 2, 3]), (1_025, [1, 2, 3]), (1_025, [4, 5, 6])]
    lines = [json.dumps({"input_length": n, "hash_ids": ids}) for n, ids in rows]
    (tmp_path / "small.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(traces, "TRACES", {"small.jsonl": "here"})
    traces.trace_of.cache_clear()
    traces.footprint_of.cache_clear()
    monkeypatch.setattr(hints, "cells", lambda: cells)
    monkeypatch.setattr(hints, "page", lambda rates: iter([str(len(rates))]))
    monkeypatch.setattr(hints, "NUM_REQUESTS", 30)
    monkeypatch.setattr(hints, "ProcessPoolExecutor", _Here)
    study = Study(traces=tmp_path, folder=tmp_path)
    assert hints.run(study) == 0
    found = hints.read_results(tmp_path / "hints.jsonl")
    assert found[cells[0]] == pytest.approx(100 * 1_024 / 3_075, abs=0.01)
    monkeypatch.setattr(hints, "compute", None)
    assert hints.run(study) == 0
    assert (tmp_path / "hints.md").read_text() == "3\n"


def test_the_page_has_a_line_per_pool_and_one_per_traffic_and_policy() -> None:
    rates = {cell: 50.0 + (cell.right or 0) / 10 for cell in hints.cells()}
    page = list(hints.page(rates))
    assert (
        "| chat | gptoss | 1500 | 50.0 | 60.0 | 58.0 | 55.0 | 50.0 | 60.0 | 58.0 | 55.0 |" in page
    )
    one_more = {Cell("small", "full", "1", "value", None): 1.0}
    assert list(hints.page(one_more))[-1] == "|---|---|--:|--:|--:|"
    said = "+10.0 (+10.0 to +10.0) | +8.0 (+8.0 to +8.0) | +5.0 (+5.0 to +5.0) |"
    assert page[-1] == f"| giant | value | {said}"


class _Here:
    """A pool of processes that is this one."""

    def __init__(self, num_jobs: int) -> None:
        del num_jobs

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    map = staticmethod(map)
