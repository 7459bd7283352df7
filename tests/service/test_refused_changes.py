"""A PUT that is refused changes nothing: the registration and all that was indexed stay."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kvbraid.errors import InvalidValueError, ServiceError
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.http.app import Application
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.in_process import TestClient
from tests.service.score_app import POD, refusal

FULL = {"kind": "full_attention", "block_size": 16}
GOOD = {"model": "m", "endpoint": "tcp://127.0.0.1:1", "topology": {"groups": [FULL]}}
TOKENS = list(range(40))
DEEP = "[" * 990 + "]" * 990


@pytest.fixture
def real() -> Iterator[TestClient]:
    """A real index and a real subscriber, with a pod `good` that holds 32 tokens."""
    index = FleetIndex()
    with Subscriber(index) as feed, TestClient(Application(Service(index, feed))) as client:
        assert client.put("/v1/pods/good", json=GOOD).status_code == 201
        stored = BlockStored(
            block_hashes=(1, 2), parent_block_hash=None, token_ids=tuple(TOKENS[:32]),
            block_size=16, group_idx=0, kv_cache_spec_kind="full_attention",
        )  # fmt: skip
        index.apply(PodId("good"), encode_batch([stored]))
        yield client


def known(client: TestClient) -> tuple[Any, Any]:
    """What is said of the pod, but for what its feed does meanwhile."""
    answer = client.post("/v1/score", json={"model": "m", "token_ids": TOKENS}).json()
    (row,) = client.get("/v1/pods").json()["pods"]
    config = {name: row[name] for name in ("endpoint", "bind", "groups", "placed", "num_blocks")}
    return config, answer["pods"][0]["present"]


@pytest.fixture
def occupied() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def groups(*sizes: int) -> dict[str, Any]:
    return {"groups": [{**FULL, "block_size": size} for size in sizes]}


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"topology": {**groups(16), "hash_block_size": 7}}, "invalid_topology", "size 7"),
        ({"topology": groups(65537, 65539)}, "invalid_topology", "least common multiple"),
        ({"topology": groups(2**32 - 1, 2**32 - 2)}, "invalid_topology", "least common"),
        ({"endpoint": "tcp://192.0.2.1:5555", "bind": True}, "invalid_endpoint", "192.0.2.1"),
        ({"endpoint": "tcp://*:65530", "dp_size": 9}, "invalid_endpoint", "65538"),
        ({"model": ""}, "malformed_body", "model"),
    ],
)
def test_a_refused_put_leaves_the_registration_and_what_is_indexed(
    real: TestClient, change: dict[str, Any], code: str, told: str
) -> None:
    before = known(real)
    assert before[1] == 32
    status, actual, message = refusal(real.put("/v1/pods/good", json={**GOOD, **change}))
    assert (status, actual) == (400, code)
    assert told in message
    assert known(real) == before


@pytest.mark.parametrize("pod", ["good", "new"])
def test_an_address_that_another_process_has_bound_is_the_callers_fault(
    real: TestClient, occupied: str, pod: str
) -> None:
    before = known(real)
    body = {**GOOD, "endpoint": occupied, "bind": True}
    status, code, message = refusal(real.put(f"/v1/pods/{pod}", json=body))
    assert (status, code) == (400, "invalid_endpoint")
    assert message == f"'{occupied}' cannot be bound: Address already in use"
    assert known(real) == before


def test_a_pod_may_move_to_another_address_of_the_port_that_it_holds(real: TestClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for host in ("127.0.0.1", "*", "0.0.0.0") * 10:
        body = {**GOOD, "endpoint": f"tcp://{host}:{port}", "bind": True}
        assert real.put("/v1/pods/good", json=body).json()["status"] == "replaced"
    other = {**GOOD, "endpoint": f"tcp://127.0.0.1:{port}", "bind": True}
    assert refusal(real.put("/v1/pods/b", json=other))[:2] == (400, "invalid_endpoint")
    shared = {**GOOD, "endpoint": f"tcp://0.0.0.0:{port}"}
    assert real.put("/v1/pods/c", json=shared).status_code == 201
    for pod in ("good", "c"):
        assert real.delete(f"/v1/pods/{pod}").status_code == 200
    assert real.put("/v1/pods/b", json=other).status_code == 201


@pytest.mark.parametrize("pod", ["good", "new"])
def test_a_value_nested_too_deeply_is_the_callers_fault(real: TestClient, pod: str) -> None:
    before = known(real)
    for value in (
        f'"topology":{{"alignment":{DEEP}}}',
        f'"topology":{{"groups":{DEEP}}}',
        f'"model_config":{{"model_type":{DEEP}}}',
        f'"model_config":{{"model_type":"llama","num_hidden_layers":{DEEP}}}',
    ):
        body = f'{{"model":"m","endpoint":"tcp://127.0.0.1:1",{value}}}'
        status, _, message = refusal(real.put(f"/v1/pods/{pod}", content=body))
        assert (status, len(message) < 1100) == (400, True)
    assert known(real) == before


def test_a_feed_that_fails_at_the_last_moment_gets_the_old_registration_back(
    client: TestClient, index: FakeIndex, feed: FakeFeed
) -> None:
    assert client.put("/v1/pods/a", json=POD).status_code == 201
    feed.refuse_next = ServiceError("taken meanwhile")
    assert client.put("/v1/pods/a", json={**POD, "dp_size": 2}).status_code == 500
    assert index.registered == {"a": ("m", 1)}
    assert feed.following["a"].dp_size == 1
    assert client.put("/v1/pods/a", json=POD).json()["status"] == "unchanged"


def test_what_the_feed_refuses_beforehand_is_never_unregistered(
    service: Service, feed: FakeFeed
) -> None:
    service.put(PodId("a"), PodConfig(model="m", endpoint="tcp://h:1"))
    feed.unusable = InvalidValueError("cannot bind")
    with pytest.raises(InvalidValueError):
        service.put(PodId("a"), PodConfig(model="m", endpoint="tcp://h:2"))
    assert feed.log == ["add a"]
