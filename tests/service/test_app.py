"""What holds for every route: one error shape, one document, metrics, a lifespan."""

import json
import re
from pathlib import Path

import kvbraid
import pytest
from kvbraid.errors import (
    CaptureError,
    InvalidValueError,
    KvbraidError,
    TooLargeError,
    TopologyError,
    UnknownError,
)
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, PodConfig
from kvbraid.service.errors import ERRORS, RefusalError, as_refusal
from kvbraid.service.http.openapi import EVERYWHERE, document
from kvbraid.service.http.routes import ROUTES, Route
from kvbraid.service.http.server import following
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed
from tests.service.in_process import TestClient
from tests.service.score_app import refusal

GOLDEN = Path(__file__).parents[1] / "golden" / "openapi.json"
REGENERATE = "write `golden_text()` of this module to GOLDEN, and review the difference"


def golden_text() -> str:
    """The document as the golden file keeps it: indented, without the version."""
    text = json.dumps(json.loads(document(ROUTES)), indent=1, sort_keys=True) + "\n"
    return text.replace(f'"version": "{kvbraid.__version__}"', '"version": "VERSION"')


@pytest.mark.parametrize("code", ERRORS)
def test_every_code_has_a_status_a_remedy_and_the_one_shape(code: str) -> None:
    error = RefusalError(code, "what was wrong")
    assert 400 <= error.status < 600
    assert json.loads(error.body()) == {
        "error": {"code": code, "message": "what was wrong", "remedy": ERRORS[code].remedy}
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopologyError("t"), "invalid_topology"),
        (InvalidValueError("v"), "invalid_value"),
        (UnknownError("u"), "unknown_model"),
        (TooLargeError("l"), "too_large"),
        (CaptureError("c"), "internal"),
    ],
)
def test_errors_of_the_tree_have_the_code_of_their_nearest_class(
    error: KvbraidError, code: str
) -> None:
    assert as_refusal(error).code == code


OF_GATEWAYS = {"too_many_requests", "pod_failed", "pod_silent", "http_version", "not_decided"}
"""What only a gateway or a picker refuses: test_route_{ways,failures}.py, test_envoy.py."""


def test_every_code_is_reachable_from_a_route_or_from_what_comes_before_it() -> None:
    listed = {code for route in ROUTES for code in route.codes} | OF_GATEWAYS
    assert listed | {"not_found", "method_not_allowed", *EVERYWHERE} == set(ERRORS)


@pytest.mark.parametrize("path", ["/x", "/v1", "/v1/score/", "/V1/score", "/v1/podsx"])
def test_an_unknown_path_is_404_in_the_one_shape(client: TestClient, path: str) -> None:
    assert refusal(client.get(path)) == (404, "not_found", f"GET {path}")


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_another_method_is_405_in_the_one_shape(client: TestClient, route: Route) -> None:
    path = route.path.replace("{id}", "a")
    assert refusal(client.request("PATCH", path))[:2] == (405, "method_not_allowed")


def test_a_405_names_every_method_of_the_path_and_head_is_get(client: TestClient) -> None:
    assert client.get("/v1/pods/a").headers["allow"] == "DELETE, PUT"
    assert client.put("/healthz").headers["allow"] == "GET, HEAD"
    assert client.head("/healthz").status_code == 200


def test_health_is_independent_of_the_fleet(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_the_feed_runs_before_pods_are_added_and_is_closed_also_after_an_error(
    service: Service, feed: FakeFeed
) -> None:
    config = FleetConfig(pods={PodId("a"): PodConfig(model="m", endpoint="tcp://h:1")})
    with pytest.raises(KeyError), following(service, config):
        raise KeyError
    assert feed.log == ["start", "add a", "close"]


def test_health_fails_while_no_pod_can_be_followed(client: TestClient, feed: FakeFeed) -> None:
    feed.failure = "the subscriber's thread failed"
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_following"
    feed.failure = None
    assert client.get("/healthz").status_code == 200


def test_the_document_is_the_golden_one(client: TestClient) -> None:
    served = client.get("/openapi.json")
    assert served.content == document(ROUTES)
    assert golden_text() == GOLDEN.read_text(encoding="utf-8"), REGENERATE


def test_every_reference_in_the_document_resolves(client: TestClient) -> None:
    text = client.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert references
    assert references <= set(schemas)


def test_metrics_show_each_rank_and_the_latency_of_scores(client: TestClient) -> None:
    client.put("/v1/pods/a", json={"model": "m", "endpoint": "tcp://h:1"})
    client.post("/v1/score", json={"model": "m", "token_ids": [1]})
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = set(response.text.splitlines())
    assert {
        'kvbraid_pod_state{dp_rank="0",pod="a",state="exact"} 1.0',
        'kvbraid_pod_state{dp_rank="0",pod="a",state="stale"} 0.0',
        'kvbraid_messages_total{dp_rank="0",pod="a"} 3.0',
        'kvbraid_placed{dp_rank="0",means="join",pod="a"} 2.0',
        'kvbraid_refused_total{dp_rank="0",pod="a",reason="topic_mismatch"} 4.0',
        "kvbraid_memory_bytes 4096.0",
        'kvbraid_stray_messages_total{reason="unknown_topic"} 3.0',
        "kvbraid_score_seconds_count 1.0",
        'kvbraid_score_seconds_bucket{le="+Inf"} 1.0',
    } <= lines
    assert 'kvbraid_score_seconds_bucket{le="0.0001"}' in response.text
