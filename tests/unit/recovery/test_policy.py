"""Budgets and cooldowns: how often, how long, for whom; against the list of all events."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given
from kvbraid.errors import InvalidValueError
from kvbraid.recovery.decision.policy import Cooldowns, RetryBudget


def test_requests_that_end_are_forgotten() -> None:
    budget = RetryBudget(retries=0)
    assert not budget.failed(5, now=0)
    budget.ended(5)
    budget.ended(5)
    assert len(budget) == 0
    assert budget.allows(5, now=0)


def test_only_so_many_tiers_are_remembered() -> None:
    tiers = Cooldowns(failures=1, duration=10, max_tiers=2)
    for name in ("a", "b", "a", "c"):
        tiers.failed(name, now=0)
    assert tiers.cooling(now=1) == ("a", "c")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RetryBudget(retries=-1), "retries is -1; expected an integer of at least 0"),
        (lambda: RetryBudget(retries=1, deadline=-0.5), "deadline is -0.5; expected at least 0"),
        (lambda: RetryBudget(retries=1, deadline=float("nan")), "deadline is nan"),
        (
            lambda: Cooldowns(failures=0, duration=1),
            "failures is 0; expected an integer of at least 1",
        ),
        (lambda: Cooldowns(failures=1, duration=-1), "duration is -1; expected at least 0"),
        (
            lambda: Cooldowns(failures=1, duration=1, max_tiers=0),
            "max_tiers is 0; expected an integer of at",
        ),
    ],
)
def test_limits_that_make_no_sense_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.booleans(), st.integers(0, 5)), max_size=30
)


@given(events=EVENTS, failures=st.integers(1, 3), duration=st.integers(0, 6))
def test_a_tier_is_in_cooldown_if_its_last_events_say_so(
    events: list[tuple[str, bool, int]], failures: int, duration: int
) -> None:
    tiers, past, now = Cooldowns(failures=failures, duration=duration), [], 0
    for tier, is_failure, later in events:
        now += later
        past.append((tier, is_failure, now))
        if is_failure:
            assert tiers.failed(tier, now) == tiers.is_cooling(tier, now)
        else:
            tiers.succeeded(tier)
        for each in ("a", "b"):
            own = [(bad, then) for name, bad, then in past if name == each]
            row = next((n for n, (bad, _) in enumerate(reversed(own)) if not bad), len(own))
            expected = row >= failures and now - own[-1][1] < duration
            assert tiers.is_cooling(each, now) == expected
            assert (each in tiers.cooling(now)) == expected


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=30),
    retries=st.integers(0, 3),
    deadline=st.one_of(st.none(), st.integers(0, 12)),
)
def test_no_request_asks_more_often_or_later_than_allowed(
    events: list[tuple[int, int]], retries: int, deadline: int | None
) -> None:
    budget, past, now = RetryBudget(retries=retries, deadline=deadline), [], 0
    for request, later in events:
        now += later
        past.append((request, now))
        may_ask = budget.failed(request, now)
        for number in range(3):
            own = [then for each, then in past if each == number]
            in_time = not own or deadline is None or now <= own[0] + deadline
            assert budget.allows(number, now) == (in_time and len(own) <= retries)
        assert may_ask == budget.allows(request, now)
    assert len(budget) == len({request for request, _ in past})
