"""Rows without a clock are tests: each reaches the target that its slice has."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Final

import pytest

from bench.harness.measure import Row
from bench.retention.bench_cells import LEAST_MEANS, cells
from bench.retention.workloads import WORKLOADS

ROOT: Final = Path(__file__).resolve().parents[2]
MODULES: Final = tuple(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("bench/*/bench_*.py"))
)
SLICED_ELSEWHERE: Final = frozenset(
    {
        "faults",  # tests/ghost/test_faults.py injects the first 20 000.
        "memory_block",  # These read how much memory the kernel gave.
        "memory_hash",
        "memory_shared",
        "memory_mixed",
        "memory_mixed_in_one",
        "memory_further",
        "memory_churn",
        "policy_sim",  # tests/bench/test_router.py plays its cells.
    }
)


def rows() -> Iterator[Row]:
    for module in MODULES:
        yield from import_module(module).ROWS


SLICED: Final = {row.name: row for row in rows() if row.slice}
CELLS: Final = {row.name: row for row in cells()}


def missed(row: Row) -> tuple[float, str]:
    """Play the slice; return its figure, and what is wrong with it."""
    assert row.slice
    figure, target = row.slice.figure(), row.slice.target
    wrong = f"{row.name} is {figure:.6g}, its slice's target: {target}"
    return figure, "" if target.is_met(figure, None) else wrong


@pytest.mark.parametrize("name", [name for name in SLICED if name not in CELLS])
def test_a_row_reaches_the_target_of_its_slice(name: str) -> None:
    assert missed(SLICED[name])[1] == ""


@pytest.mark.parametrize("model", LEAST_MEANS)
def test_the_cells_of_a_model_reach_their_targets_and_its_mean(model: str) -> None:
    names = [name for name in CELLS if name in SLICED and f"_{model}_" in name]
    found = [missed(SLICED[name]) for name in names]
    assert len(found) == len(WORKLOADS)
    assert [wrong for _, wrong in found if wrong] == []
    assert mean(lead for lead, _ in found) >= LEAST_MEANS[model]


def test_every_row_that_is_counted_once_has_a_slice() -> None:
    """Of the cells of a workload and a model, one pool stands for all three."""
    once = {row.name for row in rows() if row.samples == 1 and not row.slice}
    assert once - CELLS.keys() == SLICED_ELSEWHERE
