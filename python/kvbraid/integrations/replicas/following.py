"""The replicas of a deployment, each a pod: what Ray says of them, applied to index, feed, router.

Invariant: a replica is registered with its events, without them, or, if even that is refused, not
at all; nothing that one says touches another. `follow` waits for the thread that reads events: for
the batch that it applies just now, which is cut into slices.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from kvbraid.errors import KvbraidError, one_line
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodId, PodState
from kvbraid.integrations.replicas.metadata import (
    ReplicaFacts,
    ReplicaLoad,
    ReplicaPod,
    read_load,
    read_pod,
    without_events,
)
from kvbraid.integrations.replicas.options import DeploymentOptions
from kvbraid.policy import Router, Standing
from kvbraid.service.config import Followed
from kvbraid.service.errors import as_refusal

_LOGGER: Final = logging.getLogger("kvbraid.ray")


class EventFeed(Protocol):
    """The part of `Subscriber` that is called here."""

    def add(self, pod: PodId, feed: Followed, /) -> None:
        """Follow a pod, from what it replays on."""

    def remove(self, pod: PodId, /) -> None:
        """Stop following a pod."""


class Replicas:
    """The running replicas of one deployment, as pods of an index.

    Attributes:
        pods: Those that can be chosen; never changed in place.
    """

    def __init__(
        self, index: FleetIndex, feed: EventFeed, router: Router, options: DeploymentOptions
    ) -> None:
        self.pods: frozenset[PodId] = frozenset()
        self._index = index
        self._feed = feed
        self._router = router
        self._options = options
        self._facts: dict[PodId, ReplicaFacts] = {}
        self._known: dict[PodId, ReplicaPod] = {}
        self._told: dict[PodId, str] = {}  # The last problem of each, so that it is logged once.
        self._loads: dict[PodId, ReplicaLoad] = {}

    def follow(self, running: Iterable[ReplicaFacts]) -> frozenset[PodId]:
        """Make these the replicas that there are; return those that are gone."""
        wanted = {facts.pod: facts for facts in running}
        gone = frozenset(self._facts.keys() - wanted.keys())
        for pod in gone:
            self._leave(pod)
            self._told.pop(pod, None)
        for pod, facts in wanted.items():
            if self._facts.get(pod) != facts:
                self._take(facts)
        self._facts = wanted
        self.pods = frozenset(self._known)
        return gone

    def load(self, pod: PodId) -> ReplicaLoad | None:
        """Return what a replica has said of its load last, if it says anything."""
        return self._loads.get(pod)

    def dp_size(self, pod: PodId) -> int:
        """Return how many ranks a replica has that can be chosen."""
        return self._known[pod].config.dp_size

    def counts(self) -> Counter[str]:
        """Return how many replicas there are by what is known of them."""
        kinds = Counter(known.knowledge for known in self._known.values())
        return Counter(
            events=kinds["events"],
            missing=kinds["missing"],
            malformed=kinds["malformed"],
            refused=len(self._facts) - len(self._known),
        )

    def _take(self, facts: ReplicaFacts) -> None:
        pod, read = facts.pod, read_pod(facts, self._options)
        problem = read.problem
        old = self._known.get(pod)
        if old is None or old.config != read.config:
            self._leave(pod)
            problem = self._enter(pod, read) or problem
        try:
            load = read_load(facts)
        except KvbraidError as error:
            load, problem = None, problem or str(error)
        if load is None:
            self._loads.pop(pod, None)
        else:
            self._loads[pod] = load
        self._tell(pod, problem)

    def _enter(self, pod: PodId, read: ReplicaPod) -> str:
        """Register a replica as well as possible; return what was refused."""
        try:
            self._register(pod, read)
            return ""
        except KvbraidError as error:
            refused = as_refusal(error).told()
        try:
            without = without_events(self._options)
            self._register(pod, ReplicaPod(without, "malformed", refused))
        except KvbraidError as error:
            return as_refusal(error).told()
        return refused

    def _register(self, pod: PodId, read: ReplicaPod) -> None:
        config = read.config
        self._index.register(
            pod,
            model=config.model,
            dp_size=config.dp_size,
            topology=config.topology,
            engine=config.engine,
            loras=config.loras,
        )
        if config.followed is None:
            for rank in range(config.dp_size):
                self._index.set_state(
                    pod, PodState.STALE, dp_rank=rank, reason=one_line(read.problem)
                )
        else:
            try:
                self._feed.add(pod, config.followed)
            except KvbraidError:
                self._index.remove(pod)
                raise
        serving = config.serving
        if serving.drain or serving.max_running is not None:
            standing = Standing(drains=serving.drain, max_running=serving.max_running)
            self._router.set_standing(pod, standing)
        self._known[pod] = read

    def _leave(self, pod: PodId) -> None:
        known = self._known.pop(pod, None)
        self._loads.pop(pod, None)
        if known is None:
            return
        if known.config.followed is not None:
            try:
                self._feed.remove(pod)
            except KvbraidError as error:  # It is not running, so nothing comes.
                self._tell(pod, as_refusal(error).told())
        self._index.remove(pod)
        self._router.forget(pod)

    def _tell(self, pod: PodId, problem: str) -> None:
        if problem and self._told.get(pod) != problem:
            _LOGGER.warning("replica %s: %s", pod, one_line(problem))
        self._told[pod] = problem
