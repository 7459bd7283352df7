"""A deployment without Ray: replicas that have names, a feed that only notes, and a clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kvbraid.errors import ServiceError
from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet import FleetIndex
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.choosing import HandleCall, ReplicaChooser
from kvbraid.integrations.replicas.metadata import METADATA, ReplicaFacts
from kvbraid.integrations.replicas.options import DeploymentOptions, read_options
from kvbraid.service.config import Followed

MODEL: Final = "m"
GROUPS: Final = {"groups": [{"kind": "full_attention", "block_size": 16}]}
SECONDS: Final = {"fixed": 0.01, "per_token": 1e-4, "per_pair": 0.0}


@dataclass(frozen=True)
class NamedId:
    unique_id: str


@dataclass(frozen=True)
class FakeReplica:
    replica_id: NamedId


class NotingFeed:
    """Follows nobody; `refuses` are pods that it cannot follow."""

    def __init__(self) -> None:
        self.followed: dict[PodId, Followed] = {}
        self.refuses: set[PodId] = set()

    def add(self, pod: PodId, feed: Followed, /) -> None:
        if pod in self.refuses:
            raise ServiceError("subscriber is not running; start a new one")
        assert pod not in self.followed
        self.followed[pod] = feed

    def remove(self, pod: PodId, /) -> None:
        del self.followed[pod]
        if pod in self.refuses:
            raise ServiceError("subscriber is not running; start a new one")


def options(**kwargs: object) -> DeploymentOptions:
    router = {"seconds": {MODEL: SECONDS}}
    return read_options({"router": router, **kwargs}, deployment=MODEL)


def facts(
    name: str,
    *,
    said: object = ...,
    stats: Mapping[str, Any] | None = None,
    port: int = 5557,
) -> ReplicaFacts:
    told = {"endpoint": f"tcp://10.0.0.1:{port}", "topology": GROUPS} if said is ... else said
    return ReplicaFacts(PodId(name), {} if told is None else {METADATA: told}, stats or {})


@dataclass
class Deployment:
    """A chooser over replicas of these names; `now` is its time."""

    names: tuple[str, ...] = ("a", "b", "c")
    kwargs: Mapping[str, object] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.index, self.feed = FleetIndex(), NotingFeed()
        self.chooser: ReplicaChooser[FakeReplica] = ReplicaChooser(
            options(**self.kwargs),
            self.index,
            self.feed,
            clock=lambda: self.now,
            chance=Random(1),
        )
        self.replicas = [FakeReplica(NamedId(name)) for name in self.names]
        self.chooser.follow(facts(name) for name in self.names)

    async def ask(self, call: HandleCall) -> str:
        """Return the name of the replica that a call is sent to."""
        ranks, _ = await self.chooser.rank(call, self.replicas)
        return ranks[0][0].replica_id.unique_id

    def store(self, pod: str, tokens: range) -> None:
        """Let a replica publish that it holds a prompt."""
        assert self.index.apply(PodId(pod), stored(tokens)).refused == 0


def stored(tokens: range) -> bytes:
    """Return what an engine publishes once it holds a prompt."""
    event = BlockStored(
        block_hashes=tuple(1 + tokens[0] + block for block in range(len(tokens) // 16)),
        parent_block_hash=None,
        token_ids=tuple(tokens),
        block_size=16,
        group_idx=0,
    )
    return encode_batch([event])


def call(number: int = 0, tokens: range = range(1600), session: str | None = None) -> HandleCall:
    body = {"prompt": list(tokens)}
    return HandleCall(call_id=f"call{number}", args=(body,), session=session)
