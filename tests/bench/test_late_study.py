"""The study of pods that were met late: what engines reused lies within the bounds."""

from functools import cache
from pathlib import Path
from typing import Final

import pytest
from kvbraid.fleet.index import Keys

from bench.studies.late import CLASSES, FIXTURES, Tally, captures_in, line, page, tally

ROOT: Final = Path(__file__).resolve().parents[2]
NOT_COUNTED: Final = {
    "mimo2": "entries inside blocks",
    "sched_c_mamba_align_fine": "partial hits",
    "sched_k_reportfull": "full reports",
}


played = cache(tally)


@pytest.mark.parametrize("keys", ["auto", "join"])
@pytest.mark.parametrize("folder", captures_in(FIXTURES), ids=lambda folder: folder.name)
def test_no_answer_of_a_pod_that_was_met_late_is_wrong(folder: Path, keys: Keys) -> None:
    found = played(folder, keys)
    assert found.checked > 0
    assert found.wrong == 0
    assert found.uncounted == NOT_COUNTED.get(folder.name, "")
    if found.uncounted:
        assert found.exact.total() <= found.asked.total() // 20
    elif keys == "auto":
        assert found.exact.total() > 0


def test_answers_become_exact_again_as_the_pool_turns_over() -> None:
    found = played(FIXTURES / "gptoss", "auto")
    shares = [found.exact[which] / found.asked[which] for which in range(len(CLASSES))]
    assert shares == sorted(shares)
    assert shares[-1] > 0.7


def test_the_page_has_a_row_for_each_capture_that_is_counted_and_their_sum() -> None:
    one, other = (Tally(name, checked=5, late_clear=1) for name in ("one", "other"))
    one.asked.update({0: 4, 3: 8})
    one.exact.update({3: 6})
    one.width.update({0: 60, 3: 1})
    one.prompt.update({0: 80, 3: 160})
    other.uncounted = "partial hits"
    lines = page([one, other])
    assert line(one) == "| one | 0.0 of 4 | - | - | 75.0 of 8 | 5 | 0 | 1 | 0 |"
    assert lines[-5:-1] == [
        line(one),
        line(one).replace("one", "all 1"),
        "| width, % of the prompt | 75.0 | - | - | 0.6 | | | | |",
        "",
    ]
    assert "other (partial hits)" in lines[-1]


def test_the_pages_show_what_the_study_finds() -> None:
    lines = page([played(folder, "auto") for folder in captures_in(FIXTURES)])
    assert (ROOT / "bench" / "studies" / "late.md").read_text().splitlines() == lines
    (total,) = (row for row in lines if row.startswith("| all "))
    _, *shares, checked, wrong, _, _ = total.strip("| ").split(" | ")
    cells = [share.split(" of ")[0] for share in shares]
    (row,) = (
        row
        for row in (ROOT / "docs" / "operate.md").read_text().splitlines()
        if row.startswith("| 11 of the repository")
    )
    figures = row.strip("| ").replace(" % exact", "").replace(" %", "").split(" | ")[1:]
    assert figures == [*cells, f"{int(checked):,}".replace(",", " "), wrong]
