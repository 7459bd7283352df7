"""A fleet under a policy, on a clock of its own: the real router, index and caches, no model.

    request --> Router.pick --> line of a pod --> prefill --> first token --> answer
                    ^                                |
                    '---- FleetIndex <--- delay_s ---'  messages, some of them lost

A run is a function of its arguments: all chance comes from the seed, and the chance of arrivals,
of losses and of the router is apart, so policies meet the same requests at the same times.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Final, NamedTuple

from kvbraid.cache import Interval
from kvbraid.errors import UnknownError
from kvbraid.fleet import FleetIndex, IndexOptions, Request
from kvbraid.fleet.index import SECRET_BYTES
from kvbraid.ids import PodId, PodState
from kvbraid.policy import (
    BASELINES,
    CostRule,
    Decision,
    Router,
    RouterOptions,
    RoutingPolicy,
    Seconds,
)
from kvbraid.reading import POSITIVE, Rule, check, whole
from kvbraid.sim.routing.arrivals import Arrivals
from kvbraid.sim.routing.clock import Clock
from kvbraid.sim.routing.pod import MODEL, Prefill, Sent, SimulatedFleet, SimulatedPod
from kvbraid.sim.routing.results import Result, Served, result_of
from kvbraid.sim.routing.workloads import Workload
from kvbraid.sim.traces.simulation import Progress

POLICIES: Final[Mapping[str, Callable[[], RoutingPolicy]]] = {CostRule.name: CostRule, **BASELINES}
"""Every policy by its name: the rule of kvbraid, and the baselines."""

_PERIOD: Final = Rule(lambda value: value > 0, "seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplicas:
    """How many routers there are, of which chance gives each request one.

    Every `every_s` seconds each says what it has booked, and `delay_s` later the others know it;
    `inf`: they book apart. With `promises` they also tell each other of each request, as fast.
    """

    num: int = 1
    every_s: float = 0.1
    delay_s: float = 0.001
    promises: bool = True

    def __post_init__(self) -> None:
        """Refuse what there cannot be."""
        check("num", self.num, POSITIVE)
        check("every_s", self.every_s, _PERIOD)

    @property
    def shares(self) -> bool:
        """Whether anything is said to anybody."""
        return self.num > 1 and isfinite(self.every_s)


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A policy, and whether the router counts what is in flight, or looks at events alone.

    `make` makes the policy anew for each run, because some remember. A policy that has a method
    `chosen` is told of each decision before the next one. `seconds` is what the router takes for
    those of a pod; None: what they are. With `fits` it finds out. `replicas` are the routers that
    follow it.
    """

    name: str
    make: Callable[[], RoutingPolicy]
    in_flight: bool = True
    seconds: Seconds | None = None
    fits: bool = False
    replicas: SimulatedReplicas = SimulatedReplicas()

    @classmethod
    def named(cls, name: str, *, in_flight: bool = True) -> "RoutingRule":
        """Return a policy by its name.

        Raises:
            UnknownError: There is none; the message lists all of them.
        """
        if name not in POLICIES:
            msg = f"policy {name!r} is not known; expected one of {', '.join(POLICIES)}"
            raise UnknownError(msg)
        return cls(name, POLICIES[name], in_flight)


class _Replica(NamedTuple):
    """One router, and the index that it asks."""

    known: FleetIndex
    router: Router


class _Play:
    """One run, from the first request to the last answer."""

    def __init__(
        self,
        work: Workload,
        fleet: SimulatedFleet,
        rule: RoutingRule,
        seed: int,
    ) -> None:
        self._asks, self._fleet = work.asks, fleet
        self.clock = Clock()
        self.served: list[Served] = []
        self._chance = random.Random(f"losses {seed}")  # noqa: S311 - it guards nothing
        names = [PodId(f"pod-{number}") for number in range(fleet.num_pods)]
        self._pods = {name: SimulatedPod(name, fleet) for name in names}
        self._places = {name: place for place, name in enumerate(names)}
        self._sharing = rule.replicas
        self._replicas = [
            _replica(names, fleet, rule, f"{seed}" if number == 0 else f"{seed} of {number}")
            for number in range(rule.replicas.num)
        ]
        self._entry = random.Random(f"entry {seed}")  # noqa: S311 - it guards nothing
        self._routers: dict[int, Router] = {}  # Of requests without an answer.
        self._num_answered = 0

    def go(self, arrivals: Arrivals, seed: int, progress: Progress | None) -> None:
        """Play everything."""
        self._progress = progress
        self._note_answer = arrivals.begin(self._asks, self.send, self.clock, seed)
        if self._sharing.shares:
            for number in range(len(self._replicas)):
                phase = self._sharing.every_s * number / len(self._replicas)
                self.clock.at(phase, partial(self._share, number))
        self.clock.run()

    def send(self, number: int, now: float) -> None:
        """Let the router choose a pod, and put the request into its line."""
        tokens = self._asks[number].prompt()
        request = Request(model=MODEL, token_ids=tokens)
        router = self._routers[number] = self._entry.choice(self._replicas).router
        decision = router.pick(str(number), request, now=now)
        self._promise(decision, router, now)
        pod = self._pods[decision.rank[0]]
        sent = Sent(
            number=number,
            tokens=tokens,
            came=now,
            expected=decision.view.resumable[decision.place],
            lower=decision.lower,
            upper=decision.upper,
            is_settled=pod.is_settled,
        )
        pod.line.append(sent)
        if not pod.is_busy:
            self._begin(pod, now)

    def _begin(self, pod: SimulatedPod, now: float) -> None:
        """Begin with the prompt in front, if there is one."""
        pod.is_busy = bool(pod.line)
        if not pod.line:
            return
        sent = pod.line.popleft()
        prefill, seconds = pod.prefill(sent.tokens), self._fleet.pace.prefill
        size = len(sent.tokens), prefill.cached
        busy_s = seconds.prefill(*size) + seconds.decoding(*size, pod.decoding)
        self.served.append(
            Served(
                number=sent.number,
                pod=self._places[pod.name],
                came=sent.came,
                began=now,
                busy_s=busy_s,
                num_tokens=len(sent.tokens),
                cached=prefill.cached,
                expected=sent.expected,
                lower=sent.lower,
                upper=sent.upper,
                is_settled=sent.is_settled,
            )
        )
        self.clock.at(now + busy_s, partial(self._first_token, pod, sent, prefill))

    def _first_token(self, pod: SimulatedPod, sent: Sent, prefill: Prefill, now: float) -> None:
        self._routers[sent.number].first_token(str(sent.number), now=now)
        self.clock.at(now + self._fleet.delay_s, partial(self._tell, pod, prefill.messages))
        pod.decoding += 1
        outputs = self._asks[sent.number].num_outputs
        took = self._fleet.pace.answer(outputs, len(sent.tokens), pod.decoding)
        self.clock.at(now + took, partial(self._answered, pod, sent.number, prefill.cached))
        self._begin(pod, now)

    def _answered(self, pod: SimulatedPod, number: int, cached: int, now: float) -> None:
        pod.decoding -= 1
        self._routers.pop(number).end(str(number), now=now, cached_tokens=cached)
        self._num_answered += 1
        self._note_answer(number, now)
        if self._progress is not None:
            self._progress(len(self.served))

    def _tell(self, pod: SimulatedPod, messages: list[bytes], now: float) -> None:
        """Bring messages to the index. A lost one shows when the next one comes."""
        del now
        for message in messages:
            if self._fleet.loss and self._chance.random() < self._fleet.loss:
                pod.has_gap = True
                continue
            if pod.has_gap:
                pod.has_gap = False
                for index, _ in self._replicas:
                    index.lose(pod.name)
                    index.set_state(pod.name, PodState.DEGRADED, reason="a message was lost")
            for index, _ in self._replicas:
                index.apply(pod.name, message)
        pod.num_untold -= len(messages)

    def _promise(self, decision: Decision, router: Router, now: float) -> None:
        """Tell the other routers of a request that one has sent."""
        if not self._sharing.shares or not self._sharing.promises:
            return
        rank, request = decision.rank, decision.view.request
        lasts_s = router.promised_s(decision)

        def hear(now: float) -> None:
            for _, other in self._replicas:
                if other is not router:
                    other.promise(rank, request, lasts_s=lasts_s, now=now)

        self.clock.at(now + self._sharing.delay_s, hear)

    def _share(self, number: int, now: float) -> None:
        """Tell the other replicas what one has booked, and do so again later."""
        loads = self._replicas[number].router.booked(now=now)

        def hear(now: float) -> None:
            for other, (_, router) in enumerate(self._replicas):
                if other != number:
                    router.merge(str(number), loads, now=now)

        self.clock.at(now + self._sharing.delay_s, hear)
        if self._num_answered < len(self._asks):
            self.clock.at(now + self._sharing.every_s, partial(self._share, number))


def _replica(
    names: Sequence[PodId], fleet: SimulatedFleet, rule: RoutingRule, seed: str
) -> _Replica:
    index = FleetIndex(IndexOptions(secret=bytes(SECRET_BYTES)))
    for name in names:
        index.register(name, model=MODEL, topology=fleet.model.topology, engine=fleet.engine())
        index.set_state(name, PodState.EXACT if fleet.loss < 1 else PodState.STALE)
    policy = rule.make()
    router = Router(
        index,
        policy,
        seconds={MODEL: rule.seconds or fleet.pace.prefill},
        options=RouterOptions(
            in_flight=rule.in_flight,
            sparse_windows=isinstance(fleet.retention, Interval),
            hold_s=float("inf"),
            stuck_s=float("inf"),
            fit=frozenset({MODEL} if rule.fits else ()),
        ),
        chance=random.Random(f"router {seed}"),  # noqa: S311 - it guards nothing
        note=getattr(policy, "chosen", None),
    )
    return _Replica(index, router)


def play(
    work: Workload,
    fleet: SimulatedFleet,
    arrivals: Arrivals,
    rule: RoutingRule,
    *,
    seed: int = 1,
    progress: Progress | None = None,
) -> list[Served]:
    """Play a workload on a fleet under a policy; return its requests in their order.

    Raises:
        TooLargeError: A pod's pool cannot hold a prompt.
    """
    run = _Play(work, fleet, rule, seed)
    run.go(arrivals, seed, progress)
    return sorted(run.served)


def simulate(
    work: Workload,
    fleet: SimulatedFleet,
    arrivals: Arrivals,
    rule: RoutingRule,
    *,
    seed: int = 1,
    progress: Progress | None = None,
) -> Result:
    """Play a workload as `play` does, and sum it up.

    Raises:
        TooLargeError: A pod's pool cannot hold a prompt.
        InvalidValueError: There are too few requests to count any.
    """
    check("number of requests", len(work.asks), whole(2))
    served = play(work, fleet, arrivals, rule, seed=seed, progress=progress)
    return result_of(served, fleet.num_pods, policy=rule.name, in_flight=rule.in_flight)
