"""Registration over HTTP: idempotent, limited, guarded, and seen in the rows."""

import threading
from typing import Any

import msgspec
import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId, PodState
from kvbraid.service.answers import PodsAnswer
from kvbraid.service.config import ServerOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.journal import Rank
from kvbraid.service.registry import Service
from kvbraid.spec import EngineDialect, SpecKind

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.in_process import TestClient
from tests.service.score_app import LLAMA4, POD, refusal

TOPOLOGY = {
    "alignment": 64,
    "groups": [
        {"idx": 0, "event_kind": "full_attention", "event_window": None, "block_size": 16},
        {"idx": 1, "event_kind": "sliding_window", "event_window": 128, "block_size": 64},
    ],
    "hash_algo": "sha256",
    "PYTHONHASHSEED": "0",
    "vllm": "0.32.0",
    "num_blocks": 220,
}
CHUNKED = {"kind": "chunked_local_attention", "block_size": 16}


def test_put_creates_then_changes_nothing_then_replaces(
    client: TestClient, feed: FakeFeed
) -> None:
    answers = [
        client.put("/v1/pods/ns/a", json=body)
        for body in (POD, POD, {**POD, "dp_size": 2}, {**POD, "dp_size": 2})
    ]
    assert [a.status_code for a in answers] == [201, 200, 200, 200]
    assert [a.json()["status"] for a in answers] == [
        "created", "unchanged", "replaced", "unchanged",
    ]  # fmt: skip
    assert answers[0].json()["pod"] == "ns/a"
    assert feed.log == ["add ns/a", "remove ns/a", "add ns/a"]


def test_put_hands_on_what_the_operator_said(
    client: TestClient, index: FakeIndex, feed: FakeFeed, service: Service
) -> None:
    body = {
        **POD, "replay_endpoint": "tcp://10.0.0.1:6557", "bind": True, "dp_size": 3,
        "loras": {"sql": "/l/sql"}, "topology": TOPOLOGY,
    }  # fmt: skip
    assert client.put("/v1/pods/a", json=body).status_code == 201
    config = feed.following["a"]
    assert (config.endpoint, config.replay_endpoint) == (body["endpoint"], body["replay_endpoint"])
    assert (config.bind, config.dp_size, config.model) == (True, 3, "m")
    assert service.pods[PodId("a")].loras == {"sql": "/l/sql"}
    topology = index.topologies["a"]
    assert topology is not None
    assert [(g.kind, g.window, g.block_size) for g in topology.groups] == [
        (SpecKind.FULL_ATTENTION, None, 16),
        (SpecKind.SLIDING_WINDOW, 128, 64),
    ]
    engine = index.engines["a"]
    assert (topology.alignment, engine.hash_seed) == (64, "0")
    assert engine.dialect is EngineDialect.VLLM


def test_a_models_config_completes_the_topology_and_the_same_again_changes_nothing(
    client: TestClient, index: FakeIndex
) -> None:
    larger = {**LLAMA4, "attention_chunk_size": 512}
    bodies = [
        {**POD, "model_config": LLAMA4},
        {**POD, "model_config": {**LLAMA4, "vocab_size": 1}},  # Nothing that a cache depends on.
        {**POD, "model_config": larger},
        {**POD, "model_config": larger, "topology": {"groups": [CHUNKED]}},
        {**POD, "model_config": larger, "topology": {"groups": [CHUNKED]}, "num_gpu_blocks": 9},
    ]
    answers = [client.put("/v1/pods/a", json=body).json()["status"] for body in bodies]
    assert answers == ["created", "unchanged", "replaced", "replaced", "replaced"]
    topology = index.topologies["a"]
    assert topology is not None
    assert [group.chunk for group in topology.groups] == [512]


def test_how_a_pod_takes_requests_changes_without_a_rebuild(
    client: TestClient, feed: FakeFeed
) -> None:
    bodies: list[dict[str, Any]] = [
        POD,
        {**POD, "url": "http://h:8000"},
        {**POD, "url": "http://h:8000", "drain": True},
        {**POD, "url": "http://h:8000", "drain": True},
        {**POD, "max_running": 4},
        {**POD, "max_running": 4, "block_bytes": 9},
        {**POD, "max_running": 4, "block_bytes": 9, "dp_size": 2},
    ]
    answers = [client.put("/v1/pods/a", json=body) for body in bodies]
    assert [answer.json()["status"] for answer in answers] == [
        "created", "changed", "changed", "unchanged", "changed", "changed", "replaced",
    ]  # fmt: skip
    assert feed.log == ["add a", "remove a", "add a"]
    row = msgspec.json.decode(client.get("/v1/pods").content, type=PodsAnswer).pods[0]
    assert (row.url, row.drain, row.max_running, row.running) == (None, False, 4, 0)
    assert row.block_bytes == 9


def test_a_pod_without_events_is_followed_by_nobody_and_stays_stale(
    client: TestClient, index: FakeIndex, feed: FakeFeed
) -> None:
    silent = {"model": "m", "topology": TOPOLOGY, "dp_size": 2}
    statuses = [
        client.put("/v1/pods/a", json=body).json()["status"] for body in (silent, silent, POD)
    ]
    assert statuses == ["created", "unchanged", "replaced"]
    assert feed.log == ["add a"]
    assert client.put("/v1/pods/a", json=silent).json()["status"] == "replaced"
    rows = msgspec.json.decode(client.get("/v1/pods").content, type=PodsAnswer).pods
    assert [(row.dp_rank, row.state, row.endpoint, row.last_seq, row.remedy) for row in rows] == [
        (rank, PodState.STALE, None, None, "") for rank in range(2)
    ]
    assert client.get("/readyz").status_code == 200
    assert client.delete("/v1/pods/a").json()["status"] == "removed"
    assert feed.log == ["add a", "remove a"]
    assert index.registered == {}


def test_a_change_that_is_refused_leaves_how_the_old_pod_takes_requests(
    client: TestClient, feed: FakeFeed
) -> None:
    client.put("/v1/pods/a", json={**POD, "drain": True})
    feed.refuse_next = InvalidValueError("cannot bind")
    assert client.put("/v1/pods/a", json={**POD, "dp_size": 2}).status_code == 400
    asked = client.post("/v1/pick", json={"model": "m", "token_ids": [1]})
    assert refusal(asked)[1:] == ("no_pod", "no rank of 'm' may be chosen: 1 draining")


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"url": "h:8000"}, "invalid_value", "url = 'h:8000'"),
        ({"url": "http://me:secret@h"}, "invalid_value", "url names a user"),
        ({"drain": "yes"}, "malformed_body", "drain: Expected `bool`"),
        ({"max_running": 0}, "malformed_body", "max_running: Expected `int` >= 1"),
        ({"endpoint": None}, "invalid_topology", "a pod without endpoint needs groups"),
        ({"endpoint": None, "bind": True}, "invalid_value", "bind without endpoint"),
        (
            {"endpoint": None, "replay_endpoint": "tcp://h:1"},
            "invalid_value",
            "replay_endpoint without endpoint",
        ),
        ({"endpoint": "ask"}, "invalid_value", "endpoint = ask without url"),
        (
            {"endpoint": "ask", "url": "http://h", "bind": False},
            "invalid_value",
            "bind with endpoint = ask",
        ),
        (
            {"endpoint": "ask", "url": "http://h", "replay_endpoint": "tcp://h:1"},
            "invalid_value",
            "replay_endpoint with endpoint = ask",
        ),
        ({"endpoint": "asks", "url": "http://h"}, "invalid_endpoint", "endpoint = 'asks'"),
        ({"model": ""}, "malformed_body", "model"),
        ({"endpiont": "x"}, "malformed_body", "mean endpoint"),
        ({"dp_size": 0}, "malformed_body", "dp_size"),
        ({"num_gpu_blocks": 0}, "malformed_body", "num_gpu_blocks: Expected `int` >= 1"),
        ({"num_gpu_blocks": 1 << 32}, "malformed_body", "num_gpu_blocks: Expected `int` <"),
        ({"block_bytes": 0}, "malformed_body", "block_bytes: Expected `int` >= 1"),
        ({"endpoint": "ipc:///tmp/x"}, "invalid_endpoint", "ipc:///tmp/x"),
        ({"endpoint": "inproc://x"}, "invalid_endpoint", "inproc://x"),
        ({"endpoint": "10.0.0.1:5557"}, "invalid_endpoint", "10.0.0.1"),
        ({"endpoint": "tcp://10.0.0.1"}, "invalid_endpoint", "10.0.0.1"),
        ({"endpoint": "tcp://h:0"}, "invalid_endpoint", "tcp://h:0"),
        ({"endpoint": "tcp://h:65534", "dp_size": 3}, "invalid_endpoint", "65536"),
        ({"replay_endpoint": "ipc://x"}, "invalid_endpoint", "replay_endpoint"),
        ({"replay_endpoint": "tcp://*:1"}, "invalid_endpoint", "names no host"),
        (
            {"topology": {"groups": [{"kind": "mamba"}]}},
            "invalid_topology",
            "groups[0].block_size",
        ),
        ({"topology": {"groups": [{"kind": "x", "block_size": 1}]}}, "invalid_topology", "'x'"),
        ({"topology": {"alignment": "64"}}, "invalid_topology", "alignment"),
        ({"model_config": "/etc/config.json"}, "malformed_body", "model_config: Expected `object"),
        ({"model_config": {}}, "invalid_value", "model_config: model_type = None"),
        ({"model_config": {"model_type": "x"}}, "invalid_value", "model_config: model_type = 'x'"),
        (
            {"model_config": {**LLAMA4, "attention_chunk_size": 1 << 32}},
            "invalid_value",
            "`attention_chunk_size` = 4294967296",
        ),
        (
            {"model_config": LLAMA4, "topology": {"groups": [{**CHUNKED, "chunk": 64}]}},
            "invalid_topology",
            "chunk 64 does not fit llama4_text",
        ),
    ],
)
def test_a_bad_registration_is_refused_with_its_field(
    client: TestClient, index: FakeIndex, change: dict[str, Any], code: str, told: str
) -> None:
    status, actual, message = refusal(client.put("/v1/pods/a", json={**POD, **change}))
    assert (status, actual) == (400, code)
    assert told in message
    assert index.registered == {}


def test_a_deeply_nested_body_is_malformed_not_a_crash(client: TestClient) -> None:
    nested = '{"model":"m","endpoint":"tcp://h:1","topology":{"a":%s}}' % ("[" * 2000 + "]" * 2000)
    response = client.put("/v1/pods/a", content=nested)
    assert refusal(response)[:2] == (400, "malformed_body")


@pytest.mark.parametrize("pod", ["@x", "a@b", "-a", "a%20b", "x" * 129])
def test_a_bad_pod_id_is_refused(client: TestClient, pod: str) -> None:
    assert refusal(client.put(f"/v1/pods/{pod}", json=POD))[:2] == (400, "invalid_value")


def test_more_ranks_than_the_limit_are_refused_and_a_replacement_counts_once(
    client: TestClient,
) -> None:
    assert client.put("/v1/pods/a", json={**POD, "dp_size": 4}).status_code == 201
    assert refusal(client.put("/v1/pods/b", json=POD))[:2] == (409, "too_many_pods")
    assert client.put("/v1/pods/a", json={**POD, "dp_size": 3}).status_code == 200
    assert client.put("/v1/pods/b", json=POD).status_code == 201


def test_a_pod_that_the_feed_refuses_is_not_registered(
    client: TestClient, index: FakeIndex, feed: FakeFeed
) -> None:
    feed.refuse = InvalidValueError("cannot bind")
    assert refusal(client.put("/v1/pods/a", json=POD))[:2] == (400, "invalid_value")
    assert index.registered == {}
    assert client.get("/v1/pods").json()["pods"] == []


def test_delete_forgets_the_pod_and_its_model(client: TestClient, index: FakeIndex) -> None:
    client.put("/v1/pods/a", json=POD)
    assert client.get("/v1/models").json() == {"models": ["m"]}
    assert client.delete("/v1/pods/a").json() == {"pod": "a", "status": "removed"}
    assert client.get("/v1/models").json() == {"models": []}
    assert index.registered == {}
    assert refusal(client.delete("/v1/pods/a"))[:2] == (404, "unknown_pod")


def test_pods_join_the_index_with_the_feed(client: TestClient) -> None:
    client.put("/v1/pods/a", json={**POD, "dp_size": 2})
    rows = msgspec.json.decode(client.get("/v1/pods").content, type=PodsAnswer).pods
    assert [(row.pod, row.dp_rank, row.last_seq, row.messages) for row in rows] == [
        ("a", 0, 7, 3),
        ("a", 1, 7, 3),
    ]
    assert rows[0].endpoint == POD["endpoint"]
    assert rows[0].refused == {"topic_mismatch": 4}
    assert rows[0].groups[0].held == {"gpu": 8, "cpu": 0, "storage": 0}


def test_a_row_says_since_when_and_what_was_wrong_by_the_clock_of_the_answer(
    client: TestClient, service: Service
) -> None:
    client.put("/v1/pods/a", json=POD)
    service.journal.note("lost", Rank("a", 0), "batches 0 to 5 are lost")
    answer = msgspec.json.decode(client.get("/v1/pods").content, type=PodsAnswer)
    (row,) = answer.pods
    assert row.problem is not None
    assert (row.problem.event, row.problem.text) == ("lost", "batches 0 to 5 are lost")
    assert row.state_s is not None
    assert row.state_s <= row.problem.at_s <= answer.now_s
    assert (row.applied_s, row.memory_bytes, answer.memory_bytes) == (12.5, 4096, 4096)
    assert (row.waiting, row.engine_load) == (0, None)


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, ["replay_endpoint", "groups", "num_gpu_blocks", "prefix cache"]),
        (
            {"replay_endpoint": "tcp://h:6", "topology": {"engine": "sglang"}},
            ["buffer_steps", "groups", "prefix cache"],
        ),
        (
            {"topology": {"groups": [{"kind": "full_attention", "block_size": 16}]}},
            ["replay_endpoint", "num_gpu_blocks", "prefix cache"],
        ),
        ({"num_gpu_blocks": 9}, ["replay_endpoint", "groups", "prefix cache"]),
    ],
)
def test_a_pod_whose_messages_are_lost_says_what_to_do(
    client: TestClient,
    feed: FakeFeed,
    index: FakeIndex,
    fields: dict[str, object],
    parts: list[str],
) -> None:
    client.put("/v1/pods/a", json={**POD, **fields})
    assert client.get("/v1/pods").json()["pods"][0]["remedy"] == ""
    feed.state = PodState.DEGRADED
    assert client.get("/v1/pods").json()["pods"][0]["remedy"] == "", "exact again"
    index.states["a"] = PodState.DEGRADED
    remedy = client.get("/v1/pods").json()["pods"][0]["remedy"]
    said = remedy.split("; ")
    assert len(said) == len(parts)
    assert [part for part, line in zip(parts, said, strict=True) if part not in line] == []


@pytest.mark.parametrize(
    ("state", "lacks"),
    [(PodState.STALE, "not connected"), (PodState.REBUILDING, "in the first rebuild")],
)
def test_ready_means_that_no_pod_is_missing(
    client: TestClient, feed: FakeFeed, state: PodState, lacks: str
) -> None:
    assert client.get("/readyz").json() == {"status": "ready"}
    feed.state, feed.unbuilt = state, {"a", "b"}
    for pod in ("b", "a", "c"):
        client.put(f"/v1/pods/{pod}", json=POD)
    assert refusal(client.get("/readyz")) == (503, "not_ready", f"{lacks}: a, b")
    feed.unbuilt.clear()  # Whatever the state is now: the answers say so.
    assert client.get("/readyz").json() == {"status": "ready"}


def test_registrations_at_the_same_time_keep_the_three_in_step(service: Service) -> None:
    with TestClient(Application(service)) as client:
        start = threading.Barrier(4)

        def register(pod: str) -> None:
            start.wait()
            for _ in range(5):
                client.put(f"/v1/pods/{pod}", json=POD)
                client.delete(f"/v1/pods/{pod}")
            client.put(f"/v1/pods/{pod}", json=POD)

        threads = [threading.Thread(target=register, args=(name,)) for name in "aabc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    index, feed = service.index, service.feed
    assert isinstance(index, FakeIndex)
    assert isinstance(feed, FakeFeed)
    assert set(index.registered) == set(feed.following) == set(service.pods) == set("abc")
    assert service.num_ranks == 3


OFF, DENIED = (403, "registration_off"), (401, "unauthorized")


@pytest.mark.parametrize(
    ("host", "token", "allowed", "header", "expected"),
    [
        ("127.0.0.1", None, False, None, None),
        ("::1", None, False, None, None),
        ("localhost", None, False, None, None),
        ("0.0.0.0", None, False, None, OFF),
        ("0.0.0.0", None, False, "Bearer t", OFF),
        ("box", None, False, None, OFF),
        ("0.0.0.0", None, True, None, None),
        ("0.0.0.0", "t", False, None, DENIED),
        ("0.0.0.0", "t", False, "Bearer x", DENIED),
        ("0.0.0.0", "t", False, "Basic t", DENIED),
        ("0.0.0.0", "t", True, None, DENIED),
        ("0.0.0.0", "t", False, "Bearer t", None),
        ("127.0.0.1", "t", False, None, DENIED),
    ],
)
def test_who_may_change_the_fleet(
    service: Service,
    host: str,
    token: str | None,
    allowed: bool,
    header: str | None,
    expected: tuple[int, str] | None,
) -> None:
    options = ServerOptions(host=host, token=token, allow_registration=allowed)
    access = Access.of(options)
    headers = {"host": "localhost"} | ({} if header is None else {"authorization": header})
    with TestClient(Application(service, access=access)) as client:
        put = client.put("/v1/pods/a", json=POD, headers=headers)
        delete = client.delete("/v1/pods/a", headers=headers)
        assert client.get("/v1/pods").status_code == 200
    for response, success in ((put, 201), (delete, 200)):
        if expected is None:
            assert response.status_code == success
        else:
            assert refusal(response)[:2] == expected
