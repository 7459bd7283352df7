"""The study of routing rules: what was computed stays, and the page says what the rows say."""

import json
from pathlib import Path
from typing import Final

import pytest

from bench.router.cells import Size
from bench.studies import routing
from bench.studies.policies import Row, Study, read_rows
from bench.studies.routing import BASELINES, RULES, SHIPPED, Point, compute, point_of, points
from bench.studies.routing_page import cells_of, page

FOLDER: Final = Path(routing.__file__).parent
POINT: Final = Point(1, "open", "shared", "states", "1/2", 0.8)


def row(point: Point, **ttft_s: float) -> Row:
    times = dict.fromkeys(RULES, 10.0) | {name.replace("_", " "): s for name, s in ttft_s.items()}
    return {"version": routing.VERSION, **point._asdict(), "ttft_s": times}


def test_the_page_is_that_of_the_results() -> None:
    rows = list(read_rows(FOLDER / "routing.jsonl"))
    assert (FOLDER / "routing.md").read_text().splitlines() == page(rows)


def test_every_point_comes_once_and_no_seed_before_the_one_in_front() -> None:
    every = points()
    assert len(set(every)) == len(every) == 8 * (5 * 4 * 3 * 3 + 2 * 5 * 4)
    assert [point.seed for point in every] == sorted(point.seed for point in every)


def test_what_ships_is_a_part_of_the_baselines_and_ours_is_none() -> None:
    assert set(SHIPPED) < set(BASELINES) < set(RULES)
    assert not any(rule.in_flight for name, rule in RULES.items() if name.endswith("events"))


@pytest.mark.parametrize("form", ["open", "decode", "closed"])
def test_a_point_is_the_same_whenever_it_is_computed(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "SIZE", Size(num_requests=40, sessions=0.25))
    point = POINT._replace(form=form)
    first, second = compute(point), compute(point)
    assert point_of(first) == point
    assert first["ttft_s"] == second["ttft_s"]
    assert (first["rate"] is None) == (form == "closed")
    assert first["ttft_s"].keys() == RULES.keys()


def test_a_stopped_study_goes_on_from_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, cut, todo = (POINT._replace(seed=seed) for seed in (1, 2, 3))
    monkeypatch.setattr(routing, "points", lambda: [done, cut, todo])
    computed: list[Point] = []

    def count(point: Point) -> Row:
        computed.append(point)
        return row(point) | {"seconds": 0.0}

    monkeypatch.setattr(routing, "compute", count)
    half = json.dumps(row(cut))[:40]
    (tmp_path / "routing.jsonl").write_text(f"{json.dumps(row(done))}\n{half}")
    study = Study(traces=tmp_path, folder=tmp_path)
    for _ in range(2):
        assert routing.run(study, page=page) == 0
        assert computed == [cut, todo]
    assert len(list(read_rows(tmp_path / "routing.jsonl"))) == 3


def test_a_cell_is_beside_the_baseline_whose_mean_is_the_least() -> None:
    first = row(POINT, cost=2.0, cost_again=4.0, greedy=1.0)
    second = row(POINT._replace(seed=2), cost=4.0, cost_again=2.0, greedy=5.0)
    (cell,) = cells_of([first, second])
    assert cell.best(BASELINES) == "greedy"
    assert cell.ratio("cost", BASELINES) == 1.0
    assert cell.noise == 1.0
    assert cell.ratio("cost", SHIPPED) == 0.3
    assert "| ours, all baselines | 1 | 1.000 | 1.00 | 1.00 | 0 % |" in page([first, second])
