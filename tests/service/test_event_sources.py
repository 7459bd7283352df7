"""Pods that are asked where they publish: good engines, late ones, and those that lie."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import httpx
import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId
from kvbraid.service import event_sources
from kvbraid.service.config import PodBody, PodConfig
from kvbraid.service.event_sources import MOST_BYTES, Asking
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.http.client import Client
from kvbraid.service.pod_checks import pod_config
from kvbraid.service.readiness import Readiness
from kvbraid.service.registry import Service

from tests.docs.markdown import tables
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.route_pods import Asked, Behaviour, Engine, in_loop, never_answers, until
from tests.service.score_app import TOKENS, stored
from tests.service.serving import serving
from tests.service.serving import until as so

A = PodId("a")


def asked_at(url: str, **more: object) -> PodConfig:
    return pod_config(PodBody(model="m", endpoint="ask", url=url, **more), None, schemes=("tcp",))  # type: ignore[arg-type]


def says(endpoint: str, status: str = "200 OK", more: str = "") -> Behaviour:
    async def answers(asked: Asked) -> None:
        await asked.answer(json.dumps({"0": {"endpoint": endpoint}}).encode(), status, more)

    return answers


async def drips(asked: Asked) -> None:
    await asked.write(b"HTTP/1.1 200 OK\r\n")
    while not asked.gone.is_set():
        await asked.write(b"x: y\r\n")
        await asyncio.sleep(0.01)


async def never_ends(asked: Asked) -> None:
    await asked.begin("application/json")
    while not asked.gone.is_set():
        await asked.chunk(b" " * (MOST_BYTES // 4))


async def dies(asked: Asked) -> None:
    asked.die()


async def writes_garbage(asked: Asked) -> None:
    await asked.write(b"nonsense\r\n\r\n")


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_S", "AGAIN_S", "RETRY_MAX_S"):
        monkeypatch.setattr(event_sources, name, 0.01)


@asynccontextmanager
async def asking(service: Service) -> AsyncIterator[None]:
    is_over = threading.Event()
    task = asyncio.ensure_future(Asking(service).run(is_over))
    try:
        yield
    finally:
        is_over.set()
        await task
        for _ in range(10):  # The loop ends what httpx has left of an answer that was given up.
            await asyncio.sleep(0)


@in_loop
async def test_a_pod_is_followed_where_it_says_and_elsewhere_when_it_has_moved() -> None:
    feed, index = FakeFeed(), FakeIndex()
    service = Service(index, feed)
    async with Engine(says("tcp://*:5557")).running() as engine, asking(service):
        service.put(A, asked_at(engine.url))
        await until(lambda: A in feed.following)
        assert feed.following[A].endpoint == "tcp://127.0.0.1:5557"
        assert engine.asked[0].line == "GET /kv_event_sources HTTP/1.1"
        assert [row.endpoint for row in service.rows()] == ["tcp://127.0.0.1:5557"]
        before = service.asked["found"]
        await until(lambda: service.asked["found"] > before + 1)
        assert feed.log == ["add a"], "the same answer again changes nothing"

        engine.behaviour = never_ends  # A refusal does not, either.
        await until(lambda: service.asked["too_long"] > 0)
        assert feed.log == ["add a"]

        engine.behaviour = says("tcp://0.0.0.0:41001")
        await until(lambda: len(feed.log) == 3)
        assert feed.log == ["add a", "remove a", "add a"]
        assert feed.following[A].endpoint == "tcp://127.0.0.1:41001"
        assert index.registered == {A: ("m", 1)}
        service.delete(A)
        assert (feed.following, index.registered) == ({}, {})


@in_loop
async def test_an_engine_that_starts_later_is_asked_again_until_it_answers() -> None:
    feed = FakeFeed()
    service = Service(FakeIndex(), feed)
    async with Engine(dies).running() as engine, asking(service):
        service.put(A, asked_at(engine.url))
        await until(lambda: service.asked["failed"] > 2)
        assert A not in feed.following
        engine.behaviour = says("tcp://*:5557")
        await until(lambda: A in feed.following)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (dies, "failed"),
        (writes_garbage, "failed"),
        (never_answers, "slow"),
        (drips, "slow"),
        (never_ends, "too_long"),
        (says("tcp://*:5557", "404 Not Found"), "refused"),
        (says("tcp://*:5557", "302 Found", "location: /elsewhere\r\n"), "refused"),
        (says("tcp://169.254.169.254:80"), "other_host"),
        (says("nonsense"), "no_port"),
    ],
)
def test_an_answer_that_is_refused_leaves_the_pod_without_events(
    behaviour: Behaviour,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_sources, "PATIENCE_S", 0.3 if why == "slow" else 1000.0)
    caplog.set_level(logging.INFO, "kvbraid.pods")

    @in_loop
    async def run() -> None:
        async with Engine(behaviour).running() as engine, asking(service):
            service.put(A, asked_at(engine.url))
            await until(lambda: service.asked[why] >= 2)
            assert {asked.line for asked in engine.asked} == {"GET /kv_event_sources HTTP/1.1"}, (
                "redirects are not followed"
            )

    index, feed = FakeIndex(), FakeFeed()
    service = Service(index, feed)
    run()
    assert set(service.asked) == {"found", why}
    assert (feed.log, index.registered) == ([], {A: ("m", 1)})
    told = [line for line in caplog.messages if "events_unknown" in line]
    assert len(told) == 1, "a reason is told once"
    assert f"/kv_event_sources: {why}: " in told[0]


def test_pods_that_do_not_answer_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sources, "PATIENCE_S", 1000.0)

    @in_loop
    async def run() -> None:
        async with (
            asking(service),
            Engine(never_answers).running() as silent,
            Engine(says("tcp://*:5557")).running() as engine,
        ):
            for number in range(event_sources.MOST_AT_ONCE - 1):
                service.put(PodId(f"silent-{number}"), asked_at(silent.url))
            await until(lambda: len(silent.asked) == event_sources.MOST_AT_ONCE - 1)
            service.put(A, asked_at(engine.url))
            await until(lambda: A in feed.following)

    feed = FakeFeed()
    service = Service(FakeIndex(), feed)
    run()


@in_loop
async def test_a_feed_that_refuses_leaves_the_pod_without_events_until_it_does_not() -> None:
    feed, index = FakeFeed(refuse=InvalidValueError("no room")), FakeIndex()
    service = Service(index, feed)
    async with Engine(says("tcp://*:5557")).running() as engine, asking(service):
        service.put(A, asked_at(engine.url))
        await until(lambda: service.asked["not_followed"] > 1)
        assert index.registered == {A: ("m", 1)}
        feed.refuse = None
        await until(lambda: A in feed.following)


def test_an_answer_about_a_pod_that_was_replaced_counts_for_nothing() -> None:
    feed = FakeFeed()
    service = Service(FakeIndex(), feed)
    old, new = asked_at("http://10.0.0.1:8000"), asked_at("http://10.0.0.2:8000")
    found = event_sources.read_sources(b'{"0": {"endpoint": "tcp://*:5557"}}', old)
    service.put(A, old)
    service.follow(A, old, found)
    assert service.put(A, new).status == "replaced"
    assert feed.log == ["add a", "remove a"]
    service.follow(A, old, found)
    service.not_found(A, old, "slow", "")
    assert (feed.following, service.asked) == ({}, {"found": 1})
    assert service.put(A, asked_at("http://10.0.0.2:8000", drain=True)).status == "changed"


def test_a_pod_is_missing_until_it_has_said_where_it_publishes() -> None:
    config = asked_at("http://10.0.0.1:8000")
    service = Service(FakeIndex(), FakeFeed(), readiness=Readiness(60, clock=lambda: 0.0))
    service.put(A, config)
    assert service.missing() == "not connected: a"
    assert [row.endpoint for row in service.rows()] == [None]
    found = event_sources.read_sources(b'{"0": {"endpoint": "tcp://*:5557"}}', config)
    service.follow(A, config, found)
    assert service.missing() == ""


def test_the_page_lists_the_reasons() -> None:
    (table,) = tables("configuration.md", "Pods that are asked where they publish")
    listed = [reason.strip("`") for row in table for reason in row[0].split(", ")]
    assert sorted(listed) == sorted(get_args(event_sources.WhyUnknown))


@in_loop
async def test_a_server_answers_by_the_events_of_a_pod_that_it_has_asked(tmp_path: Path) -> None:
    with Publisher(
        "tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", topic="kv@a@m", bind=True
    ) as publisher:
        publisher.publish(stored())
        sources = {
            "0": {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
        }

        async def answers(asked: Asked) -> None:
            await asked.answer(json.dumps(sources).encode())

        async with Engine(answers).running() as engine, Engine(dies).running() as broken:
            config = tmp_path / "fleet.toml"
            config.write_text(
                "".join(
                    f'[[pods]]\nid = "{pod}"\nmodel = "m"\nendpoint = "ask"\nurl = "{url}"\n'
                    for pod, url in (("a", engine.url), ("b", broken.url))
                )
            )

            def run() -> None:
                with serving("--config", str(config)) as (_, url), Client(url) as client:
                    body = {"model": "m", "token_ids": TOKENS}
                    first = so(
                        lambda: httpx.post(f"{url}/v1/score", json=body).json()["pods"][0],
                        lambda row: row["exactness"] == "exact",
                    )
                    assert (first["pod"], first["lower"], first["upper"]) == ("a", 64, 64)
                    good, bad = so(client.pods, lambda it: "failed" in it.pods[1].reason).pods
                    assert (good.endpoint, good.replay_endpoint) == (
                        publisher.endpoint,
                        publisher.replay_endpoint,
                    )
                    assert bad.endpoint is None
                    assert bad.reason.startswith("no events: /kv_event_sources: failed: ")
                    text = httpx.get(f"{url}/metrics").text
                    assert 'kvbraid_event_sources_total{outcome="found"} 1.0' in text

            await asyncio.to_thread(run)
