"""What is no pick and no report, and who may make them."""

from collections.abc import Iterator
from typing import Any

import pytest
from kvbraid.service.config import Limits, ServerOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application

from tests.service.in_process import TestClient
from tests.service.picks import PROMPT, Fleet, fleet_of
from tests.service.score_app import refusal


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


@pytest.mark.parametrize(
    ("change", "status", "code", "told"),
    [
        ({"model": "x"}, 404, "unknown_model", "'x'"),
        ({"token_ids": [2**64]}, 400, "malformed_body", "$.token_ids[0]"),
        ({"token_ids": None}, 400, "malformed_body", "token_ids"),
        ({"request_id": ""}, 400, "malformed_body", "request_id: Expected `str` of length >= 1"),
        ({"request_id": "x" * 257}, 400, "malformed_body", "request_id"),
        ({"session": "x" * 1025}, 400, "malformed_body", "session"),
        ({"priority": 2**31}, 400, "malformed_body", "priority"),
        ({"priority": 0.5}, 400, "malformed_body", "priority"),
        ({"candidates": "a"}, 400, "malformed_body", "candidates"),
        ({"candidates": [1]}, 400, "malformed_body", "candidates[0]: Expected `str | object`"),
        ({"candidates": [{"pod": "a"}]}, 400, "malformed_body", "candidates[0]"),
        ({"candidates": [{"pod": "a", "dp_rnk": 0}]}, 400, "malformed_body", "mean dp_rank?"),
        ({"pods": ["a"]}, 400, "malformed_body", "unknown key pods"),
        ({"prompt": "Hi"}, 400, "malformed_body", "unknown key prompt"),
    ],
)
def test_what_is_no_pick_is_refused_and_books_nothing(
    fleet: Fleet, change: dict[str, Any], status: int, code: str, told: str
) -> None:
    answer = refusal(fleet.ask(**change))
    assert answer[:2] == (status, code)
    assert told in answer[2]
    assert sum(fleet.running().values()) == 0


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("model=m&candidates=a,b", "query: candidates: not JSON"),
        ("model=m&candidates=[1]", "query: candidates[0]: Expected `str | object`"),
        ("model=m&pods=a", "query: unknown key pods"),
        ("model=m&explain=perhaps", "query: explain"),
        ("candidates=[]", "`model`"),
    ],
)
def test_a_query_that_is_no_pick_is_refused(fleet: Fleet, query: str, told: str) -> None:
    headers = {"content-type": "application/octet-stream"}
    answer = fleet.client.post(f"/v1/pick?{query}", content=bytes(4), headers=headers)
    assert refusal(answer)[:2] == (400, "malformed_body")
    assert told in refusal(answer)[2]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"pick": "p"}, "event"),
        ({"event": "end"}, "pick"),
        ({"pick": "p", "event": "begun"}, "event: Invalid enum value 'begun'"),
        ({"pick": "", "event": "end"}, "pick: Expected `str` of length >= 1"),
        ({"pick": "p", "event": "end", "cached_tokens": -1}, "cached_tokens: Expected `int` >= 0"),
        ({"pick": "p", "event": "end", "cached": 1}, "unknown key cached; did you mean"),
    ],
)
def test_what_is_no_report_is_refused(fleet: Fleet, body: dict[str, object], told: str) -> None:
    answer = refusal(fleet.client.post("/v1/picked", json=body))
    assert answer[:2] == (400, "malformed_body")
    assert told in answer[2]


def test_a_prompt_keeps_the_limit_of_tokens() -> None:
    for fleet in fleet_of(limits=Limits(tokens=9)):
        assert refusal(fleet.ask())[:2] == (413, "too_many_tokens")
        assert fleet.ask(token_ids=[1] * 9).status_code == 200


def test_an_empty_prompt_is_sent_somewhere(fleet: Fleet) -> None:
    answer = fleet.pick(token_ids=[])
    assert (answer["num_tokens"], answer["resumable"]) == (0, 0)


def test_both_need_the_permission_of_a_change(fleet: Fleet) -> None:
    bodies = {
        "/v1/pick": {"model": "m", "token_ids": PROMPT},
        "/v1/picked": {"pick": "p", "event": "end"},
    }
    guarded = Access.of(ServerOptions(token="t"))
    with TestClient(Application(fleet.service, access=guarded)) as client:
        for path, body in bodies.items():
            assert refusal(client.post(path, json=body))[:2] == (401, "unauthorized")
            allowed = {"authorization": "Bearer t"}
            assert client.post(path, json=body, headers=allowed).status_code == 200
    local = Access.of(ServerOptions())
    away = Application(fleet.service, access=local)
    with TestClient(away, base_url="http://evil.example") as client:
        for path, body in bodies.items():
            assert refusal(client.post(path, json=body))[:2] == (403, "foreign_host")
    off = Application(fleet.service, access=Access.of(ServerOptions(host="0.0.0.0")))
    with TestClient(off) as client:
        for path, body in bodies.items():
            assert refusal(client.post(path, json=body))[:2] == (403, "registration_off")
    assert sum(fleet.running().values()) == 1
