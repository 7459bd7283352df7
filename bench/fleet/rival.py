"""The rival, the released `ai-dynamo-runtime` wheel: its in-process tree and its indexer service.

Its own best way in is used: token lists for hashing, JSON events prepared before the clock starts.
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
    """The in-process `RadixTree`, fed with events that were translated beforehand."""

    def __init__(self) -> None:
        self._tree = _rival().RadixTree()

    def apply(self, events: Iterable[tuple[int, bytes]]) -> None:
        """Apply (worker, JSON event) pairs, in order."""
        apply_event = self._tree.apply_event
        for worker, event in events:
            apply_event(worker, event)

    def find(self, tokens: list[int]) -> object:
        """Hash the prompt and match it: what a router calls for every request."""
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
        """Connect it to one publisher."""
        body = {
            "instance_id": pod,
            "endpoint": endpoint,
            "model_name": "model",
            "block_size": BLOCK,
        }
        self.client.post("/register", json=body).raise_for_status()

    def num_applied(self) -> int:
        """Return how many events it has taken so far, whatever their fate."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith("dynamo_kvrouter_kv_cache_events_applied{"):
                total += float(line.rpartition(" ")[2])
        return int(total)

    @staticmethod
    def expected(batches: Iterable[Batch]) -> int:
        """Return what `num_applied` reaches once the batches are in."""
        return sum(message.num_events for message in batches)

    @staticmethod
    def longest_match(answer: bytes) -> int:
        """Return the most tokens that any pod holds of the prompt, by this answer."""
        pods = json.loads(answer)["instances"].values()
        return max((pod["longest_matched"] for pod in pods), default=0)

    @staticmethod
    def query_body(tokens: list[int]) -> tuple[str, bytes]:
        """Return the content type and body that ask for one prompt."""
        body = {"model_name": "model", "token_ids": tokens}
        return "application/json", json.dumps(body, separators=(",", ":")).encode()
