"""Sums over requests: the first quarter counts for bounds alone."""

import pytest
from kvbraid.sim.routing.results import Served, result_of


def served(number: int, *, pod: int = 0, cached: int = 60, upper: int = 100) -> Served:
    """A request that comes at its number, begins a second later and takes `number` seconds."""
    return Served(
        number=number,
        pod=pod,
        came=float(number),
        began=number + 1.0,
        busy_s=float(number),
        num_tokens=100,
        cached=cached,
        expected=80,
        lower=50,
        upper=upper,
        is_settled=number != 2,
    )


def test_a_result_sums_up_what_comes_after_the_first_quarter() -> None:
    found = [served(1, upper=55), served(3, pod=1), served(2, cached=0), served(4, cached=90)]
    result = result_of(found, 2, policy="p", in_flight=True)
    assert result.num_requests == 3
    assert result.ttft_mean_s == pytest.approx(4.0)
    assert (result.ttft_p50_s, result.ttft_p90_s, result.ttft_p99_s) == (4.0, 5.0, 5.0)
    assert (result.prompt_tokens, result.hit_tokens, result.computed_tokens) == (300, 150, 150)
    assert (result.expected_tokens, result.overstated_tokens) == (240, 20 + 80)
    assert result.hit_rate == 0.5
    assert result.imbalance == pytest.approx(6 * 2 / 9)
    assert result.utilisation == pytest.approx(9 / (2 * 2))
    assert (result.num_checked, result.num_violated) == (3, 1)


def test_json_has_every_field_and_the_rates() -> None:
    document = result_of([served(1), served(2)], 1, policy="p", in_flight=False).to_json()
    assert document["policy"] == "p"
    assert document["in_flight"] is False
    assert document["hit_rate"] == 0.6
    assert document["computed_tokens"] == 80
