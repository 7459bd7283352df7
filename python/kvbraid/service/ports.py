"""The protocols of the index, the subscriber and the spans that the HTTP service needs.

`FleetIndex` and `Subscriber` implement them, and so do the fakes of the tests. Rows are plain
objects whose attributes are the fields of `answers.py`, which reads them. There is no code here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvbraid.engine import EngineProfile
from kvbraid.events.sequence import Settled
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.policy import Decision, Promisable, Promising
from kvbraid.service.config import Followed
from kvbraid.spec import Topology


class ScoredRequest(Promisable, Protocol):
    """One scored request."""

    def to_json(self) -> bytes:
        """Return the body of a /v1/score answer."""


class ExplainedRequest(Protocol):
    """One explained request."""

    @property
    def rows(self) -> Sequence[object]:
        """One row per pod and rank, with the attributes of `answers.ExplainRow`."""


class Index(Promising, Protocol):
    """The part of `FleetIndex` that the service calls; thread-safe.

    Every call may raise a KvbraidError; UnknownError for a model or pod that is not registered.

    Attributes:
        memory_limit_bytes: What `memory_bytes` is kept under; None: no limit.
    """

    memory_limit_bytes: int | None

    def register(
        self,
        pod: PodId,
        *,
        model: str,
        dp_size: int = 1,
        topology: Topology | None = None,
        engine: EngineProfile = ...,
        loras: Mapping[str, str] | None = None,
    ) -> None:
        """Make a pod known, or replace its configuration."""

    def remove(self, pod: PodId) -> None:
        """Forget a pod, all ranks."""

    def set_state(
        self, pod: PodId, state: PodState, *, dp_rank: int = 0, reason: str = ""
    ) -> None:
        """Note how completely a rank's history is known."""

    def score(self, request: Request, *, with_seen: bool = False) -> ScoredRequest:
        """Say how much each pod could reuse, and what was ever there if that is asked."""

    def try_score(self, request: Request) -> ScoredRequest | None:
        """As `score`, but None if another thread has the index."""

    def routed(
        self, pod: PodId, request: Request, produced: Sequence[int], *, dp_rank: int = 0
    ) -> None:
        """Note that a request was sent to a rank, and that these tokens came back."""

    def explain(self, request: Request) -> ExplainedRequest:
        """Give the reasons of each pod's answer."""

    def pods(self) -> Sequence[object]:
        """Return one row per pod and rank, with the attributes of `answers.IndexRow`."""

    def memory_bytes(self) -> int:
        """Return the accounted memory."""


class Feed(Protocol):
    """The part of `Subscriber` that the service calls; thread-safe."""

    @property
    def failure(self) -> str | None:
        """Why nothing is followed at the moment although it should be; None when all is well."""

    def add(self, pod: PodId, config: Followed, progress: Sequence[Settled] = (), /) -> None:
        """Follow a pod, all ranks, with a replay from 0, or from a progress of each on."""

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None], /) -> bool:
        """Do some work while the index has what was settled of a pod; False: not now."""

    def check(self, config: Followed, replaced: Followed | None, /) -> None:
        """Refuse an address that `add` could not bind once `replaced` is gone; change nothing."""

    def remove(self, pod: PodId, /) -> None:
        """Stop following; once this returns no further batch of that pod is applied."""

    def status(self) -> Sequence[object]:
        """Return one row per pod and rank, with the attributes of `answers.FeedRow`."""

    def strays(self) -> Mapping[str, int]:
        """Return how many messages concerned no followed pod, by reason."""

    def start(self) -> None:
        """Begin to receive."""

    def close(self) -> None:
        """Stop receiving and close every socket."""


class Spans(Protocol):
    """Makes a span of each decision."""

    def now(self) -> int:
        """Return the time at which a span begins, in nanoseconds."""

    def note(self, decision: Decision, traceparent: str, began: int) -> None:
        """Make a span that ends now, of the trace that `traceparent` names; it never waits."""
