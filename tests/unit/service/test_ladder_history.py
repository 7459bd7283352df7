"""The ladder by time: sums of intervals, and what is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.service import ladder_history
from kvbraid.service.answers import RungTokens
from kvbraid.service.ladder_history import INTERVAL_S, INTERVALS, LadderHistory
from kvbraid.service.rungs import Gap, GapName, GapReason

GAPS = [Gap(GapName.SEEN, GapReason.NEVER_SEEN, 30), Gap(GapName.BEST, GapReason.EVICTED, 10)]


def rungs(delivered: int | None) -> RungTokens:
    return RungTokens(
        prompt=100, seen=70, best=60, chosen=60, lower=60, upper=60, delivered=delivered
    )


def test_requests_of_one_interval_and_model_are_summed() -> None:
    history = LadderHistory()
    for model, delivered, now in (("m", 60, 1003), ("m", None, 1009), ("n", 60, 1009)):
        history.add(model, rungs(delivered), GAPS, float(now))
    first, second = history.rows()
    assert (first.model, first.begin_s, first.ended, first.reported) == ("m", 1000.0, 2, 1)
    assert (first.prompt, first.delivered) == (200, 60)
    assert [(gap.reason, gap.tokens) for gap in first.gaps] == [
        (GapReason.NEVER_SEEN, 60), (GapReason.EVICTED, 20),
    ]  # fmt: skip
    assert (second.model, second.ended) == ("n", 1)
    assert history.rows(since_s=1001.0) == []


TIMES = st.lists(st.tuples(st.floats(0, 3 * INTERVAL_S * INTERVALS), st.sampled_from("mno")))


@given(TIMES)
def test_an_hour_is_kept_in_order_whatever_the_clock_does(times: list[tuple[float, str]]) -> None:
    """The obvious model: all requests of the last hour, at the latest time until then."""
    history, latest = LadderHistory(), 0.0
    told: list[tuple[float, str]] = []
    for now, model in times:
        latest = max(latest, now // INTERVAL_S * INTERVAL_S)
        history.add(model, rungs(60), GAPS, now)
        told.append((latest, model))
        history.check_integrity()
        oldest = latest - INTERVALS * INTERVAL_S
        expected = {pair: told.count(pair) for pair in told if pair[0] > oldest}
        assert {(row.begin_s, row.model): row.ended for row in history.rows()} == expected


def test_many_models_cost_the_oldest_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_history, "MOST_ROWS", 5)
    history = LadderHistory()
    for number in range(4):
        for model in "abc":
            history.add(model, rungs(60), GAPS, number * INTERVAL_S)
            assert len(history.rows()) <= 5
    assert {row.begin_s for row in history.rows()} == {3 * INTERVAL_S}
