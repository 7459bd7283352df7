"""The study of fitted coefficients: what it compares, and that the page says what the rows say."""

from pathlib import Path
from typing import Final

from kvbraid.policy import Seconds

from bench.studies import fitting
from bench.studies.fitting import NAMES, RIGHT, page, rules
from bench.studies.policies import read_rows

FOLDER: Final = Path(fitting.__file__).parent


def test_the_page_is_that_of_the_results() -> None:
    rows = list(read_rows(FOLDER / "fitting.jsonl"))
    assert (FOLDER / "fitting.md").read_text().splitlines() == page(rows)


def test_coefficients_are_right_given_wrong_or_fitted_from_there() -> None:
    right = Seconds(fixed=1.0, per_token=3.0, per_pair=0.5, step_tokens=7)
    by_name = {rule.name: rule for rule in rules(right)}
    assert tuple(by_name) == NAMES
    assert {name for name, rule in by_name.items() if rule.fits} == {
        name for name in NAMES if name.endswith("fitted")
    }
    third = by_name["a third"].seconds
    assert third == Seconds(fixed=1 / 3, per_token=1.0, per_pair=0.5 / 3, step_tokens=7)
    assert by_name["a third, fitted"].seconds == third


def test_a_ratio_is_over_the_mean_of_both_runs_with_the_right_ones() -> None:
    times = dict.fromkeys(NAMES, 1.0) | {RIGHT[0]: 4.0}
    lines = page([{"cell": "a", "seed": 1, "ttft_s": times}])
    assert "| right | 2.000 | 0.000 | 2.00 |" in lines
    assert "| a third, fitted | 0.500 | 0.000 | 0.50 |" in lines
