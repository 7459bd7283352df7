"""`kvbraid pick-serve` as a process of its own, with the real index; and its page."""

import asyncio
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import get_args

import grpc.aio
import pytest
from kvbraid.gateway.envoy.picker import EntryKind
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.gateway.envoy.serve import PickApplication
from kvbraid.service.config import FleetConfig
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.errors import ERRORS
from kvbraid.service.http.access import Access
from kvbraid.service.registry import Service

from tests.docs.markdown import DOCS, codes, firsts, tables
from tests.service.envoy_streams import (
    Stream,
    destination,
    prompt,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.listed_tokens import ListedTokens
from tests.service.route_pods import in_loop
from tests.service.serving import MAIN, ONE_POD, serving


@in_loop
async def test_a_picker_answers_envoy_and_lets_streams_finish_at_its_end(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text(ONE_POD.format(folder=tmp_path, url="http://127.0.0.1:8000"))
    starting = serving("--config", str(config), "--grpc-port", "0", name="pick-serve")
    process, url = await asyncio.to_thread(starting.__enter__)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        async with grpc.aio.insecure_channel(address) as channel:
            stream = Stream(channel)
            head = request_headers(BodyMode.BUFFERED, BodyMode.STREAMED, x_request_id="r")
            _, reply = await stream.ask(head, request_body(prompt(64)))
            assert destination(reply) == "127.0.0.1:8000"
            metrics = await asyncio.to_thread(read, f"{url}/metrics")
            assert "kvbraid_bookings 1.0" in metrics
            assert "kvbraid_envoy_streams 1.0" in metrics
            process.send_signal(signal.SIGTERM)
            await stream.ask(response_headers(), response_body(b"{}", ends=True))
            assert (await stream.end()).name == "OK"
            assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_an_address_for_grpc_that_is_taken_ends_the_start_in_one_line() -> None:
    with serving("--grpc-port", "0", name="pick-serve") as (process, _):
        assert process.stdout is not None
        port = process.stdout.readline().rpartition(":")[2].strip()
        command = [sys.executable, "-c", MAIN, "pick-serve", "--port", "0", "--grpc-port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line == f"kvbraid: cannot listen on 127.0.0.1:{port} for gRPC; choose another"


# ---- docs/envoy.md ----------------------------------------------------------------------------


def test_the_page_lists_the_metrics_and_their_values() -> None:
    service = Service(FakeIndex(), FakeFeed())
    config = FleetConfig()
    app = PickApplication(service, ListedTokens(), config, Access())
    text = app.metrics.render().decode()
    (table,) = tables("envoy.md", "What is counted")
    exported = re.findall(r"^# TYPE (kvbraid_envoy_\w+) (\w+)$", text, re.MULTILINE)
    assert [(row[0].strip("`"), row[1]) for row in table] == exported
    told = {row[0].strip("`"): codes(row[3]) for row in table}
    assert told["kvbraid_envoy_entries_total"] == list(get_args(EntryKind))


def test_the_page_lists_modes_and_codes() -> None:
    (modes,) = tables("envoy.md", "How Envoy sends bodies")
    named = [code for first in firsts(modes) for code in first.split(", ")]
    assert sorted(named) == sorted(mode.name for mode in BodyMode)
    (refusals,) = tables("envoy.md", "What a client is told")
    for code, status, _ in refusals:
        assert ERRORS[code.strip("`")].status == int(status)


@pytest.mark.parametrize("key", EnvoyOptions.__struct_fields__)
def test_the_page_names_every_key_of_the_table(key: str) -> None:
    assert re.search(rf"\b{key}\b", (DOCS / "envoy.md").read_text())
