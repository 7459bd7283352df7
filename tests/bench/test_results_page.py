"""The page of results is written by `make bench` alone, and says which rows are out of date."""

from pathlib import Path

import pytest

from bench.harness import results
from bench.harness.results import MEASURED, PAGE, ROOT, Page, write
from bench.harness.run import ENVIRONMENTS

SETTING = {
    "commit": "abc1234",
    "date": "2030-01-02T03:04:05+00:00",
    "cpu": "CPU",
    "cores": 2,
    "load": 0.25,
    "python": "3.11.9",
}
ROW = {
    "bench": "plan",
    "ours": 2.5,
    "rival": None,
    "unit": "ms CPU",
    "ratio": None,
    "target": "ours <= 10",
    "met": True,
    "beside": {"windows": 2.0, "states": None},
}


def test_the_page_is_as_it_was_written() -> None:
    text = PAGE.read_text()
    marked = {line.split("`")[1] for line in text.splitlines() if line.endswith("*older* |")}
    known = Page.read(text)
    names = {area: {name.strip("`") for name in rows} for area, rows in known.rows.items()}
    assert known.text(lambda *_: False) == text.replace(results.OLDER, "")
    assert marked <= set().union(*names.values())
    assert names.keys() <= MEASURED.keys() == ENVIRONMENTS.keys()


def test_a_run_replaces_its_rows_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "has_changed", lambda area, commit: commit == "abc1234")
    page = tmp_path / "RESULTS.md"
    page.write_text("")
    write(SETTING, [("layout", ROW), ("layout", {**ROW, "bench": "descriptors"})], page)
    later = {**SETTING, "commit": "def5678", "date": "2030-01-03T00:00:00+00:00"}
    write(later, [("layout", {**ROW, "ours": 3.0})], page)
    lines = page.read_text().splitlines()
    assert lines[-2:] == [
        "| `plan` | 3 | - | ms CPU | - | ours <= 10 | yes | windows: 2; states: - "
        "| 2030-01-03 00:00 |",
        "| `descriptors` | 2.5 | - | ms CPU | - | ours <= 10 | yes | windows: 2; states: - "
        "| 2030-01-02 03:04, *older* |",
    ]
    assert "| 2030-01-03 00:00 | def5678 | 2 x CPU | 0.2 | 3.11.9 |" in lines
    write(later, [("layout", {**ROW, "bench": "descriptors"})], page)
    assert "abc1234" not in page.read_text()  # No row of that run is left.


def test_code_is_changed_where_its_commit_is_not_known() -> None:
    assert results.has_changed("layout", "0123456")


def test_every_folder_of_the_core_is_measured_by_some_area() -> None:
    paths = {path for paths in MEASURED.values() for path in paths}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    core = {f"crates/core/src/{path.name}" for path in (ROOT / "crates/core/src").iterdir()}
    assert {path for path in core if (ROOT / path).is_dir()} <= paths
