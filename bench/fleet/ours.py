"""Our side, as users run it: the `FleetIndex` in process, and a running `kvbraid serve`."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.fleet.service import MeasuredService
from bench.fleet.streams import NUM_PODS, Batch

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)


def pod_name(pod: int) -> PodId:
    """Return the name of pod number `pod`, which is the same in every service."""
    return PodId(f"pod{pod}")


def new_index(
    *groups: GroupSpec,
    num_pods: int = NUM_PODS,
    hash_seed: str | None = None,
    options: IndexOptions | None = None,
) -> FleetIndex:
    """Return an index with pods registered for one model; one full group by default."""
    topology = Topology(groups=groups or (FULL,))
    algo = HashAlgo.SHA256 if hash_seed is not None else None
    engine = EngineProfile(hash_algo=algo, hash_seed=hash_seed)
    index = FleetIndex(options)
    for pod in range(num_pods):
        index.register(pod_name(pod), model="model", topology=topology, engine=engine)
    return index


def apply_all(index: FleetIndex, batches: Iterable[Batch]) -> None:
    """Apply every batch; raise if the index refuses any event."""
    for message in batches:
        applied = index.apply(pod_name(message.pod), message.payload)
        assert not applied.refused, applied.refused


class Server(MeasuredService):
    """A running `kvbraid serve`."""

    command = (str(Path(sys.executable).with_name("kvbraid")), "serve", "--host", "127.0.0.1")
    health_path = "/healthz"
    query_path = "/v1/score"

    def register(self, pod: int, endpoint: str) -> None:
        """Connect the server to one publisher."""
        body = {
            "model": "model",
            "endpoint": endpoint,
            "bind": False,
            "topology": {"groups": [{"event_kind": "full_attention", "block_size": 16}]},
        }
        self.client.put(f"/v1/pods/{pod_name(pod)}", json=body).raise_for_status()

    def num_applied(self) -> int:
        """Return how many messages the server has taken so far."""
        return sum(row["messages"] for row in self.client.get("/v1/pods").json()["pods"])

    @staticmethod
    def expected(batches: Iterable[Batch]) -> int:
        """Return the value of `num_applied` once all batches are applied."""
        return sum(1 for _ in batches)

    @staticmethod
    def longest_match(answer: bytes) -> int:
        """Return the largest number of prompt tokens that some pod certainly holds."""
        lower: int = max(row["lower"] for row in json.loads(answer)["pods"])
        return lower

    @staticmethod
    def query_body(tokens: list[int]) -> tuple[str, bytes]:
        """Return the content type and body of a query for one prompt."""
        body = {"model": "model", "token_ids": tokens}
        return "application/json", json.dumps(body, separators=(",", ":")).encode()


def accounted_bytes(index: FleetIndex) -> int:
    """Return the memory that the index itself reports."""
    return index.memory_bytes()
