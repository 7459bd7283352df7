"""POST /v1/routed: what a gateway sent to a pod, and what came back, reaches the index."""

from typing import Any

import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.hashing import MediaItem
from kvbraid.service.config import Limits, ServerOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.in_process import TestClient
from tests.service.score_app import refusal

POD = {"model": "m", "endpoint": "tcp://h:5557", "dp_size": 2}
TOLD: dict[str, Any] = {"pod": "a", "model": "m", "token_ids": [1, 2, 3], "produced": [4]}


@pytest.fixture(autouse=True)
def pod(client: TestClient) -> None:
    assert client.put("/v1/pods/a", json=POD).status_code == 201
    assert client.put("/v1/pods/b", json={**POD, "model": "n"}).status_code == 201


def test_the_index_is_told_the_prompt_the_rank_and_the_answer(
    client: TestClient, index: FakeIndex
) -> None:
    media = [{"identifier": "i", "offset": 0, "length": 2}]
    body = {**TOLD, "dp_rank": 1, "lora": "l", "cache_salt": "s", "extra_keys": media}
    answer = client.post("/v1/routed", json=body)
    assert (answer.status_code, answer.json()) == (200, {"pod": "a", "status": "noted"})
    ((name, rank, request, produced),) = index.told
    assert (name, rank, produced) == ("a", 1, [4])
    assert (request.model, list(request.token_ids)) == ("m", [1, 2, 3])
    assert (request.lora, request.cache_salt) == ("l", "s")
    assert request.extra_keys == [MediaItem(identifier="i", offset=0, length=2)]


def test_the_rank_is_0_and_tokens_have_up_to_64_bits(client: TestClient, index: FakeIndex) -> None:
    wide = 2**64 - 1
    body = {**TOLD, "token_ids": [1, wide], "produced": [wide, 0]}
    client.post("/v1/routed", json=body).raise_for_status()
    ((_, rank, request, produced),) = index.told
    assert (rank, list(request.token_ids), produced) == (0, [1, wide], [wide, 0])


@pytest.mark.parametrize(
    ("change", "status", "code", "told"),
    [
        ({"model": "x"}, 404, "unknown_model", "'x'"),
        ({"pod": "x"}, 404, "unknown_pod", "'x'"),
        ({"pod": "b"}, 404, "unknown_pod", "no rank 0 of pod b serves m"),
        ({"dp_rank": 2}, 404, "unknown_pod", "no rank 2"),
        ({"dp_rank": -1}, 400, "malformed_body", "dp_rank"),
        ({"produced": None}, 400, "malformed_body", "produced"),
        ({"produced": [2**64]}, 400, "malformed_body", "$.produced[0] is 18446744073709551616"),
        ({"token_ids": [2**64]}, 400, "malformed_body", "$.token_ids[0]"),
        ({"token_ids": [-1]}, 400, "malformed_body", "token_ids"),
        ({"pods": ["a"]}, 400, "malformed_body", "pods"),
        ({"strategy": "exact"}, 400, "malformed_body", "strategy"),
    ],
)
def test_what_no_pod_can_have_been_sent_is_refused(
    client: TestClient, index: FakeIndex, change: dict[str, Any], status: int, code: str, told: str
) -> None:
    answer = refusal(client.post("/v1/routed", json={**TOLD, **change}))
    assert answer[:2] == (status, code)
    assert told in answer[2]
    assert index.told == []


@pytest.mark.parametrize("missing", ["pod", "model", "token_ids", "produced"])
def test_every_field_that_says_what_was_sent_is_needed(client: TestClient, missing: str) -> None:
    body = {name: value for name, value in TOLD.items() if name != missing}
    answer = refusal(client.post("/v1/routed", json=body))
    assert answer[:2] == (400, "malformed_body")
    assert missing in answer[2]


def test_the_prompt_and_the_answer_together_keep_the_limit_of_tokens() -> None:
    limited = Service(FakeIndex(), FakeFeed(), limits=Limits(tokens=5))
    with TestClient(Application(limited), base_url="http://localhost") as client:
        client.put("/v1/pods/a", json=POD).raise_for_status()
        assert client.post("/v1/routed", json={**TOLD, "produced": [1, 2]}).status_code == 200
        answer = refusal(client.post("/v1/routed", json={**TOLD, "produced": [1, 2, 3]}))
        assert answer == (413, "too_many_tokens", "6 tokens; limit 5")


def test_it_changes_what_the_index_says_and_needs_the_permission_of_a_change(
    service: Service, index: FakeIndex
) -> None:
    with TestClient(Application(service, access=Access.of(ServerOptions(token="t")))) as client:
        assert refusal(client.post("/v1/routed", json=TOLD))[:2] == (401, "unauthorized")
        allowed = {"authorization": "Bearer t"}
        assert client.post("/v1/routed", json=TOLD, headers=allowed).status_code == 200
    local = Access.of(ServerOptions())
    with TestClient(Application(service, access=local), base_url="http://evil.example") as client:
        assert refusal(client.post("/v1/routed", json=TOLD))[:2] == (403, "foreign_host")
    assert len(index.told) == 1


def test_the_real_index_takes_it_and_knows_its_ranks() -> None:
    real = Service(FleetIndex(), FakeFeed())
    with TestClient(Application(real), base_url="http://localhost") as client:
        client.put("/v1/pods/a", json=POD).raise_for_status()
        client.put("/v1/pods/b", json={**POD, "model": "n"}).raise_for_status()
        assert client.post("/v1/routed", json={**TOLD, "dp_rank": 1}).status_code == 200
        for change in ({"dp_rank": 2}, {"pod": "b"}):
            answer = refusal(client.post("/v1/routed", json={**TOLD, **change}))
            assert answer[:2] == (404, "unknown_pod")
