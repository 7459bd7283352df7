"""What a real `kvbraid route` exports after traffic of every kind that a dashboard shows."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from kvbraid.service.feeds.publisher import Publisher

from tests.service.route_pods import Asked, Engine
from tests.service.score_app import TOKENS, stored
from tests.service.serving import serving

_CONFIG: Final = """
[server]
ready_after_s = 0
[index]
memory_limit_bytes = 1000000000
snapshots = "warm"
[[pods]]
id = "a"
model = "m"
endpoint = "{events.endpoint}"
replay_endpoint = "{events.replay_endpoint}"
url = "{engine.url}"
topology = {{ groups = [{{ kind = "full_attention", block_size = 16 }}] }}
[[pods]]
id = "without-events"
model = "m"
url = "{engine.url}"
drain = true
topology = {{ groups = [{{ kind = "full_attention", block_size = 16 }}] }}
"""


async def _answers(asked: Asked) -> None:
    usage = {"prompt_tokens": len(TOKENS), "prompt_tokens_details": {"cached_tokens": 64}}
    await asked.answer(json.dumps({"choices": [], "usage": usage}).encode())


async def scrape(folder: Path) -> str:
    """Run a gateway before a pod that publishes and one that does not; return its /metrics."""
    with Publisher("tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", bind=True) as events:
        async with Engine(_answers).running() as engine:
            config = folder / "fleet.toml"
            config.write_text(_CONFIG.format(events=events, engine=engine))
            events.publish(stored())
            starting = serving("--config", str(config), name="route")
            _, url = await asyncio.to_thread(starting.__enter__)
            try:
                async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                    await _traffic(client)
                    events.publish(b"no batch")
                    await _until_exported(client, "kvbraid_refused_total")
                    return (await client.get("/metrics")).text
            finally:
                await asyncio.to_thread(starting.__exit__, None, None, None)


async def _traffic(client: httpx.AsyncClient) -> None:
    async def knows_the_prompt() -> bool:
        rows = (await client.post("/v1/score", json=prompt)).json()["pods"]
        return any(row["lower"] for row in rows)

    prompt: dict[str, Any] = {"model": "m", "token_ids": TOKENS}
    await _until(knows_the_prompt)
    await client.post("/v1/completions", json={"model": "m", "prompt": TOKENS})
    for reported in (
        {"cached_tokens": 0, "prompt_tokens": len(TOKENS)},
        {"cached_tokens": 0, "prompt_tokens": len(TOKENS) + 1},
        {},
    ):
        pick = (await client.post("/v1/pick", json=prompt)).json()["pick"]
        await client.post("/v1/picked", json={"pick": pick, "event": "end", **reported})
    await client.post("/v1/pick", json=prompt)  # It stays booked.
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port)) as stranger:
        stranger.sendall(b"no request\r\n\r\n")
        await _until_exported(client, "kvbraid_http_refused_total")


async def _until_exported(client: httpx.AsyncClient, name: str) -> None:
    async def is_exported() -> bool:
        return f"{name}{{" in (await client.get("/metrics")).text

    await _until(is_exported)


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while not await is_so():
        await asyncio.sleep(0.02)
