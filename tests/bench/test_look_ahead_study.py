"""The study of looking ahead: replicas foresee what they can, and the page says what rows say."""

from pathlib import Path
from typing import Final

from kvbraid.sim.routing.results import Served

from bench.router.cells import CELLS
from bench.studies import look_ahead
from bench.studies.look_ahead import REPLICAS, WITHOUT, LookAhead, Replica, page
from bench.studies.policies import read_rows
from tests.bench.played import played

FOLDER: Final = Path(look_ahead.__file__).parent
CELL: Final = CELLS[9]


def looked(replica: Replica) -> tuple[LookAhead, list[Served]]:
    return played(CELL, lambda fleet: LookAhead(fleet, replica))


def test_the_page_is_that_of_the_results() -> None:
    rows = list(read_rows(FOLDER / "look_ahead.jsonl"))
    assert (FOLDER / "look_ahead.md").read_text().splitlines() == page(rows)


def test_an_exact_replica_foresees_every_hit() -> None:
    policy, served = looked(Replica())
    assert [policy.foreseen[each.number] for each in served] == [each.cached for each in served]
    assert any(each.expected != each.cached for each in served)  # What is in flight is not all.


def test_a_replica_that_takes_a_pool_for_smaller_is_wrong() -> None:
    policy, served = looked(Replica(blocks=0.5))
    assert any(policy.foreseen[each.number] < each.cached for each in served)


def test_a_ratio_is_over_the_mean_of_both_runs_without_replicas() -> None:
    names = (*WITHOUT, *REPLICAS)
    times = dict.fromkeys(names, 1.0) | {WITHOUT[0]: 4.0}
    row = {"cell": "a", "seed": 1, "ttft_s": times, "came_true": dict.fromkeys(names, 0.5)}
    lines = page([row])
    assert "| none | 2.000 | 0.000 | 2.00 | 50.0 |" in lines
    assert "| exact | 0.500 | 0.000 | 0.50 | 50.0 |" in lines
