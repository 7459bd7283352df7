"""The study of shared pins: what a pin changes, and that the page says what the rows say."""

from array import array
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Final

import pytest
from kvbraid.policy.view import RankId

from bench.studies import pins
from bench.studies.pins import RULES, Pinned, page, rule_of
from bench.studies.policies import read_rows
from tests.unit.policy.views import view

FOLDER: Final = Path(pins.__file__).parent
NUMBERS: Final = {array("I", range(1000)).tobytes(): 7}
"""The session of the prompt that views of tests have."""


def test_the_page_is_that_of_the_results() -> None:
    rows = list(read_rows(FOLDER / "pins.jsonl"))
    assert (FOLDER / "pins.md").read_text().splitlines() == page(rows)


def preferred(name: str, *wait: float, pin: int | None = None) -> int:
    """Return the place that a rule leaves; prefills take 0.11 s everywhere."""
    seen = view(num=len(wait), wait=wait)
    known: dict[int, RankId] = {} if pin is None else {7: seen.ranks[pin]}
    costs = Pinned(RULES[name], NUMBERS, known).costs(seen)
    (place,) = (place for place, cost in enumerate(costs) if isfinite(cost))
    return place


def test_a_pin_is_followed_if_that_costs_little_more() -> None:
    by_hash = preferred("none", 0.0, 0.0, 0.0)
    other = (by_hash + 1) % 3
    assert preferred("shared", 0.0, 0.0, 0.0, pin=other) == other
    assert preferred("none", 0.0, 0.0, 0.0, pin=other) == by_hash
    assert preferred("shared", 0.01, 0.0, pin=0) == 1
    assert preferred("shared, for up to 25 % of the cost", 0.01, 0.0, pin=0) == 0
    assert preferred("shared, for up to 25 % of the cost", 0.1, 0.0, pin=0) == 1


@pytest.mark.parametrize(("name", "is_shared"), [("shared", True), ("own", False)])
def test_replicas_have_the_same_pins_only_if_they_are_shared(name: str, is_shared: bool) -> None:
    make: Callable[[], object] = rule_of(name, NUMBERS).make
    first, second = make(), make()
    assert isinstance(first, Pinned)
    assert isinstance(second, Pinned)
    assert (first._pins is second._pins) == is_shared
