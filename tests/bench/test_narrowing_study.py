"""The study of limbo's narrowing: without it, answers are lost, and none gets wrong."""

from functools import cache
from pathlib import Path
from typing import Final

from bench.studies.late import FIXTURES, captures_in
from bench.studies.narrowing import MODES, Pair, page, pair, whole

PAGE: Final = Path(__file__).resolve().parents[2] / "bench" / "studies" / "narrowing.md"


@cache
def played(mode: str) -> list[Pair]:
    return [pair(folder, mode) for folder in captures_in(FIXTURES)]


def test_without_narrowing_exact_answers_are_lost_and_bounds_get_wider_but_stay_true() -> None:
    found = pair(FIXTURES / "sched_e_swa_only", "join")
    assert found.lost_pct > 10
    assert found.wide.width_sum > 1.5 * found.narrow.width_sum
    assert found.wide.lower_sum <= found.narrow.lower_sum
    assert found.wide.bounds_kept == found.narrow.bounds_kept


def test_narrowing_reaches_its_threshold_where_the_hash_function_is_not_known() -> None:
    for mode in ("join", "auto, untold"):
        found = whole(played(mode))
        assert found.lost_pct >= 1
        assert found.wide.width_sum >= 1.1 * found.narrow.width_sum
    known = whole(played("auto"))
    assert known.lost_pct == 0
    assert known.wide.width_sum == known.narrow.width_sum


def test_the_page_shows_what_the_study_finds() -> None:
    lines = page({mode: played(mode) for mode in MODES})
    assert PAGE.read_text().splitlines() == lines
