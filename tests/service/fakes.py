"""An index and a feed that keep what they are told: the obvious models of `ports.py`."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from kvbraid.engine import EngineProfile
from kvbraid.errors import UnknownError
from kvbraid.events.sequence import Settled
from kvbraid.fleet import Columns
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.service.config import Followed
from kvbraid.spec import SpecKind, Topology


@dataclass
class FakeScores:
    request: Request
    pods: list[tuple[str, int]]
    promised: list[tuple[str, int]] = field(default_factory=list)
    seen: None = None  # It remembers nothing.

    def to_json(self) -> bytes:
        num_tokens = len(self.request.token_ids)
        rows = [
            {
                "pod": pod, "dp_rank": rank, "state": "exact", "lower": 0, "upper": 0,
                "expected": 0, "exactness": "exact", "present": 0,
                "tiers": {"gpu": {"lower": 0, "upper": 0}}, "limiting": None, "score": 0.0,
            }
            for pod, rank in self.pods
        ]  # fmt: skip
        answer = {"model": self.request.model, "num_tokens": num_tokens, "pods": rows}
        return json.dumps(answer).encode()

    def columns(self) -> Columns:
        nothing = [0] * len(self.pods)
        return Columns(
            ranks=[(PodId(pod), rank) for pod, rank in self.pods],
            states=[PodState.EXACT] * len(self.pods),
            lower=nothing, upper=nothing, expected=nothing, present=nothing,
            soon=nothing, expected_soon=nothing, present_soon=nothing,
        )  # fmt: skip

    def promise(
        self,
        pod: PodId,
        *,
        dp_rank: int = 0,
        junction: int = 0,
        sparse_windows: bool | None = None,
    ) -> int:
        del junction, sparse_windows
        self.promised.append((pod, dp_rank))
        return len(self.promised)


@dataclass
class FakeExplanation:
    rows: list[SimpleNamespace]


@dataclass
class FakeIndex:
    """Holds nothing; answers a row per rank.

    `hold` makes score wait, `is_busy` what must not wait fail, `fail` makes score raise.
    """

    registered: dict[str, tuple[str, int]] = field(default_factory=dict)
    topologies: dict[str, Topology | None] = field(default_factory=dict)
    engines: dict[str, EngineProfile] = field(default_factory=dict)
    states: dict[str, PodState] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    told: list[tuple[str, int, Request, list[int]]] = field(default_factory=list)
    promised: list[tuple[str, int]] = field(default_factory=list)
    withdrawn: list[tuple[str, int]] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    hold: threading.Event | None = None
    held: threading.Event = field(default_factory=threading.Event)
    is_busy: bool = False
    fail: Exception | None = None
    memory_limit_bytes: int | None = None

    def register(
        self,
        pod: PodId,
        *,
        model: str,
        dp_size: int = 1,
        topology: Topology | None = None,
        engine: EngineProfile = EngineProfile(),  # noqa: B008 - frozen
        loras: Mapping[str, str] | None = None,
    ) -> None:
        del loras
        self.engines[pod] = engine
        self.registered[pod] = (model, dp_size)
        self.topologies[pod] = topology

    def remove(self, pod: PodId) -> None:
        if pod not in self.registered:
            raise UnknownError(pod)
        del self.registered[pod]

    def _ranks(self, request: Request) -> list[tuple[str, int]]:
        return [
            (pod, rank)
            for pod, (model, dp_size) in self.registered.items()
            if model == request.model and (request.pods is None or pod in request.pods)
            for rank in range(dp_size)
        ]

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        del dp_rank, reason
        self.states[pod] = state

    def score(self, request: Request, *, with_seen: bool = False) -> FakeScores:
        del with_seen
        self.requests.append(request)
        self.threads.append(threading.get_ident())
        if self.fail is not None:
            raise self.fail
        if self.hold is not None:
            self.held.set()
            self.hold.wait(timeout=30)
        return FakeScores(request, self._ranks(request), self.promised)

    def try_score(self, request: Request) -> FakeScores | None:
        return None if self.is_busy else self.score(request)

    def routed(
        self, pod: PodId, request: Request, produced: Sequence[int], *, dp_rank: int = 0
    ) -> None:
        model, dp_size = self.registered[pod]
        if model != request.model or dp_rank >= dp_size:
            raise UnknownError(f"no rank {dp_rank} of pod {pod} serves {request.model}")
        self.told.append((pod, dp_rank, request, list(produced)))

    def withdraw(self, promise: int) -> bool:
        self.withdrawn.append(self.promised[promise - 1])
        return True

    def num_promised(self) -> int:
        return len(self.promised) - len(self.withdrawn)

    def explain(self, request: Request) -> FakeExplanation:
        group = SimpleNamespace(
            group=0, kind=SpecKind.SLIDING_WINDOW, block_size=16, window=32,
            held=[True, False], accepted=[16],
        )  # fmt: skip
        rows = [
            SimpleNamespace(
                pod=pod, dp_rank=rank, state=PodState.EXACT, lower=16, upper=16,
                limiting=SimpleNamespace(group=0, boundary=16), reason="g0 lacks block 1",
                groups=[group],
            )
            for pod, rank in self._ranks(request)
        ]  # fmt: skip
        return FakeExplanation(rows)

    def pods(self) -> Sequence[SimpleNamespace]:
        return [
            SimpleNamespace(
                pod=pod, dp_rank=rank, model=model, reason="", messages=3,
                state=self.states.get(pod, PodState.EXACT),
                groups=[
                    SimpleNamespace(
                        group=0, kind=SpecKind.FULL_ATTENTION, block_size=16, window=None,
                        chunk=None, eagle=False, held={"gpu": 8, "cpu": 0, "storage": 0},
                    )
                ],
                hash_function="unknown", num_blocks=8, memory_bytes=4096,
                placed={"tokens": 5, "join": 2, "query": 0, "unplaced": 1},
                refused={"topic_mismatch": 4},
            )
            for pod, (model, dp_size) in self.registered.items()
            for rank in range(dp_size)
        ]  # fmt: skip

    def memory_bytes(self) -> int:
        return 4096


@dataclass
class FakeFeed:
    """Remembers which pods it follows.

    `refuse` is raised by every `add`, `refuse_next` by the next one, `unusable` by `check`.
    `state` is that of every pod, whose first rebuild has ended unless it is `unbuilt`.
    """

    state: PodState = PodState.EXACT
    unbuilt: set[str] = field(default_factory=set)
    following: dict[str, Followed] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    refuse: Exception | None = None
    refuse_next: Exception | None = None
    unusable: Exception | None = None
    failure: str | None = None

    def check(self, config: Followed, replaced: Followed | None, /) -> None:
        del config, replaced
        if self.unusable is not None:
            raise self.unusable

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None], /) -> bool:
        del pod, work
        return False

    def add(self, pod: PodId, config: Followed, progress: Sequence[Settled] = (), /) -> None:
        del progress
        refuse, self.refuse_next = self.refuse or self.refuse_next, None
        if refuse is not None:
            raise refuse
        self.log.append(f"add {pod}")
        self.following[pod] = config

    def remove(self, pod: PodId, /) -> None:
        self.log.append(f"remove {pod}")
        del self.following[pod]

    def status(self) -> Sequence[SimpleNamespace]:
        return [
            SimpleNamespace(
                pod=pod, dp_rank=rank, last_seq=7, state=self.state, messages=8,
                is_rebuilt=pod not in self.unbuilt, applied_at=12.5,
            )
            for pod, config in self.following.items()
            for rank in range(config.dp_size)
        ]  # fmt: skip

    def strays(self) -> dict[str, int]:
        return {"unknown_topic": 3}

    def start(self) -> None:
        self.log.append("start")

    def close(self) -> None:
        self.log.append("close")
