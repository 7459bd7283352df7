"""The rule of kvbraid: its terms by hand, and what they are for."""

from itertools import chain
from math import isclose, isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.models import PrefillCost
from kvbraid.policy import CostOptions, CostRule, Seconds

from tests.unit.policy.views import SECONDS, view

ALONE = CostOptions(potential=0.0, displacement=0.0, queue=0.0)


def test_a_prefill_is_linear_in_tokens_and_in_pairs() -> None:
    seconds = Seconds(fixed=1.0, per_token=0.5, per_pair=0.25)
    assert seconds.prefill(4, 0) == 1.0 + 0.5 * 4 + 0.25 * 8
    assert seconds.prefill(4, 2) == 1.0 + 0.5 * 2 + 0.25 * (8 - 2)
    assert seconds.prefill(4, 4) == 1.0


def test_seconds_of_a_model_come_from_its_operations() -> None:
    seconds = Seconds.of_model(PrefillCost(per_token=2e9, per_pair=1e5), flops=1e14)
    assert (seconds.per_token, seconds.per_pair) == (2e-5, 1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Seconds(fixed=-1.0), r"fixed is -1.0; expected seconds from 0 to 1e\+12"),
        (lambda: Seconds(per_pair=1e200), r"per_pair is 1e\+200; expected seconds from 0 to 1e"),
        (lambda: Seconds(per_token=float("nan")), "per_token is nan; expected seconds"),
        (lambda: Seconds(per_token=0, per_pair=0), "per_token and per_pair are both 0"),
        (lambda: Seconds(step_tokens=0), "step_tokens"),
        (lambda: Seconds.of_model(PrefillCost(), flops=0), "flops"),
        (lambda: CostOptions(potential=1.5), "potential is 1.5; expected a number from 0 to 1"),
        (
            lambda: CostOptions(queue=float("inf")),
            r"queue is inf; expected a number from 0 to 1e\+12",
        ),
    ],
)
def test_coefficients_that_nobody_has_are_refused_by_name(make, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValueError, match=message):
        make()


def test_the_largest_coefficients_still_give_numbers() -> None:
    most = Seconds(
        fixed=1e12, per_token=1e12, per_pair=1e12, per_loaded_token=1e12, per_decoded_token=1e12
    )
    seen = view(
        resumable=[0, 1 << 40], present=[0, 1 << 40], wait=[1e60, 0.0], busy=0.99, rate=1e9,
        seconds=most, tokens=1 << 40,
    )  # fmt: skip
    rule = CostRule(CostOptions(displacement=1e12, queue=1e12))
    assert all(map(isfinite, [*rule.costs(seen), *chain(*rule.terms(seen))]))


def test_terms_are_those_of_the_formula() -> None:
    seen = view(resumable=[400, 0], present=[600, 0], wait=[0.5, 0.0], busy=0.5, rate=2.0)
    first, second = CostRule().terms(seen)
    assert first.wait == 0.5
    assert first.prefill == pytest.approx(0.01 + 600e-4)
    assert first.potential == pytest.approx(-0.5 * 200e-4)
    assert first.displacement == pytest.approx(0.5 * 1.0 * 400e-4)
    assert first.queue == pytest.approx(0.1 * 2.0 / 0.5 * (0.01 + 400e-4) * (0.5 + 0.01 + 600e-4))
    assert (second.wait, second.potential) == (0.0, 0.0)
    assert (first.loading, first.decoding) == (0.0, 0.0)


@given(seed=st.integers(0, 2**32))
def test_costs_are_the_sums_of_their_terms(seed: int) -> None:
    random = Random(seed)
    tokens, num = random.randrange(1, 5000), random.randrange(1, 5)
    present = [random.randint(0, tokens) for _ in range(num)]
    seen = view(
        tokens=tokens,
        num=num,
        present=present,
        resumable=[random.randint(0, held) for held in present],
        wait=[random.random() for _ in range(num)],
        running=[random.randrange(9) for _ in range(num)],
        busy=random.uniform(0, 0.95),
        rate=random.uniform(0, 100),
        seconds=Seconds(
            per_loaded_token=random.choice((0.0, 1e-6)),
            per_decoded_token=random.choice((0.0, 1e-3)),
            step_tokens=random.choice((64, 8192)),
        ),
    )
    rule = CostRule(CostOptions(potential=random.random(), queue=random.random()))
    for cost, terms in zip(rule.costs(seen), rule.terms(seen), strict=True):
        assert isclose(cost, sum(terms), rel_tol=1e-9, abs_tol=1e-9)
        assert cost >= 0


@given(seed=st.integers(0, 2**32), scale=st.floats(0.01, 100))
def test_a_choice_does_not_depend_on_the_unit_of_time(seed: int, scale: float) -> None:
    random = Random(seed)
    present = [random.randint(0, 1000) for _ in range(4)]
    columns = {"num": 4, "present": present, "resumable": [held // 2 for held in present]}
    wait, rate = [random.random() for _ in range(4)], random.uniform(0, 10)
    scaled = Seconds(fixed=SECONDS.fixed * scale, per_token=SECONDS.per_token * scale, per_pair=0)
    costs = CostRule().costs(view(**columns, wait=wait, rate=rate, busy=0.6))  # type: ignore[arg-type]
    slower = CostRule().costs(
        view(
            **columns,  # type: ignore[arg-type]
            wait=[seconds * scale for seconds in wait],
            rate=rate / scale,
            busy=0.6,
            seconds=scaled,
        )
    )
    assert slower == pytest.approx([cost * scale for cost in costs])


def test_an_idle_fleet_counts_only_this_request() -> None:
    seen = view(resumable=[400, 0], wait=[0.01, 0.0], busy=0.0, rate=0.0)
    assert CostRule().costs(seen) == pytest.approx(CostRule(ALONE).costs(seen))


def test_a_busy_fleet_goes_where_the_prompt_is_present() -> None:
    """At the holder it waits longer than a prefill takes; elsewhere it would delay others."""
    columns = {"present": [1000, 0], "resumable": [990, 0], "wait": [0.15, 0.0]}
    holder, other = CostRule().costs(view(**columns, busy=0.1, rate=1.0))  # type: ignore[arg-type]
    assert holder > other
    holder, other = CostRule().costs(view(**columns, busy=0.9, rate=1.0))  # type: ignore[arg-type]
    assert holder < other


def test_what_is_present_but_not_resumable_breaks_ties() -> None:
    """The state that is missing will be had where the prompt is computed again, and only there."""
    present, absent = CostRule().costs(view(resumable=[0, 0], present=[900, 0]))
    assert present < absent
    present, absent = CostRule(ALONE).costs(view(resumable=[0, 0], present=[900, 0]))
    assert present == absent


def test_requests_that_decode_delay_each_step_of_a_prefill() -> None:
    seconds = Seconds(fixed=0.0, per_token=1e-4, per_decoded_token=0.002, step_tokens=300)
    seen = view(tokens=1000, resumable=[0, 500], running=[3, 3], seconds=seconds)
    assert [terms.decoding for terms in CostRule().terms(seen)] == pytest.approx(
        [0.002 * 3 * 4, 0.002 * 3 * 2]
    )
