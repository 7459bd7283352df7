"""`kvbraid route` as a process of its own, with the real index and feeds."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

from kvbraid.gateway.app import Gateway
from kvbraid.gateway.counts import PASSED_OVER
from kvbraid.gateway.route import Adapters, reader_of
from kvbraid.gateway.upstream import Failure
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig
from kvbraid.service.errors import ERRORS
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.registry import Service

from tests.docs.markdown import tables
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.listed_tokens import ListedTokens
from tests.service.route_pods import (
    Asked,
    Connection,
    Engine,
    get,
    in_loop,
    post,
    prompt,
    two_events,
    until,
)
from tests.service.serving import MAIN, ONE_POD, ROOT, serving
from tests.unit.gateway.model_folders import TURNS, write_model


async def connected(url: str) -> Connection:
    host, port = url.removeprefix("http://").split(":")
    return Connection(*await asyncio.open_connection(host, int(port)))


@in_loop
async def test_a_gateway_serves_and_lets_streams_finish_at_its_end(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with Engine(two_events(go_on)).running() as engine:
        config = tmp_path / "fleet.toml"
        config.write_text(ONE_POD.format(folder=tmp_path, url=engine.url))
        starting = serving("--config", str(config), name="route")
        process, url = await asyncio.to_thread(starting.__enter__)
        clients = [await connected(url) for _ in range(2)]
        client, other = clients
        try:
            await client.send(get("/v1/models"))
            assert json.loads((await client.answer())[1])["data"][0]["id"] == "m"
            await client.send(post(body=prompt(64), x_kvbraid_explain="1"))
            head = await client.head()
            assert (head.headers["x-kvbraid-pod"], head.headers["x-kvbraid-predicted"]) == (
                "a",
                "0-48",  # Nothing is known of a pod that nobody has heard of.
            )
            assert await client.chunk() == b"data: 1\n\n"
            lines = {"POST /v1/completions HTTP/1.1", "GET /metrics HTTP/1.1"}
            await until(lambda: {asked.line for asked in engine.asked} == lines)

            await other.send(get("/v1/pods"))
            assert json.loads((await other.answer())[1])["pods"][0]["running"] == 1

            process.send_signal(signal.SIGTERM)
            assert await other.is_cut()  # The server ends; only the stream keeps it.
            go_on.set()
            assert await client.chunk() == b"data: 2\n\n"
            assert await client.chunk() == b""
            assert await asyncio.to_thread(process.wait, 20) == 0
        finally:
            for each in clients:
                each.writer.transport.abort()
            await asyncio.to_thread(starting.__exit__, None, None, None)


TOKENS = """
[pods.loras]
poet = "/adapters/poet"

[tokens.m]
folder = "m"
"""


@in_loop
async def test_texts_and_chats_have_tokens_if_the_models_files_are_there(tmp_path: Path) -> None:
    write_model(tmp_path / "m", TURNS)
    chat = {"model": "poet", "messages": [{"role": "user", "content": "Hello " * 40}]}
    text = {"model": "m", "prompt": "Hello " * 40}
    async with Engine().running() as engine:
        config = tmp_path / "fleet.toml"
        config.write_text(ONE_POD.format(folder=tmp_path, url=engine.url) + TOKENS)
        starting = serving("--config", str(config), name="route")
        _process, url = await asyncio.to_thread(starting.__enter__)
        client = await connected(url)
        try:
            for path, body in (("/v1/completions", text), ("/v1/chat/completions", chat)):
                data = json.dumps(body).encode()
                await client.send(post(path, data, x_kvbraid_explain="1"))
                head, _ = await client.answer()
                low, high = map(int, head.headers["x-kvbraid-predicted"].split("-"))
                assert low == 0 < high
        finally:
            client.writer.transport.abort()
            await asyncio.to_thread(starting.__exit__, None, None, None)


@in_loop
async def test_an_engine_that_is_asked_gives_the_ids_that_decide(tmp_path: Path) -> None:
    async def answers(asked: Asked) -> None:
        is_question = asked.line == "POST /tokenize HTTP/1.1"
        await asked.answer(json.dumps({"tokens": list(range(64))} if is_question else {}).encode())

    async with Engine(answers).running() as engine:
        config = tmp_path / "fleet.toml"
        table = f'\n[tokens.m]\nengine = "{engine.url}"\n'
        config.write_text(ONE_POD.format(folder=tmp_path, url=engine.url) + table)
        starting = serving("--config", str(config), name="route")
        process, url = await asyncio.to_thread(starting.__enter__)
        client = await connected(url)
        try:
            await client.send(post(body=b'{"model": "m", "prompt": "x"}', x_kvbraid_explain="1"))
            head, _ = await client.answer()
            assert head.headers["x-kvbraid-predicted"] == "0-48"
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 20) == 0
        finally:
            client.writer.transport.abort()
            await asyncio.to_thread(starting.__exit__, None, None, None)


@in_loop
async def test_an_adapter_of_a_pod_that_is_registered_later_has_its_models_ids(
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "m", TURNS)
    config = tmp_path / "fleet.toml"
    config.write_text(TOKENS.split("\n\n")[1])
    service = Service(FakeIndex(), FakeFeed())
    reader = reader_of(read_fleet_file(config), Adapters(service))
    body = b'{"model": "poet", "prompt": "Hello"}'
    assert (await reader.read("/v1/completions", {}, body)).why_no_tokens == "no_tokenizer"
    service.put(PodId("p"), PodConfig(model="m", endpoint="tcp://h:1", loras={"poet": "/x"}))
    prompt = await reader.read("/v1/completions", {}, body)
    assert (prompt.model, prompt.lora, prompt.why_no_tokens) == ("m", "poet", "")
    service.put(PodId("q"), PodConfig(model="poet", endpoint="tcp://h:2"))  # No adapter any more.
    assert (await reader.read("/v1/completions", {}, body)).model == "poet"


def test_a_models_files_that_are_missing_end_the_start_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text(TOKENS.split("\n\n")[1])
    command = [sys.executable, "-c", MAIN, "route", "--port", "0", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "m/tokenizer.json: No such file" in line
    assert "give a model's tokenizer.json, or its folder" in line


def test_the_page_lists_codes_with_their_statuses() -> None:
    (table,) = tables("gateway.md", "What a client is told")
    for code, status, _ in table:
        assert ERRORS[code.strip("`")].status == int(status)


def test_the_page_lists_the_metrics_and_their_values() -> None:
    service = Service(FakeIndex(), FakeFeed())
    text = Gateway(service, ListedTokens(), ForwardingOptions()).metrics.render().decode()
    (table,) = tables("gateway.md", "What is counted")
    exported = re.findall(r"^# TYPE (kvbraid_gateway_\w+) (\w+)$", text, re.MULTILINE)
    assert [(row[0].strip("`"), row[1]) for row in table] == exported
    told = {row[0].strip("`"): row[3] for row in table}
    failures = told["kvbraid_gateway_pod_failures_total"]
    kinds = [*get_args(Failure), PASSED_OVER]
    assert [word.strip("`") for word in re.findall(r"`\w+`", failures)] == kinds


def test_the_page_names_every_key_of_the_table() -> None:
    page = (ROOT / "docs" / "gateway.md").read_text()
    keys = ForwardingOptions.__struct_fields__
    assert [key for key in keys if f"`{key}`" not in page and f"{key} = " not in page] == []
