"""Fits of what a prefill takes: they find planted coefficients, through noise and through lies."""

from dataclasses import replace
from math import inf, nan
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId
from kvbraid.policy import Decision, EngineLoad, Router, RouterOptions, Seconds
from kvbraid.policy.baselines import RoundRobin
from kvbraid.policy.fitting import EVERY, LEAST, MOST_SCALE, WINDOW, Fit, Fitted, Measured
from kvbraid.policy.seconds import MOST_SECONDS
from kvbraid.spec import GroupSpec, SpecKind, Topology

GIVEN: Final = Seconds(fixed=0.012, per_token=1e-4, per_pair=1e-9, per_decoded_token=1e-3)
SIZES: Final = ((1_000, 0), (4_000, 1_000), (8_000, 7_000), (16_000, 0), (20_000, 19_900))


def planted(scale: float, fixed: float) -> Seconds:
    per_token, per_pair = scale * GIVEN.per_token, scale * GIVEN.per_pair
    return replace(GIVEN, fixed=fixed, per_token=per_token, per_pair=per_pair)


def feed(fit: Fit, true: Seconds, num: int, chance: Random, *, noise: float, lies: float) -> None:
    """Tell of prefills that take up to `noise` more or less; a share of `lies` says anything."""
    for _ in range(num):
        tokens = chance.randrange(200, 30_000)
        cached, running = chance.randrange(tokens), chance.randrange(20)
        took = true.prefill(tokens, cached) * chance.uniform(1 - noise, 1 + noise)
        took += true.decoding(tokens, cached, running)
        if chance.random() < lies:
            took, cached = took * 10 ** chance.uniform(-3, 3), chance.randrange(tokens)
        assert fit.add(tokens, cached, running, took)
        fit.check_integrity()


def error(fit: Fit, true: Seconds) -> float:
    """By what share a fitted prefill differs from a true one, at worst."""
    seconds = fit.now.seconds
    return max(abs(seconds.prefill(*size) / true.prefill(*size) - 1) for size in SIZES)


@given(scale=st.floats(0.02, 50), fixed=st.floats(0.001, 1.0), seed=st.integers(0, 1 << 30))
def test_what_was_planted_is_found_exactly_if_nothing_disturbs_it(
    scale: float, fixed: float, seed: int
) -> None:
    true = planted(scale, fixed)
    fit = Fit(GIVEN)
    feed(fit, true, LEAST, Random(seed), noise=0.0, lies=0.0)
    assert fit.now.num_samples == LEAST
    assert error(fit, true) < 1e-6


@given(scale=st.sampled_from([0.1, 1 / 3, 3.0, 10.0]), seed=st.integers(0, 1 << 30))
def test_what_was_planted_is_found_through_noise_and_lies(scale: float, seed: int) -> None:
    true = planted(scale, 0.03)
    fit = Fit(GIVEN)
    feed(fit, true, 2 * WINDOW, Random(seed), noise=0.2, lies=0.15)
    scales = fit.now.seconds.per_token / GIVEN.per_token
    assert scales == pytest.approx(scale, rel=0.25)
    assert fit.now.seconds.prefill(16_000, 0) == pytest.approx(true.prefill(16_000, 0), rel=0.25)


@given(seed=st.integers(0, 1 << 30))
def test_a_fit_follows_pods_that_have_become_slower(seed: int) -> None:
    chance, fit = Random(seed), Fit(GIVEN)
    feed(fit, planted(1.0, 0.012), WINDOW, chance, noise=0.1, lies=0.0)
    feed(fit, planted(5.0, 0.012), WINDOW, chance, noise=0.0, lies=0.0)
    assert error(fit, planted(5.0, 0.012)) < 1e-6


def test_prompts_that_are_all_alike_tell_how_long_they_take() -> None:
    fit = Fit(GIVEN)
    for number in range(LEAST):
        fit.add(4_000 + number % 2, 16, 0, 3 * GIVEN.prefill(4_000, 16))
    seconds = fit.now.seconds
    assert seconds.prefill(4_000, 16) == pytest.approx(3 * GIVEN.prefill(4_000, 16), rel=1e-3)
    assert seconds.fixed == pytest.approx(3 * GIVEN.fixed, rel=1e-3)


def test_few_samples_change_nothing_and_more_count_by_the_batch() -> None:
    fit, true = Fit(GIVEN), planted(2.0, 0.02)
    feed(fit, true, LEAST - 1, Random(1), noise=0.0, lies=0.0)
    assert fit.now == Fitted(GIVEN, 0)
    feed(fit, true, EVERY, Random(2), noise=0.0, lies=0.0)
    assert fit.now.num_samples == LEAST
    assert fit.now.seconds.per_token == pytest.approx(2 * GIVEN.per_token)


@given(
    samples=st.lists(
        st.tuples(
            st.integers(-5, 1 << 40), st.integers(-5, 1 << 40), st.integers(0, 1 << 20),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=200,
    )
)  # fmt: skip
def test_whatever_is_said_the_coefficients_stay_within_their_bounds(
    samples: list[tuple[int, int, int, float]],
) -> None:
    fit = Fit(GIVEN)
    taken = 0
    for sample in samples:
        taken += fit.add(*sample)
        fit.check_integrity()
    assert taken == sum(0 <= c < n and 0 < took <= MOST_SECONDS for n, c, _, took in samples)


def test_a_fit_stays_within_what_a_coefficient_may_be() -> None:
    fit = Fit(Seconds(fixed=0.0, per_token=0.0, per_pair=1e11))
    for _ in range(LEAST):
        fit.add(1, 0, 0, MOST_SECONDS)  # Half a pair takes it.
    assert fit.now.seconds.per_pair == MOST_SECONDS


@pytest.mark.parametrize(("took", "scale"), [(1e-9, 1 / MOST_SCALE), (1e9, MOST_SCALE)])
def test_lies_of_everybody_end_at_the_bounds(took: float, scale: float) -> None:
    fit = Fit(GIVEN)
    for number in range(LEAST):
        fit.add(1000 * (number + 1), 0, 0, took * (number + 1))
    assert fit.now.seconds.per_token == pytest.approx(scale * GIVEN.per_token)


@pytest.mark.parametrize(
    ("tokens", "cached", "took"),
    [(100, 100, 1.0), (100, -1, 1.0), (0, 0, 1.0), (100, 0, 0.0), (100, 0, -1.0), (9, 0, nan)],
)
def test_what_cannot_be_is_no_sample(tokens: int, cached: int, took: float) -> None:
    fit = Fit(GIVEN)
    assert not fit.add(tokens, cached, 0, took)


@pytest.mark.parametrize(
    "expected",
    [Seconds(fixed=1e12), Seconds(per_token=0.0, per_pair=5e-324)],
)
def test_extreme_coefficients_are_fitted_or_kept_like_others(expected: Seconds) -> None:
    fit = Fit(expected)
    for number in range(2 * LEAST):
        fit.add(1 + number // 4, 0, 0, 1.0 + number)
        fit.check_integrity()
    assert 0 < fit.now.seconds.prefill(100, 0) < inf


@pytest.mark.parametrize(
    ("first_token", "cached", "end", "outcome"),
    [
        (1.0, 0, 2.0, "fit_samples"),
        (1.0, None, 2.0, "fit_not_reported"),
        (None, 0, 2.0, "fit_not_reported"),
        (1.0, 0, 1.01, "fit_not_reported"),  # In one piece: the first byte is the last.
        (0.0, 0, 2.0, "fit_impossible"),
        (-1.0, 0, 2.0, "fit_impossible"),  # The clock went back.
        (1.0, 100, 2.0, "fit_impossible"),
    ],
)
def test_a_request_is_a_sample_if_all_of_it_was_reported(
    first_token: float | None, cached: int | None, end: float, outcome: str
) -> None:
    measured = Measured(Fit(GIVEN), tokens=100, running=0, at=0.0, first_token=first_token)
    assert measured.end(cached, end) == outcome


# ---- in a router ----------------------------------------------------------------------------

TRUE: Final = planted(4.0, 0.1)
ATTENTION: Final = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))


def prompt(number: int, tokens: int) -> Request:
    return Request(model="m", token_ids=range(number, number + tokens))


def router(*pods: str) -> Router:
    index = FleetIndex()
    for pod in pods:
        index.register(PodId(pod), model="m", topology=ATTENTION)
    return Router(
        index, seconds={"m": GIVEN}, options=RouterOptions(fit=frozenset({"m"})), chance=Random(1)
    )


def serve(routes: Router, number: int, *, cached: int | None = 0) -> Decision:
    """Let a request come, get its first token when a pod that is `TRUE` has it, and end."""
    tokens, now = 500 + 100 * (number % 20), 100.0 * number
    decision = routes.pick(str(number), prompt(1_000_000 * number, tokens), now=now)
    routes.first_token(str(number), now=now + TRUE.prefill(tokens, 0))
    routes.end(str(number), now=now + 90, cached_tokens=cached)
    routes.check_integrity()
    return decision


def test_a_router_finds_out_what_a_prefill_takes_and_its_decisions_say_so() -> None:
    routes = router("a", "b")
    decisions = [serve(routes, number) for number in range(LEAST + 1)]
    assert {each.origin for each in decisions[:-1]} == {"given"}
    last = decisions[-1]
    assert last.origin == "fitted"
    assert last.fitted is not None
    assert last.fitted.num_samples == LEAST
    assert last.view.seconds == last.fitted.seconds
    assert last.view.seconds.per_token == pytest.approx(TRUE.per_token)
    assert last.view.seconds.fixed == pytest.approx(TRUE.fixed)
    assert routes.counts()["fit_samples"] == LEAST + 1


def test_another_table_keeps_a_fit_unless_it_gives_other_coefficients() -> None:
    routes = router("a", "b")
    for number in range(LEAST):
        serve(routes, number)
    fitted = RouterOptions(fit=frozenset({"m"}))
    changed = replace(fitted, hold_s=1_000.0, load_age_s=9.0)
    routes.route_by(seconds={"m": GIVEN}, options=changed)
    assert serve(routes, LEAST).origin == "fitted"
    other = replace(GIVEN, fixed=1.0)
    routes.route_by(seconds={"m": other}, options=changed)
    decision = serve(routes, LEAST + 1)
    assert (decision.origin, decision.view.seconds) == ("given", other)
    routes.route_by(RoundRobin(), seconds={}, options=RouterOptions())
    decision = serve(routes, LEAST + 2)
    assert (decision.policy.name, decision.origin, decision.fitted) == (
        "round_robin", "default", None
    )  # fmt: skip


def test_a_prefill_that_others_delay_tells_nothing() -> None:
    routes = router("a")
    for name in ("alone", "second"):
        routes.pick(name, prompt(0, 500), now=0.0)
    routes.pick("no ids", Request(model="m", token_ids=[]), now=0.0, num_tokens=500)
    for name in ("alone", "second", "no ids"):
        routes.first_token(name, now=1.0)
        routes.end(name, now=2.0, cached_tokens=0)
    routes.note_load((PodId("a"), 0), EngineLoad(running=1, waiting=1, usage=0.0), now=2.0)
    routes.pick("beside others", prompt(0, 500), now=2.0)
    routes.first_token("beside others", now=3.0)
    routes.end("beside others", now=4.0, cached_tokens=0)
    assert routes.counts() == {"picked": 4, "fit_samples": 1}


def test_what_was_not_reported_or_failed_is_no_sample() -> None:
    routes = router("a")
    serve(routes, 0, cached=None)
    serve(routes, 1, cached=10_000)
    routes.pick("2", prompt(0, 500), now=200.0)
    routes.first_token("2", now=201.0)
    routes.fail("2", now=202.0)
    counts = routes.counts()
    assert (counts["fit_not_reported"], counts["fit_impossible"]) == (1, 1)
    assert "fit_samples" not in counts


def test_only_the_first_of_several_first_tokens_counts() -> None:
    routes = router("a")
    for number in range(LEAST):
        tokens, now = 500 + 100 * number, 100.0 * number
        routes.pick("r", prompt(1_000_000 * number, tokens), now=now)
        for late in (0, 5):
            routes.first_token("r", now=now + TRUE.prefill(tokens, 0) + late)
        routes.end("r", now=now + 90, cached_tokens=0)
    last = routes.pick("r", prompt(0, 16), now=1e6)
    assert last.view.seconds.fixed == pytest.approx(TRUE.fixed)
