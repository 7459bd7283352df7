"""One call to its replica: the prompt is read, the router decides, and Ray gets its ranks.

Invariant: what is decided is what `kvbraid.policy.Router` decides for the same requests, times and
reports. A call is booked once however often Ray asks about it. Whatever fails here, Ray gets
replicas to try, because it never answers a call for which its router raises. All but the events
runs on one event loop. The clock is passed in.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from random import Random
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kvbraid.errors import KvbraidError, one_line
from kvbraid.fleet import Request
from kvbraid.fleet.index import FleetIndex
from kvbraid.gateway.prompts import PromptReader
from kvbraid.gateway.route import reader_of
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.calls import Calls
from kvbraid.integrations.replicas.following import EventFeed, Replicas
from kvbraid.integrations.replicas.metadata import ReplicaFacts
from kvbraid.integrations.replicas.options import DeploymentOptions
from kvbraid.integrations.replicas.prompts import read_prompt
from kvbraid.policy import Decision, EngineLoad, Router
from kvbraid.service.capacity import raise_descriptor_limit
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.picking import MOST_FALLBACKS
from kvbraid.service.serve import index_options

SWEEP_S: Final = 0.25
_LOGGER: Final = logging.getLogger("kvbraid.ray")


class ReplicaName(Protocol):
    """The name of a replica, as Ray gives it."""

    @property
    def unique_id(self) -> str:
        """What no other replica of the deployment is called."""
        ...


class NamedReplica(Protocol):
    """A replica of Ray, as far as it is looked at."""

    @property
    def replica_id(self) -> ReplicaName:
        """Its name."""
        ...


ReplicaT = TypeVar("ReplicaT", bound=NamedReplica)


@dataclass(slots=True, eq=False)
class HandleCall:
    """One call of a deployment handle, which Ray asks about as often as it likes.

    `call_id` is Ray's, which calls within one request share; `name` is that of the booking.
    """

    call_id: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None
    adapter: str | None = None
    name: str = ""
    request: Request | None = None
    num_tokens: int = 0
    priority: int = 0


class Ranked(NamedTuple, Generic[ReplicaT]):
    """Replicas in the order in which Ray tries them, and the decision if there is one."""

    ranks: list[list[ReplicaT]]
    decision: Decision | None


class OfPods:
    """Every rank of some pods."""

    def __init__(self, pods: Collection[PodId]) -> None:
        self._pods = pods

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, tuple) and rank[0] in self._pods

    def __len__(self) -> int:
        return len(self._pods)


class ReplicaChooser(Generic[ReplicaT]):
    """Chooses a replica of one deployment for each call of a process.

    Attributes:
        router: What decides.
        replicas: The pods that it decides among.
    """

    def __init__(
        self,
        options: DeploymentOptions,
        index: FleetIndex,
        feed: EventFeed,
        *,
        reader: PromptReader | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Random | None = None,
    ) -> None:
        routing = options.config.routing
        self.router = Router(
            index,
            routing.make_policy(),
            seconds=routing.seconds,
            options=routing.options,
            chance=chance,
        )
        self.replicas = Replicas(index, feed, self.router, options)
        self.reader = reader or reader_of(options.config, {})
        self._options = options
        self._calls = Calls(self.router, routing.options.grace_s)
        self._clock = clock
        self._chance = chance or Random()  # noqa: S311 - it spreads load, and guards nothing
        self._given: Sequence[ReplicaT] = ()  # The last candidates, which are mostly the next.
        self._by_pod: dict[PodId, ReplicaT] = {}
        self._pods: frozenset[PodId] | None = None
        self._swept = clock()
        self._counts: Counter[str] = Counter()
        self._failures: set[str] = set()

    @classmethod
    def started(cls, options: DeploymentOptions) -> "ReplicaChooser[ReplicaT]":
        """Return a chooser with an index and a subscriber, whose thread runs."""
        raise_descriptor_limit()
        index = FleetIndex(index_options(options.config))
        feed = Subscriber(index)
        feed.start()
        return cls(options, index, feed)

    # ---- what Ray tells --------------------------------------------------------------------

    def follow(self, running: Iterable[ReplicaFacts]) -> None:
        """Take these for the replicas that there are."""
        now = self._clock()
        for pod in self.replicas.follow(running):
            self._calls.gone(pod, now)
        for pod in self.replicas.pods:
            load = self.replicas.load(pod)
            if load is not None and self.replicas.dp_size(pod) == 1:
                engine = EngineLoad(running=load.running, waiting=load.waiting, usage=load.usage)
                self.router.note_load((pod, 0), engine, now=now)
        self._given = ()

    def sent(self, call: HandleCall, pod: PodId | None = None) -> None:
        """Note that Ray sends a call itself, and to which replica, if it says so."""
        self._calls.sent(call.name)
        booking = self.router.booking(call.name)
        if pod is None or booking is None or booking.rank[0] == pod or call.request is None:
            return
        self._counts["moved"] += 1
        try:  # Ray found the chosen one full: the booking follows the call.
            self._book(call, call.request, OfPods((pod,)))
        except KvbraidError:
            self.router.fail(call.name, now=self._clock())

    def completed(self, call_id: str, pod: PodId) -> None:
        """Note that a call has ended."""
        self._calls.completed(call_id, pod, self._clock())

    def died(self, pod: PodId) -> None:
        """Note that a replica is dead, before Ray has told who runs."""
        self._calls.gone(pod, self._clock())

    # ---- what Ray asks ---------------------------------------------------------------------

    async def rank(self, call: HandleCall, candidates: Sequence[ReplicaT]) -> Ranked[ReplicaT]:
        """Choose among replicas and book; the chosen one is the first rank, all others follow."""
        try:
            decision = await self._decide(call, candidates)
        except Exception as error:  # noqa: BLE001 - Ray would never answer the call.
            self._note_failure(error)
            some = self._chance.sample(list(candidates), min(2, len(candidates)))
            return Ranked([some, list(candidates)], None)
        by_pod, place = self._by_pod, decision.place
        ranks, costs = decision.view.ranks, decision.costs
        chosen = by_pod[ranks[place][0]]
        best = nsmallest(MOST_FALLBACKS + 1, range(len(ranks)), key=costs.__getitem__)
        others = [by_pod[ranks[other][0]] for other in best if other != place]
        return Ranked([[chosen], others[:MOST_FALLBACKS], list(candidates)], decision)

    async def _decide(self, call: HandleCall, candidates: Sequence[ReplicaT]) -> Decision:
        request = call.request or await self._read(call)
        if self._given is not candidates:  # Not before this: others are asked about meanwhile.
            self._given = candidates
            self._by_pod = {PodId(each.replica_id.unique_id): each for each in candidates}
            given = self._by_pod.keys()
            self._pods = None if given == self.replicas.pods else frozenset(given)
        now = self._clock()
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._calls.sweep(self.replicas.load, now)
        call.name = call.name or self._calls.new_name(call.call_id)
        return self._book(call, request, None if self._pods is None else OfPods(self._pods))

    async def _read(self, call: HandleCall) -> Request:
        model = self._options.model
        prompt, num_tokens = await read_prompt(call.args, call.kwargs, self.reader, model)
        self._counts[f"tokens_{prompt.why_no_tokens or 'known'}"] += 1
        call.num_tokens, call.priority = num_tokens, prompt.priority
        call.session = call.session or prompt.session
        call.request = Request(
            model=model,
            token_ids=() if prompt.token_ids is None else prompt.token_ids,
            lora=call.adapter,
            cache_salt=prompt.cache_salt,
            extra_key=prompt.extra_key,
        )
        return call.request

    def _book(self, call: HandleCall, request: Request, candidates: OfPods | None) -> Decision:
        now = self._clock()
        decision = self.router.pick(
            call.name,
            request,
            now=now,
            candidates=candidates,
            session=call.session,
            priority=call.priority,
            num_tokens=call.num_tokens,
        )
        self._calls.book(call.name, call.call_id, decision, now)
        return decision

    def _note_failure(self, error: Exception) -> None:
        self._counts["failed_choices"] += 1
        kind = type(error).__name__
        if kind not in self._failures:  # Once per kind: a log is no counter.
            self._failures.add(kind)
            _LOGGER.warning("no choice, so chance decides: %s: %s", kind, one_line(str(error)))

    # ---- what an operator sees -------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return what has been counted, and how many replicas and calls there are now."""
        return {
            **self.router.counts(),
            **self._counts,
            **{f"replicas_{kind}": num for kind, num in self.replicas.counts().items()},
            "in_flight": len(self._calls),
        }

    def check_integrity(self) -> None:
        """Assert that calls and bookings agree. For tests."""
        self._calls.check_integrity()
        self.router.check_integrity()
