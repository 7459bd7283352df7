"""The driver against a server that knows the truth, is late, or is wrong."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx
import pytest
from kvbraid.cache.manager import CacheManager
from kvbraid.errors import ServiceError
from kvbraid.sim.fleet import driver as driver_module
from kvbraid.sim.fleet.demo import FLEET
from kvbraid.sim.fleet.driver import Driver, Outcome, totals
from kvbraid.sim.fleet.engine import EngineAnswer, EngineRequest, Ready, SimulatedEngine
from kvbraid.sim.fleet.presets import PRESETS, Preset
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload

MODELS = ("gpt-oss-sim", "qwen3-next-sim")


@dataclass
class Count:
    """A sink that numbers payloads."""

    published: int = 0

    def publish(self, _payload: bytes) -> int:
        self.published += 1
        return self.published - 1


class LocalEngine:
    """An engine without a process."""

    def __init__(self, pod: str, preset: Preset) -> None:
        self.pod, self.preset = pod, preset
        self.sink = Count()
        self.engine = SimulatedEngine(preset, self.sink)
        self.ready = Ready("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")

    def serve(self, request: EngineRequest) -> EngineAnswer:
        return self.engine.serve(request)


@dataclass
class Oracle:
    """A server that looks into the engines; `lag` polls pass before it has seen a message."""

    engines: list[LocalEngine]
    error_tokens: int = 0
    unusable_tokens: int = 32
    lag: int = 0
    state: str = "exact"
    registered: dict[str, Any] = field(default_factory=dict)
    polls: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer: Callable[[httpx.Request], Any] = {
            "PUT": self.put,
            "GET": self.pods,
            "POST": self.score,
        }[request.method]
        return httpx.Response(200, json=answer(request))

    def put(self, request: httpx.Request) -> object:
        self.registered[request.url.path.rsplit("/", 1)[-1]] = json.loads(request.content)
        return {}

    def pods(self, _request: httpx.Request) -> object:
        self.polls += 1
        return {
            "pods": [
                {
                    "pod": engine.pod,
                    "state": self.state,
                    "last_seq": None
                    if self.polls <= self.lag
                    else engine.sink.published - 1
                    if engine.sink.published
                    else None,
                }
                for engine in self.engines
            ]
        }

    def score(self, request: httpx.Request) -> object:
        body = json.loads(request.content)
        rows = []
        for engine in self.engines:
            if engine.preset.model == body["model"]:
                hit = hit_of(engine.engine.cache, body["token_ids"]) + self.error_tokens
                present = hit + self.unusable_tokens
                rows.append({"pod": engine.pod, "lower": hit, "upper": hit, "present": present})
        return {"pods": rows}


def hit_of(cache: CacheManager, tokens: list[int]) -> int:
    request = cache.add(tokens)
    hit = cache.match(request).num_tokens
    cache.release([request])
    return hit


def play(oracle: Oracle, requests: int = 60) -> tuple[Driver, list[Outcome]]:
    client = httpx.Client(transport=httpx.MockTransport(oracle), base_url="http://server")
    driver = Driver(client, oracle.engines)
    driver.register()
    outcomes = list(driver.play(islice(shared_prefix_workload(MODELS, seed=3), requests)))
    return driver, outcomes


def fleet() -> list[LocalEngine]:
    return [LocalEngine(pod, PRESETS[model]) for pod, model in FLEET]


def test_true_predictions_are_exact_and_nine_of_ten_are_settled() -> None:
    oracle = Oracle(fleet())
    driver, outcomes = play(oracle)
    exact, wrong, early, predicted, true, present = totals(driver.tallies.values())
    assert (exact, wrong, early) == (54, 0, 6)
    assert predicted == true > 10_000
    assert present == true + 60 * oracle.unusable_tokens
    assert sum(tally.messages for tally in driver.tallies.values()) > 60
    assert len(outcomes) == 60


def test_engines_are_registered_with_endpoints_and_topology() -> None:
    oracle = Oracle(fleet())
    play(oracle, requests=1)
    assert set(oracle.registered) == {pod for pod, _ in FLEET}
    body = oracle.registered["qwen3-next-1"]
    assert body["model"] == "qwen3-next-sim"
    assert body["endpoint"] == "tcp://127.0.0.1:1"
    assert [group["kind"] for group in body["topology"]["groups"]] == [
        *["mamba"] * 3,
        "full_attention",
    ]


def test_a_wrong_prediction_is_counted_unless_it_was_early() -> None:
    driver, outcomes = play(Oracle(fleet(), error_tokens=16), requests=20)
    exact, wrong, early, *_ = totals(driver.tallies.values())
    assert (exact, wrong, early) == (0, 18, 2)
    assert not any(outcome.is_exact for outcome in outcomes)


def test_it_waits_until_every_message_has_been_seen() -> None:
    oracle = Oracle(fleet(), lag=7)
    driver, _ = play(oracle, requests=2)
    assert oracle.polls > 7
    assert totals(driver.tallies.values())[:2] == (2, 0)


def test_messages_that_never_arrive_are_an_error_that_names_the_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "_SETTLE_S", 0.02)
    with pytest.raises(ServiceError, match="gpt-oss-0 sent -1, the server has None and calls it"):
        play(Oracle(fleet(), state="degraded"), requests=1)


def test_the_sample_is_the_request_whose_full_attention_holds_the_most_of_no_use() -> None:
    held = {(1,): (64, 48), (2,): (96, 16), (3,): (96, 16), (4,): (128, 128)}

    def answer(request: httpx.Request) -> httpx.Response:
        present, upper = held[tuple(json.loads(request.content)["token_ids"])]
        rows = [{"present": 0, "upper": 0}, {"present": present, "upper": upper}]
        return httpx.Response(200, json={"pods": rows})

    transport = httpx.MockTransport(answer)
    driver = Driver(httpx.Client(transport=transport, base_url="http://server"), fleet())
    requests = [WorkRequest("m", 0, prompt, ()) for prompt in held]
    assert driver.most_overstated(requests) == requests[2]


def test_both_pods_of_a_model_get_requests() -> None:
    driver, _ = play(Oracle(fleet()))
    assert all(tally.requests > 3 for tally in driver.tallies.values())


def test_a_refusal_of_the_server_is_an_error_with_its_text() -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(400, text="no such thing"))
    driver = Driver(httpx.Client(transport=transport, base_url="http://server"), fleet())
    with pytest.raises(ServiceError, match="PUT /v1/pods/gpt-oss-0: 400 no such thing"):
        driver.register()
