"""The ablation of retention by value: all policies play the same, and losses are named."""

import pytest

from bench.studies import ablation
from bench.studies.ablation import Cell, of_workload, page


def test_each_policy_has_a_rate_and_the_page_names_the_largest_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ablation, "NUM_REQUESTS", 520)
    cell = Cell("hot_scan", "full", "a")
    rates = of_workload(cell)
    assert list(rates) == list(ablation.POLICIES)
    assert rates["dense"] == rates["interval-8k"] > 0
    worse = {**rates, "value": rates["dense"] - 3.0}
    lines = page({cell: worse}, {cell: rates})
    (value, _) = (line for line in lines if line.startswith("| `value` |"))
    assert value.endswith("| -3.00 | 1 | 1 | hot_scan, full, a: -3.0 |")
