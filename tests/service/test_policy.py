"""GET /v1/policy: the rule and coefficients that count, and how far fitted ones are off."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from kvbraid.policy import RouterOptions, Seconds
from kvbraid.policy.fitting import LEAST
from kvbraid.service.http.events import TOPICS
from kvbraid.service.routing import RouterTable, Routing, read_routing

from tests.service.picks import Fleet, fleet_of

GIVEN = Seconds(fixed=0.01, per_token=1e-4, per_pair=0.0)
ROUTING = Routing(seconds={"m": GIVEN}, options=RouterOptions(fit=frozenset({"m"})))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of(ROUTING)


def prefill(fleet: Fleet, number: int, took: float) -> None:
    """Let a prompt of its own length take so many seconds, of which nothing was cached."""
    name = f"r{number}"
    fleet.pick(request_id=name, token_ids=[number] * (100 + 50 * number))
    fleet.clock.now += took
    fleet.report(name, "first_token")
    fleet.clock.now += 10
    fleet.report(name, "end", cached_tokens=0)


def test_what_counts_is_told_and_how_far_a_fit_is_off(fleet: Fleet) -> None:
    told = fleet.client.get("/v1/policy").json()
    assert (told["policy"], told["potential"], told["displacement"]) == ("cost", 0.5, 0.5)
    (row,) = told["models"]
    assert (row["origin"], row["fixed"], row["per_token"]) == ("given", 0.01, 1e-4)
    assert row["fit"] == {
        "num_kept": 0, "num_samples": 0, "took_s": None, "error_s": None,
        "expected_error_s": None,
    }  # fmt: skip
    for number in range(LEAST):  # Pods are three times as slow as expected.
        prefill(fleet, number, 3 * GIVEN.prefill(100 + 50 * number, 0))
    (row,) = fleet.client.get("/policy.json").json()["models"]
    assert (row["origin"], row["fit"]["num_samples"]) == ("fitted", LEAST)
    assert row["per_token"] == pytest.approx(3e-4)
    assert row["fit"]["error_s"] == pytest.approx(0, abs=1e-9)
    assert row["fit"]["expected_error_s"] == pytest.approx(2 / 3 * row["fit"]["took_s"])


def test_a_policy_of_others_has_no_coefficients_of_ours() -> None:
    table = RouterTable(policy="round_robin")
    (fleet,) = fleet_of(read_routing(table))
    told = fleet.client.get("/v1/policy").json()
    assert (told["policy"], told["potential"], told["queue"]) == ("round_robin", None, None)
    fleet.pick()
    (row,) = fleet.client.get("/v1/policy").json()["models"]
    assert (row["origin"], row["displacement"], row["fit"]) == ("default", None, None)


def test_busy_ranks_make_work_for_others_dearer(fleet: Fleet) -> None:
    for number in range(4):
        fleet.pick(request_id=str(number))
    (row,) = fleet.client.get("/v1/policy").json()["models"]
    assert row["busy"] > 0.3
    assert row["displacement"] == pytest.approx(0.5 * row["busy"] / (1 - row["busy"]))


def test_a_stream_tells_an_answer_once(fleet: Fleet) -> None:
    for name in ("policy", "config"):
        topic = TOPICS[name](fleet.service)
        whole = topic.advance()["answer"]
        assert whole is not None
        assert topic.advance()["answer"] is None
        assert topic.whole()["answer"] == whole
    topic = TOPICS["policy"](fleet.service)
    topic.advance()
    fleet.service.picking.route_by(replace(ROUTING, seconds={"m": replace(GIVEN, fixed=0.5)}))
    told = topic.advance()["answer"]
    assert told == fleet.service.picking.policy_answer()
    assert told.models[0].fixed == 0.5
