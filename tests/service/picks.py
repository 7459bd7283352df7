"""A client of a service of two pods that are picked from, and whose time stands still."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from httpx import Response
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet import FleetIndex, Request, Scores, Seen
from kvbraid.ids import PodId
from kvbraid.service.config import Limits
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.http.app import Application
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service
from kvbraid.service.routing import Routing

from tests.service.fakes import FakeFeed
from tests.service.in_process import TestClient

TOPOLOGY = {"groups": [{"kind": "full_attention", "block_size": 16}]}
POD: dict[str, Any] = {"model": "m", "endpoint": "tcp://h:5557", "topology": TOPOLOGY}
PROMPT = list(range(160))
REUSED = 144
"""What the same prompt again can reuse: at least one token is always computed."""


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Fleet:
    """A client of a service of two pods, whose time stands still until it is told."""

    def __init__(self, client: TestClient, index: FleetIndex, service: Service, clock: Clock):
        self.client, self.index, self.service, self.clock = client, index, service, clock

    def put(self, pod: str, **fields: object) -> str:
        body = {**POD, "url": f"http://{pod}:8000", **fields}
        return str(self.client.put(f"/v1/pods/{pod}", json=body).json()["status"])

    def ask(self, **fields: object) -> Response:
        body = {"model": "m", "token_ids": PROMPT, **fields}
        answer: Response = self.client.post("/v1/pick", json=body)
        return answer

    def pick(self, **fields: object) -> dict[str, Any]:
        answer = self.ask(**fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def report(self, pick: str, event: str, **fields: object) -> str:
        return str(self.reported(pick, event, **fields)["status"])

    def reported(self, pick: str, event: str, **fields: object) -> dict[str, Any]:
        answer = self.client.post("/v1/picked", json={"pick": pick, "event": event, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.json()["pick"] == pick
        return dict(answer.json())

    def running(self) -> dict[str, int]:
        rows = self.client.get("/v1/pods").json()["pods"]
        return {row["pod"]: row["running"] for row in rows}

    def metrics(self, name: str) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(name))
        return {labels.removeprefix(name): float(value) for labels, _, value in found}


class RememberingIndex(FleetIndex):
    """Remembers so many tokens of each prompt, or nothing."""

    remembered = Seen(160, 0, 0)

    def score(self, request: Request, *, with_seen: bool = False) -> Scores:
        scores = super().score(request, with_seen=with_seen)
        scores.seen = self.remembered
        return scores


def fleet_of(
    routing: Routing | None = None,
    limits: Limits | None = None,
    index: FleetIndex | None = None,
    console: ConsoleOptions | None = None,
) -> Iterator[Fleet]:
    index, clock = index or FleetIndex(), Clock()
    picking = Picking(index, routing, console=console, clock=clock)
    service = Service(index, FakeFeed(), picking=picking, limits=limits)
    with TestClient(Application(service), base_url="http://localhost") as client:
        fleet = Fleet(client, index, service, clock)
        fleet.put("a")
        fleet.put("b")
        yield fleet
    picking._router.check_integrity()
    picking.recent.check_integrity()
    picking.ladder.history.check_integrity()


def hold(index: FleetIndex, pod: str, num_tokens: int) -> None:
    """Let a pod hold the beginning of the prompt, as its events say."""
    event = BlockStored(
        block_hashes=tuple(range(num_tokens // 16)), parent_block_hash=None,
        token_ids=tuple(PROMPT[:num_tokens]), block_size=16, group_idx=0,
        kv_cache_spec_kind="full_attention",
    )  # fmt: skip
    index.apply(PodId(pod), encode_batch([event]))
