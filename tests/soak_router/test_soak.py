"""The soak of the gateway, briefly, and the parts of it that judge."""

import asyncio
from inspect import signature

import pytest
import uvloop
from kvbraid.service.feeds.subscriber import Subscriber

from tests.soak_router.clients import classified
from tests.soak_router.findings import JUDGED_S, MOST_GROWTH, Findings
from tests.soak_router.run import SETTLE_S, SoakOptions, soak

WARM_S = 60.0


def test_a_gateway_survives_random_traffic_and_failing_pods() -> None:
    options = SoakOptions(seconds=12.0, seed=1, exact_s=SETTLE_S, round_s=4.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        findings = runner.run(soak(options))
    assert not findings.wrong, findings.words
    assert findings.predictions["quiet: exact"] > 0
    assert findings.outcomes.total() > 0
    assert findings.acts.total() > 0


def test_a_pod_that_was_away_for_long_is_tried_often_enough_to_be_exact_in_time() -> None:
    longest_s = signature(Subscriber).parameters["retry_max_s"].default
    assert 2 * longest_s < SoakOptions(seconds=1, seed=1).exact_s


QUIET = (1, 0, 7)


@pytest.mark.parametrize(
    ("lower", "upper", "cached", "now", "expected"),
    [
        (16, 16, 16, QUIET, "exact"),
        (16, 32, 32, QUIET, "within"),
        (16, 32, 48, QUIET, "more: cached meanwhile"),
        (16, 16, 0, (2, 0, 0), "less: restarted meanwhile"),
        (16, 16, 0, (1, 1, 8), "less: cut off meanwhile"),
        (16, 16, 0, (1, 0, 8), "less: evicted meanwhile"),
        (16, 16, 0, QUIET, "less: overpromised"),
    ],
)
def test_a_prediction_that_was_too_high_has_a_reason(
    lower: int, upper: int, cached: int, now: tuple[int, int, int], expected: str
) -> None:
    assert classified(lower, upper, cached, QUIET, now) == expected


@pytest.mark.parametrize(
    ("mib_per_hour", "lasts_s", "wrong"),
    [
        (MOST_GROWTH * 2, JUDGED_S * 2, {"memory": 1}),
        (MOST_GROWTH / 2, JUDGED_S * 2, {}),
        (MOST_GROWTH * 2, JUDGED_S / 2, {}),  # Too short to tell.
    ],
)
def test_a_gateway_that_grows_after_its_warm_up_is_blamed(
    mib_per_hour: float, lasts_s: float, wrong: dict[str, int]
) -> None:
    findings = Findings()
    findings.memory = [(0.0, 10.0)]  # Before the warm-up everything grows.
    for at in range(int(WARM_S), int(WARM_S + lasts_s) + 1, 10):
        findings.memory.append((float(at), 90.0 + mib_per_hour * at / 3600))
    findings.judge_memory(WARM_S)
    assert findings.slope(WARM_S) == pytest.approx(mib_per_hour)
    assert findings.wrong == wrong
