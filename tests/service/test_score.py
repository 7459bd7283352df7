"""POST /v1/score and /v1/explain: both bodies mean the same request; bad ones are refused."""

import json
import threading
from array import array
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from httpx import Response
from kvbraid.hashing import MediaItem
from kvbraid.ids import Tier
from kvbraid.service.answers import ExplainAnswer, ScoreAnswer
from kvbraid.service.http.calls import Call
from kvbraid.service.http.routes import is_short
from kvbraid.service.registry import Service
from kvbraid.service.requests import ScoreBody

from tests.service.fakes import FakeIndex
from tests.service.in_process import TestClient
from tests.service.score_app import refusal

POD = {"model": "m", "endpoint": "tcp://h:5557", "dp_size": 2}
RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(autouse=True)
def pod(client: TestClient) -> None:
    assert client.put("/v1/pods/a", json=POD).status_code == 201


def test_an_answer_has_a_row_per_rank_and_reads_as_documented(client: TestClient) -> None:
    response = client.post("/v1/score", json={"model": "m", "token_ids": [1, 2, 3]})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = msgspec.json.decode(response.content, type=ScoreAnswer)
    assert (answer.model, answer.num_tokens) == ("m", 3)
    assert [(row.pod, row.dp_rank) for row in answer.pods] == [("a", 0), ("a", 1)]


FIELDS: dict[str, Any] = {
    "model": "m",
    "lora": "sql",
    "cache_salt": "s&=t",
    "extra_keys": [{"identifier": "img", "offset": 4, "length": 9}],
    "pods": ["a"],
    "tiers": ["gpu", "cpu"],
    "strategy": "weighted_blocks",
    "tier_weights": {"cpu": 0.25, "storage": None},
}
OBJECTS = ("extra_keys", "tier_weights")
"""Fields that are JSON text in a query."""


def test_json_and_raw_tokens_give_the_index_the_same_request(
    client: TestClient, index: FakeIndex
) -> None:
    tokens = [0, 7, 2**32 - 1]
    client.post("/v1/score", json={**FIELDS, "token_ids": tokens}).raise_for_status()
    texts = {name: json.dumps(FIELDS[name]) for name in OBJECTS}
    query = urlencode({**FIELDS, **texts}, doseq=True)
    body = array("I", tokens).tobytes()
    client.post(f"/v1/score?{query}", content=body, headers=RAW).raise_for_status()
    first, second = index.requests
    assert list(first.token_ids) == list(second.token_ids) == tokens
    assert first == second
    assert first.extra_keys == [MediaItem(identifier="img", offset=4, length=9)]
    assert (first.lora, first.cache_salt, first.strategy) == ("sql", "s&=t", "weighted_blocks")
    assert (first.pods, first.tiers) == (["a"], ["gpu", "cpu"])
    assert first.tier_weights == {Tier.CPU: 0.25}


def test_token_ids_of_64_bits_reach_the_index_as_json_and_raw(
    client: TestClient, index: FakeIndex
) -> None:
    tokens = [7, 2**32, 2**64 - 1]
    client.post("/v1/score", json={"model": "m", "token_ids": tokens}).raise_for_status()
    body, query = array("Q", tokens).tobytes(), "model=m&token_bytes=8"
    client.post(f"/v1/score?{query}", content=body, headers=RAW).raise_for_status()
    first, second = index.requests
    assert list(first.token_ids) == list(second.token_ids) == tokens


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("token_bytes=2", "token_bytes is 2"),
        ("token_bytes=8", "not whole uint64"),
        ("lora=x", "uint32"),
    ],
)
def test_raw_tokens_of_another_width_are_refused(
    client: TestClient, query: str, told: str
) -> None:
    answer = client.post(f"/v1/score?model=m&{query}", content=b"12345", headers=RAW)
    status, code, message = refusal(answer)
    assert (status, code) == (400, "malformed_body")
    assert told in message


def test_lists_in_the_query_may_be_separated_by_commas(
    client: TestClient, index: FakeIndex
) -> None:
    client.post("/v1/score?model=m&tiers=gpu,storage", content=b"", headers=RAW).raise_for_status()
    assert index.requests[0].tiers == ["gpu", "storage"]


def test_null_and_absent_optional_fields_mean_the_same(
    client: TestClient, index: FakeIndex
) -> None:
    optional = set(ScoreBody.__struct_fields__) - {"model", "token_ids"}
    for fields in ({}, dict.fromkeys(optional)):
        body = {"model": "m", "token_ids": [1], **fields}
        client.post("/v1/score", json=body).raise_for_status()
    assert index.requests[0] == index.requests[1]


def test_null_media_in_the_query_mean_none(client: TestClient, index: FakeIndex) -> None:
    for query in ("model=m", "model=m&extra_keys=null"):
        client.post(f"/v1/score?{query}", content=b"", headers=RAW).raise_for_status()
    assert index.requests[0] == index.requests[1]


MEDIA = '[{"identifier":"a","offset":0,"length":1,"%s":1}]'
CRAFTED = [
    "x", "off set", "foo` - at `$.bar", "x` - at `$[...]", "x` - at `$.extra_keys[0]", "` - at `$",
    " - at `$.pods", "", "`", "a`b", "k" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("key", CRAFTED)
@pytest.mark.parametrize("path", ["/v1/score", "/v1/explain"])
def test_an_unknown_key_is_the_callers_fault_whatever_it_is_called(
    client: TestClient, path: str, key: str
) -> None:
    media = MEDIA % key
    bodies = [
        f'{{"model":"m","token_ids":[1],"{key}":1}}',
        f'{{"model":"m","token_ids":[1],"extra_keys":{media}}}',
    ]
    queries = [
        urlencode({"model": "m", key or "?": 1}),
        urlencode({"model": "m", "extra_keys": media}),
    ]
    answers = [client.post(path, content=body) for body in bodies]
    if len(key) < 1000:
        answers += [client.post(f"{path}?{query}", content=b"", headers=RAW) for query in queries]
    for answer in answers:
        status, code, message = refusal(answer)
        assert (status, code) == (400, "malformed_body")
        assert "unknown key" in message
        assert "did you mean" in message or "model" in message or "identifier" in message
        assert len(answer.content) < 2000


@pytest.mark.parametrize("path", ["/v1/score", "/v1/explain"])
@pytest.mark.parametrize(
    ("key", "where"),
    [
        ("prompt", "POST /tokenize (vLLM, SGLang) returns those of a prompt"),
        ("text", "POST /tokenize (vLLM, SGLang) returns those of a text"),
        ("messages", "POST /v1/chat/completions/render (vLLM) returns those of messages"),
    ],
)
def test_text_is_answered_with_where_token_ids_come_from(
    client: TestClient, path: str, key: str, where: str
) -> None:
    answer = client.post(path, content=f'{{"model":"m","{key}":"Hello"}}')
    told = (
        f"unknown key {key}; send token_ids, which the engine computes: {where} (docs/tokens.md)"
    )
    assert refusal(answer) == (400, "malformed_body", told)


def test_an_unknown_key_of_media_is_named_with_its_place_and_the_known_ones(
    client: TestClient,
) -> None:
    media = MEDIA % "ofset"
    body = f'{{"model":"m","token_ids":[1],"extra_keys":{media}}}'
    told = "unknown key extra_keys[0].ofset; did you mean offset?"
    assert refusal(client.post("/v1/score", content=body))[2] == told
    query = urlencode({"model": "m", "extra_keys": media})
    answer = client.post(f"/v1/score?{query}", content=b"", headers=RAW)
    assert refusal(answer)[2] == f"query: {told}"


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ('{"hbm":1}', "unknown key tier_weights.hbm; remove it; known: gpu, cpu, storage"),
        ('{"cpus":1}', "unknown key tier_weights.cpus; did you mean cpu?"),
        ('{"cpu":-1}', "tier_weights.cpu: Expected `float` >= 0.0"),
        ('{"cpu":1e300}', "tier_weights.cpu: Expected `float` <= 1000000.0"),
        ('{"cpu":"1"}', "tier_weights.cpu: Expected `float | null`, got `str`"),
        ("[1,1,1]", "tier_weights: Expected `object | null`, got `array`"),
    ],
)
def test_weights_that_no_tier_can_have_are_refused_in_a_body_and_in_a_query(
    client: TestClient, weights: str, told: str
) -> None:
    body = f'{{"model":"m","token_ids":[1],"tier_weights":{weights}}}'
    assert refusal(client.post("/v1/score", content=body)) == (400, "malformed_body", told)
    query = urlencode({"model": "m", "tier_weights": weights})
    answer = client.post(f"/v1/score?{query}", content=b"", headers=RAW)
    assert refusal(answer) == (400, "malformed_body", f"query: {told}")


@pytest.mark.parametrize(
    "change", [{"model": "x" * 3000}, {"pods": ["x" * 3000]}, {"strategy": "\n" * 900}]
)
def test_a_value_is_echoed_clipped_and_on_one_line(
    client: TestClient, change: dict[str, Any]
) -> None:
    answer = client.post("/v1/score", json={"model": "m", "token_ids": [1], **change})
    message = refusal(answer)[2]
    assert answer.status_code in {400, 404}
    assert len(message) < 1100
    assert message.isprintable()


@pytest.mark.parametrize("path", ["/v1/score", "/v1/explain"])
@pytest.mark.parametrize(
    ("body", "expected", "told"),
    [
        (b"", "malformed_body", "not JSON"),
        (b"{", "malformed_body", "not JSON"),
        (b"[]", "malformed_body", "object"),
        (b'{"model":"m"}', "malformed_body", "token_ids"),
        (b'{"model":"m","token_ids":null}', "malformed_body", "token_ids"),
        (b'{"model":"m","token_ids":[1.5]}', "malformed_body", "token_ids"),
        (b'{"model":"m","token_ids":[true]}', "malformed_body", "token_ids"),
        (b'{"model":"m","token_ids":["1"]}', "malformed_body", "token_ids"),
        (b'{"model":"m","token_ids":[-1]}', "malformed_body", "token_ids"),
        (b'{"model":"m","token_ids":[1,18446744073709551616]}', "malformed_body", "token_ids[1]"),
        (b'{"model":7,"token_ids":[]}', "malformed_body", "model"),
        (b'{"model":"m","token_ids":[],"cache_sal":"x"}', "malformed_body", "mean cache_salt"),
        (b'{"model":"m","token_ids":[],"tiers":["hbm"]}', "malformed_body", "hbm"),
        (b'{"model":"m","token_ids":[],"strategy":"best"}', "malformed_body", "best"),
        (b'{"model":"m","token_ids":[]} x', "malformed_body", "not JSON"),
        (b'{"model":"\xff","token_ids":[]}', "malformed_body", "not JSON"),
    ],
)
def test_a_malformed_body_is_refused_with_its_field(
    client: TestClient, path: str, body: bytes, expected: str, told: str
) -> None:
    status, code, message = refusal(client.post(path, content=body))
    assert (status, code) == (400, expected)
    assert told in message


@pytest.mark.parametrize(
    ("query", "body", "told"),
    [
        ("model=m", b"abc", "3 bytes"),
        ("", b"", "model"),
        ("model=m&model=n", b"", "2 times"),
        ("model=m&lor=x", b"", "mean lora"),
        ("model=m&extra_keys=[", b"", "query"),
        ("model=m&tiers=", b"", "tiers"),
        ("model=%C3%A9&&", b"", "query"),
    ],
)
def test_a_malformed_query_is_refused(
    client: TestClient, query: str, body: bytes, told: str
) -> None:
    response = client.post(f"/v1/score?{query}", content=body, headers=RAW)
    status, code, message = refusal(response)
    assert (status, code) == (400, "malformed_body")
    assert told in message


def test_an_unknown_model_and_an_unknown_pod_are_404(client: TestClient) -> None:
    unknown = client.post("/v1/score", json={"model": "x", "token_ids": []})
    assert refusal(unknown)[:2] == (404, "unknown_model")
    absent = client.post("/v1/score", json={"model": "m", "token_ids": [], "pods": ["a", "b"]})
    assert refusal(absent)[:2] == (404, "unknown_pod")


def test_too_many_tokens_and_too_large_a_body_are_413(client: TestClient) -> None:
    body = {"model": "m", "token_ids": [1] * 65}
    assert refusal(client.post("/v1/score", json=body))[:2] == (413, "too_many_tokens")
    raw = client.post("/v1/score?model=m", content=bytes(4097), headers=RAW)
    assert refusal(raw)[:2] == (413, "body_too_large")
    assert raw.headers["connection"] == "close"


def test_a_body_without_a_length_is_cut_off_at_the_limit(client: TestClient) -> None:
    chunks = (bytes(1000) for _ in range(100))
    response = client.post("/v1/score?model=m", content=chunks, headers=RAW)
    assert refusal(response)[:2] == (413, "body_too_large")


def test_an_unexpected_failure_is_a_500_of_the_same_shape(
    client: TestClient, index: FakeIndex
) -> None:
    index.fail = RuntimeError("secret detail")
    response = client.post("/v1/score", json={"model": "m", "token_ids": [1]})
    assert refusal(response) == (500, "internal", "unexpected RuntimeError")


def test_short_calls_run_inline_and_long_ones_on_another_thread(
    client: TestClient, index: FakeIndex, service: Service
) -> None:
    body = {"model": "m", "token_ids": [1]}
    client.post("/v1/score", json=body).raise_for_status()
    assert client.portal is not None
    loop = client.portal.call(threading.get_ident)
    assert index.threads == [loop]
    assert is_short(service, Call(body=bytes(250_000)))
    assert not is_short(service, Call(body=bytes(1_000_000)))


def test_a_score_that_would_wait_for_the_index_waits_on_another_thread(
    client: TestClient, index: FakeIndex
) -> None:
    index.is_busy = True
    index.hold = threading.Event()
    body = {"model": "m", "token_ids": [1]}
    scored: list[Response] = []
    asking = threading.Thread(target=lambda: scored.append(client.post("/v1/score", json=body)))
    asking.start()
    assert index.held.wait(timeout=30)
    assert client.get("/healthz").status_code == 200
    index.hold.set()
    asking.join()
    assert scored[0].status_code == 200
    assert client.portal is not None
    assert index.threads != [client.portal.call(threading.get_ident)]
    latency = [line for line in client.get("/metrics").text.splitlines() if "_count" in line]
    assert latency == ["kvbraid_score_seconds_count 1.0"]


def test_explain_reads_as_documented(client: TestClient) -> None:
    response = client.post("/v1/explain", json={"model": "m", "token_ids": [1] * 33})
    answer = msgspec.json.decode(response.content, type=ExplainAnswer)
    assert answer.num_tokens == 33
    assert answer.pods[1].dp_rank == 1
    assert answer.pods[0].groups[0].held == [True, False]
    assert answer.pods[0].groups[0].accepted == [16]
