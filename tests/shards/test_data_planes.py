"""What sends requests, before a front: `kvbraid route` and `pick-serve`, with real shards."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.ids import PodId
from kvbraid.service.sharding import shard_of

from tests.gateway.programs import free_port
from tests.service.engines import LOOPBACK, open_publisher
from tests.service.envoy_streams import (
    Stream,
    destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.service.route_pods import Connection, Engine, Head, get, in_loop, post, prompt
from tests.service.serving import POD, serving
from tests.shards.fleets import stored_prompt

HOLDER, OTHER = "a", "b"  # Pods of two shards.
NUM_TOKENS = 65


class Shards:
    """Two shards as processes, and the fleet.toml of all; one pod holds the prompt."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._config = folder / "fleet.toml"
        ports = [free_port(), free_port()]
        where = json.dumps([f"http://127.0.0.1:{port}" for port in ports])
        self._text = f"[server]\nready_after_s = 0\n[shared]\nshards = {where}\n"
        self._text += "shard_answer_s = 5.0\n"
        for pod, tokens in ((HOLDER, 64), (OTHER, 0)):
            engine = stack.enter_context(open_publisher(replay_endpoint=LOOPBACK))
            engine.publish(stored_prompt(range(tokens)))
            events = f'{engine.endpoint}"\nreplay_endpoint = "{engine.replay_endpoint}'
            pod_text = POD.replace("{name}", pod).replace("ipc://{folder}/none", events)
            self._text += pod_text.replace("{url}", f"{{{pod}}}")
        config = str(self.config(a="http://a", b="http://b"))
        self._processes = [
            stack.enter_context(
                serving("--config", config, "--port", str(port), "--shard", f"{number}/2")
            )[0]
            for number, port in enumerate(ports, start=1)
        ]

    def config(self, **urls: str) -> Path:
        """Write the file with the addresses of pods."""
        text = self._text
        for pod, url in urls.items():
            text = text.replace(f"{{{pod}}}", url)
        self._config.write_text(text)
        return self._config

    def kill_holders(self) -> None:
        """End the shard of the pod that holds the prompt."""
        process = self._processes[shard_of(PodId(HOLDER), 2) - 1]
        process.kill()
        process.wait()


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    with ExitStack() as stack:
        yield Shards(tmp_path, stack)


@asynccontextmanager
async def front(name: str, config: Path, *more: str) -> AsyncIterator[tuple[Any, str]]:
    """Run a front of this name for a block; yield its process and address."""
    starting = serving("--config", str(config), *more, name=name)
    started = await asyncio.to_thread(starting.__enter__)
    try:
        yield started
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


async def ask(url: str, request: bytes) -> tuple[Head, bytes]:
    host, port = url.removeprefix("http://").split(":")
    connection = Connection(*await asyncio.open_connection(host, int(port)))
    try:
        await connection.send(request)
        return await connection.answer()
    finally:
        connection.leave()


async def bookings(url: str) -> int:
    _, body = await ask(url, get("/v1/pods"))
    return sum(row["running"] for row in json.loads(body)["pods"])


@in_loop
async def test_a_gateway_sends_requests_where_shards_know_their_prompts(shards: Shards) -> None:
    async with Engine().running() as holder, Engine().running() as other:
        config = shards.config(a=holder.url, b=other.url)
        async with front("route", config) as (_, url):

            async def sent() -> tuple[str, str]:
                request = post(body=prompt(NUM_TOKENS), x_kvbraid_explain="1")
                head, body = await ask(url, request)
                assert (head.status, json.loads(body)) == (200, {"choices": []})
                return head.headers["x-kvbraid-pod"], head.headers["x-kvbraid-predicted"]

            while await sent() != (HOLDER, "64-64"):  # Until shards have rebuilt their pods.
                await asyncio.sleep(0.05)
            asked = post("/internal/route", prompt(NUM_TOKENS), x_request_id="r", host="localhost")
            _, direction = await ask(url, asked)
            assert json.loads(direction)["replica_id"] == HOLDER
            assert await bookings(url) == 1
            told = b'{"pick": "r", "event": "end", "cached_tokens": 64}'
            _, reported = await ask(url, post("/v1/picked", told, host="localhost"))
            assert json.loads(reported)["ladder"]["rungs"]["delivered"] == 64
            _, drawn = await ask(url, post("/v1/strips", body_of(range(NUM_TOKENS))))
            cells = {row["pod"]: row["groups"][0]["cells"] for row in json.loads(drawn)["pods"]}
            assert cells == {HOLDER: "####.", OTHER: "....."}

            shards.kill_holders()
            assert (await sent())[1] in {"0-65", "0-0"}  # A bound of the holder, or the other.
            _, ready = await ask(url, get("/readyz"))
            assert "is down" in json.loads(ready)["detail"]
            assert await bookings(url) == 0


def body_of(tokens: range) -> bytes:
    return json.dumps({"model": "m", "token_ids": list(tokens)}).encode()


@in_loop
async def test_a_picker_sends_envoy_where_shards_know_a_prompt(shards: Shards) -> None:
    urls = {HOLDER: "http://10.0.0.1:8000", OTHER: "http://10.0.0.2:8000"}
    config = shards.config(**urls)
    async with front("pick-serve", config, "--grpc-port", "0") as (process, url):
        address = process.stdout.readline().split()[-1]
        async with grpc.aio.insecure_channel(address) as channel:
            for name in ("r-0", "r-1"):
                _, scored = await ask(url, post("/v1/score", body_of(range(NUM_TOKENS))))
                while [row["lower"] for row in json.loads(scored)["pods"]] != [64, 0]:
                    await asyncio.sleep(0.05)
                    _, scored = await ask(url, post("/v1/score", body_of(range(NUM_TOKENS))))
                stream = Stream(channel)
                head = request_headers(BodyMode.BUFFERED, BodyMode.STREAMED, x_request_id=name)
                _, reply = await stream.ask(head, request_body(prompt(NUM_TOKENS)))
                assert f"http://{destination(reply)}" == urls[HOLDER]
                assert await bookings(url) == 1
                await stream.ask(response_headers(), response_body(b"{}", ends=True))
                assert (await stream.end()).name == "OK"
            shards.kill_holders()
            stream = Stream(channel)
            head = request_headers(BodyMode.BUFFERED, BodyMode.STREAMED, x_request_id="r-2")
            _, reply = await stream.ask(head, request_body(prompt(NUM_TOKENS)))
            assert f"http://{destination(reply)}" in urls.values()
            await stream.ask(response_headers(), response_body(b"{}", ends=True))
            assert (await stream.end()).name == "OK"
