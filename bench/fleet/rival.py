"""The rival, the released `ai-dynamo-runtime` wheel: its in-process tree and its indexer service.

The rival gets its fastest input: token lists to hash, and JSON events that are made before the
clock starts.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bench.fleet.service import MeasuredService
from bench.fleet.streams import BLOCK, Batch


def _rival() -> Any:  # noqa: ANN401 - the wheel ships no types for these two names.
    from dynamo import llm

    return llm


def block_hashes(tokens: list[int]) -> list[int]:
    """Return the rival's own hash of each block of the prompt."""
    hashes: list[int] = _rival().compute_block_hash_for_seq(tokens, BLOCK)
    return hashes


class Tree:
    """The in-process `RadixTree`; its events are translated beforehand."""

    def __init__(self) -> None:
        self._tree = _rival().RadixTree()

    def apply(self, events: Iterable[tuple[int, bytes]]) -> None:
        """Apply (worker, JSON event) pairs, in order."""
        apply_event = self._tree.apply_event
        for worker, event in events:
            apply_event(worker, event)

    def find(self, tokens: list[int]) -> object:
        """Hash the prompt and match it, as a router does for every request."""
        return self._tree.find_matches(block_hashes(tokens), False)


def tree_events(batches: Iterable[Batch]) -> Iterator[tuple[int, bytes]]:
    """Translate published batches to the tree's JSON events."""
    event_id = 0
    for message in batches:
        for event in msgspec.msgpack.decode(message.payload)[1]:
            event_id += 1
            yield (
                message.pod,
                json.dumps(
                    {"event_id": event_id, "data": _tree_event(event), "dp_rank": 0}
                ).encode(),
            )


def _tree_event(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] == "BlockRemoved":
        return {"removed": {"block_hashes": event["block_hashes"]}}
    pairs = zip(event["block_hashes"], block_hashes(event["token_ids"]), strict=True)
    return {
        "stored": {
            "parent_hash": event["parent_block_hash"],
            "blocks": [{"block_hash": ours, "tokens_hash": local} for ours, local in pairs],
        }
    }


class Indexer(MeasuredService):
    """A running `dynamo.indexer`: pods are registered by endpoint, events arrive over ZeroMQ."""

    command = (sys.executable, "-m", "dynamo.indexer", "--threads", "2")
    health_path = "/health"
    query_path = "/query"

    def register(self, pod: int, endpoint: str) -> None:
        """Connect the indexer to one publisher."""
        body = {
            "instance_id": pod,
            "endpoint": endpoint,
            "model_name": "model",
            "block_size": BLOCK,
        }
        self.client.post("/register", json=body).raise_for_status()

    def num_applied(self) -> int:
        """Return how many events the indexer has taken so far, including those it refused."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith("dynamo_kvrouter_kv_cache_events_applied{"):
                total += float(line.rpartition(" ")[2])
        return int(total)

    @staticmethod
    def expected(batches: Iterable[Batch]) -> int:
        """Return the value of `num_applied` once all batches are applied."""
        return sum(message.num_events for message in batches)

    @staticmethod
    def longest_match(answer: bytes) -> int:
        """Return the largest number of prompt tokens that some pod holds, by this answer."""
        pods = json.loads(answer)["instances"].values()
        return max((pod["longest_matched"] for pod in pods), default=0)

    @staticmethod
    def query_body(tokens: list[int]) -> tuple[str, bytes]:
        """Return the content type and body of a query for one prompt."""
        body = {"model_name": "model", "token_ids": tokens}
        return "application/json", json.dumps(body, separators=(",", ":")).encode()
