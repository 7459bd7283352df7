"""The study of a pod that joins: it comes when it should, gets its share, and the page says so."""

from pathlib import Path
from typing import Final

import pytest
from kvbraid.sim.routing.results import Served

from bench.router.cells import CELLS as SMALL_CELLS
from bench.router.cells import NUM_PODS
from bench.studies import joining
from bench.studies.joining import SHARES, WITHOUT, Joining, Joins, page
from bench.studies.policies import read_rows
from tests.bench.played import played

FOLDER: Final = Path(joining.__file__).parent
CELL: Final = SMALL_CELLS[3]
NEW: Final = NUM_PODS - 1


def joined(joins: Joins) -> tuple[Joining, list[Served]]:
    return played(CELL, lambda fleet: Joining(fleet, joins))


def test_the_page_is_that_of_the_results() -> None:
    rows = list(read_rows(FOLDER / "joining.jsonl"))
    assert (FOLDER / "joining.md").read_text().splitlines() == page(rows)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_pod_gets_nothing_before_it_joins(share: float) -> None:
    _, served = joined(Joins(at=100, share=share))
    assert not any(each.pod == NEW for each in served[:100])
    assert any(each.pod == NEW for each in served[100:])


def test_a_share_is_given_until_the_pool_could_be_full() -> None:
    policy, served = joined(Joins(at=100, share=1.0))
    others = [each.number for each in served[100:] if each.pod != NEW]
    assert others[0] > 110
    room = policy.room
    computed = [each.num_tokens - each.expected for each in served[100 : others[0]]]
    assert sum(computed[:-1]) < room <= sum(computed)


def test_a_ratio_is_over_the_mean_of_both_runs_without_a_share() -> None:
    times = {key: [1.0, 2.0] for key in SHARES} | {WITHOUT[0]: [4.0, 2.0]}
    row = {
        "cell": "full agents",
        "seed": 1,
        "ttft_s": times,
        "sent": {key: [0.1, 0.25] for key in SHARES},
    }
    lines = page([row])
    assert "| none | 2.000 | 0.000 | 2.00 | 1.000 | 10.0 | 25.0 |" in lines
    assert "| 10 % | 0.500 | 0.000 | 0.50 | 1.000 | 10.0 | 25.0 |" in lines
