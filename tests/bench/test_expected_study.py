"""The study of `expected`: ranking by it saves tokens, and its stand-in for the truth is right."""

from functools import cache
from pathlib import Path
from typing import Final

from bench.studies.expected import FIXTURES, Tally, captures_in, page, tally

PAGE: Final = Path(__file__).resolve().parents[2] / "bench" / "studies" / "expected.md"


@cache
def played() -> list[Tally]:
    return [tally(capture) for capture in captures_in(FIXTURES)]


def test_ranking_by_expected_picks_other_pods_and_saves_what_the_threshold_asks() -> None:
    assert [found.capture for found in played()] == ["mamba_buf_p64", "swa_p16_ratio1"]
    for found in played():
        expected = found.computed["expected"]
        assert found.computed["best"] <= expected
        assert expected <= 0.97 * found.computed["lower"]
        assert expected <= 0.97 * found.computed["middle"]
        assert found.others["lower"] > 0.1 * found.requests
        assert found.others["expected"] == 0


def test_what_stands_for_the_truth_of_other_pods_is_right_where_it_was_recorded() -> None:
    assert all(found.right >= 0.98 * found.requests for found in played())


def test_the_page_shows_what_the_study_finds() -> None:
    assert PAGE.read_text().splitlines() == page(played())
