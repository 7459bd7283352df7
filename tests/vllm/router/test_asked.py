"""A gateway that knows of an engine its URL alone: it asks it for token ids and for its events."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from kvbraid.sim.fleet.presets import topology_body

from tests.service.serving import serving as kvbraid_serving
from tests.service.serving import until
from tests.vllm.live_engine import ENGINE, MODELS
from tests.vllm.served_engine import free_port, serving

MODEL: Final = next(model for model in MODELS if model.folder == "gemma3")
TEXT: Final = " ".join(f"w{number}" for number in range(100, 300))
CONFIG: Final = """
[tokens.tiny]
engine = "{url}"
"""
TEMPLATE: Final = "{% for each in messages %}{{ each['content'] }}{% endfor %}"
CHAT: Final = {"messages": [{"role": "user", "content": "w900 " + TEXT}]}

pytestmark = pytest.mark.timeout(1_800)


class AskedFleet(NamedTuple):
    """A client of the gateway, and where its engine publishes."""

    client: httpx.Client
    events: str

    def row(self) -> dict[str, Any]:
        """Return what the gateway says of the engine."""
        [row] = self.client.get("/v1/pods").raise_for_status().json()["pods"]
        return dict(row)

    def ask(self, path: str, **body: object) -> tuple[int, int, int, int]:
        """Send a prompt; return its tokens, the bounds that were promised, and what was reused."""
        told = {"model": "tiny", "max_tokens": 4, "temperature": 0, **body}
        answer = self.client.post(path, json=told, headers={"x-kvbraid-explain": "1"})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        lower, upper = map(int, answer.headers["x-kvbraid-predicted"].split("-"))
        return usage["prompt_tokens"], lower, upper, cached


@pytest.fixture(scope="module")
def fleet() -> Iterator[AskedFleet]:
    ports = free_port(), free_port()
    events, replays = (f"tcp://127.0.0.1:{port}" for port in ports)
    publishes = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
    }
    told = ("--kv-events-config", json.dumps(publishes), "--chat-template", TEMPLATE)
    options = (*told, "--enable-scale-out")  # It renders conversations, too.
    with ExitStack() as open_:
        engine = open_.enter_context(serving(MODEL.folder, *options))
        url = str(engine.base_url).rstrip("/")
        config = Path(open_.enter_context(tempfile.TemporaryDirectory())) / "fleet.toml"
        config.write_text(CONFIG.format(url=url))
        command = ("--config", str(config))
        _, own = open_.enter_context(kvbraid_serving(*command, name="route"))
        client = open_.enter_context(httpx.Client(base_url=own, timeout=120, trust_env=False))
        topology = topology_body(MODEL.topology) | {
            "dialect": ENGINE.dialect.value,
            "hash_seed": ENGINE.hash_seed,
        }
        pod = {"model": "tiny", "endpoint": "ask", "url": url, "topology": topology}
        client.put("/v1/pods/a", json=pod).raise_for_status()
        assert (
            until(lambda: client.get("/readyz").status_code, lambda status: status == 200) == 200
        )
        made = AskedFleet(client, events)
        row = until(made.row, lambda row: row["state"] == "exact")
        assert (row["endpoint"], row["replay_endpoint"]) == (events, replays)
        yield made


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": TEXT}), ("/v1/chat/completions", CHAT)]
)
def test_a_text_has_the_tokens_of_its_engine_and_reuses_what_was_promised(
    fleet: AskedFleet, path: str, body: dict[str, object]
) -> None:
    tokens, *first = fleet.ask(path, **body)
    assert tokens > 2 * MODEL.block_size
    assert first == [0, 0, 0]
    deadline = time.monotonic() + 60  # Until the events of the first one have come.
    while not (again := fleet.ask(path, **body))[1] and time.monotonic() < deadline:
        time.sleep(0.1)
    _, lower, upper, cached = again
    assert 0 < lower == cached == upper
    lines = fleet.client.get("/metrics").text.splitlines()
    assert any(line.startswith('kvbraid_event_sources_total{outcome="found"}') for line in lines)
