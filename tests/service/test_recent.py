"""GET /v1/requests and /v1/strips: the last requests, and the prompts of those that are kept."""

from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.recent import _runner_up

from tests.service.picks import PROMPT, REUSED, Fleet, fleet_of, hold
from tests.service.score_app import refusal

KEEPS = ConsoleOptions(prompts=True, prompt_bytes=2 * 8 * len(PROMPT))
"""Room for the prompts of two requests."""


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


@pytest.fixture
def keeping() -> Iterator[Fleet]:
    yield from fleet_of(console=KEEPS)


def rows(fleet: Fleet) -> list[dict[str, Any]]:
    answer: dict[str, Any] = fleet.client.get("/v1/requests").json()
    assert answer["now_s"] == fleet.clock.now
    return list(answer["requests"])


def test_a_decision_is_shown_with_the_runner_up_and_every_term(fleet: Fleet) -> None:
    hold(fleet.index, "b", REUSED)
    pick = fleet.pick(request_id="r", explain=True)
    (row,) = rows(fleet)
    by_pod = {candidate["pod"]: candidate for candidate in pick["candidates"]}
    assert row["chosen"] == by_pod["b"]
    assert row["runner_up"] == by_pod["a"]
    assert row["request"] == "r"
    assert (row["lower"], row["upper"]) == (pick["lower"], pick["upper"]) == (REUSED, REUSED)
    assert (row["status"], row["delivered"], row["ladder"]) == ("decided", None, None)
    assert row["num_tokens"] == len(PROMPT)
    assert not row["has_prompt"]


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, inf]), min_size=2, max_size=6), st.data())
def test_the_runner_up_is_the_best_of_the_others(costs: list[float], data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, len(costs) - 1))
    others = [cost for place, cost in enumerate(costs) if place != chosen]
    found = _runner_up(costs, chosen)
    assert found != chosen
    assert costs[found] == min(others)


def test_one_candidate_has_no_runner_up(fleet: Fleet) -> None:
    fleet.pick(candidates=["a"])
    assert rows(fleet)[0]["runner_up"] is None
    assert rows(fleet)[0]["num_candidates"] == 1


def test_reports_change_a_request_and_the_last_change_comes_first(fleet: Fleet) -> None:
    for name in ("1", "2", "3"):
        fleet.pick(request_id=name)
        fleet.clock.now += 1
    assert fleet.report("1", "first_token") == "noted"
    assert [row["request"] for row in rows(fleet)] == ["1", "3", "2"]
    ended = fleet.reported("1", "end", cached_tokens=16)
    fleet.report("2", "failed")
    second, first, third = rows(fleet)
    assert (first["status"], first["delivered"]) == ("ended", 16)
    assert first["ladder"] == ended["ladder"]
    assert first["changed_s"] - first["decided_s"] == 3
    assert (second["status"], third["status"]) == ("failed", "decided")


def test_a_request_that_is_asked_about_again_is_one(fleet: Fleet) -> None:
    fleet.pick(request_id="r")
    fleet.pick(request_id="r", candidates=["b"])
    assert [row["chosen"]["pod"] for row in rows(fleet)] == ["b"]


def test_one_request_is_asked_for_by_its_name(fleet: Fleet) -> None:
    for name in ("r r/1", "2"):
        fleet.pick(request_id=name)
    answer = fleet.client.get("/v1/requests", params={"request": "r r/1"}).json()
    assert answer["requests"] == rows(fleet)[1:]
    assert answer == fleet.client.get("/requests.json", params={"request": "r r/1"}).json()
    assert fleet.client.get("/v1/requests?request=x").json()["requests"] == []
    assert refusal(fleet.client.get("/v1/requests?name=x"))[:2] == (400, "malformed_body")


def test_reports_of_requests_that_are_not_kept_change_nothing() -> None:
    for fleet in fleet_of(console=ConsoleOptions(requests=0)):
        pick = fleet.pick()["pick"]
        fleet.report(pick, "end")
        assert rows(fleet) == []


def test_a_kept_prompt_is_explained_and_never_sent(keeping: Fleet) -> None:
    hold(keeping.index, "b", 96)
    keeping.pick(request_id="r r/1")
    (row,) = rows(keeping)
    assert row["has_prompt"]
    assert "token_ids" not in keeping.client.get("/v1/requests").text
    answer = keeping.client.get("/v1/strips", params={"request": "r r/1"})
    body = {"model": "m", "token_ids": PROMPT}
    assert answer.json() == keeping.client.post("/v1/strips", json=body).json()
    assert {pod["pod"]: pod["lower"] for pod in answer.json()["pods"]} == {"a": 0, "b": 96}


def test_without_the_operators_word_no_prompt_is_kept(fleet: Fleet) -> None:
    fleet.pick(request_id="r")
    told = fleet.client.get("/v1/strips?request=r")
    assert refusal(told) == (404, "unknown_request", "the prompt of request 'r' is not kept")
    told = fleet.client.get("/v1/strips?request=x")
    assert refusal(told)[2] == "request 'x' is not among the last 1000"
    assert refusal(fleet.client.get("/v1/strips"))[:2] == (400, "malformed_body")


def test_of_prompts_the_oldest_are_forgotten_first(keeping: Fleet) -> None:
    for name in ("1", "2", "3"):
        keeping.pick(request_id=name)
        keeping.service.picking.recent.check_integrity()
    assert {row["request"]: row["has_prompt"] for row in rows(keeping)} == {
        "1": False, "2": True, "3": True,
    }  # fmt: skip
    assert keeping.client.get("/v1/strips?request=1").status_code == 404


STEPS = st.lists(
    st.tuples(st.sampled_from(["pick", "first_token", "end"]), st.sampled_from("abcdef")),
    max_size=40,
)


@given(STEPS)
def test_what_is_kept_is_what_changed_last(steps: list[tuple[str, str]]) -> None:
    """The obvious model: a list of names, the last change at its end, cut to its last four."""
    order: list[str] = []
    booked: set[str] = set()
    for fleet in fleet_of(console=ConsoleOptions(requests=4, prompts=True, prompt_bytes=3000)):
        recent, known = fleet.service.picking.recent, 0
        for step, name in steps:
            if step == "pick":
                fleet.pick(request_id=name)
                booked.add(name)
            else:
                fleet.report(name, step)
            if step == "pick" or (name in booked and name in order):
                order = [*[other for other in order if other != name][-3:], name]
                _, changed = recent.changed_after(known, 9)
                assert [row.request for row in changed] == [name]
            booked -= {name} if step == "end" else set()
            known, _ = recent.changed_after(known, 9)
            recent.check_integrity()
            assert [row["request"] for row in rows(fleet)] == order[::-1]
