"""Endpoints of Kubernetes become pods: they are registered, drained and removed.

Invariant: what was known last counts until the API server says something else. A failure says
nothing about anybody. An endpoint is a pod from when it is ready the first time until no object
has it; in between, it gets no new requests while an object says that it is not ready or
terminates. If less than half of the ready ones are left at once, the others stay for `hold_s`:
such a list may be a lie, since a pod that ends terminates before it vanishes.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from kvbraid.errors import counted, one_line
from kvbraid.ids import PodId
from kvbraid.service.config import Discovery, FleetConfig, KubernetesEntry, PodConfig
from kvbraid.service.found_pods import FoundPods
from kvbraid.service.kubernetes.api_server import WATCH_S, ApiServer, ApiSource, Change
from kvbraid.service.kubernetes.objects import (
    BadObjectError,
    EndpointSet,
    FoundEndpoint,
    NoAnswerError,
)
from kvbraid.service.kubernetes.sources import source_of
from kvbraid.service.pod_checks import pod_at, pod_id
from kvbraid.service.registry import Service

MOST_ENDPOINTS: Final = 16384
"""Of all objects of one table."""

_CHANCE: Final = Random()  # noqa: S311  No secret. Programs may have seeded the global one.

RETRY_S: Final = 0.5
"""Seconds of the first pause. Each further pause is twice as long, and half of each is random."""

RETRY_MAX_S: Final = 30.0
"""The longest pause."""

CALM_S: Final = 10.0
"""After a watch that has lasted so long, the next pause is the first again."""

_NAMED: Final = 8  # Of many that are wrong or refused, in one watch.
_LOGGER: Final = logging.getLogger("kvbraid.kubernetes")


class FollowedTable:
    """What one table finds, and the pods that it stands for; one thread uses it."""

    def __init__(
        self,
        watched: Discovery[KubernetesEntry],
        service: Service,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watched = watched
        self._service = service
        self._counts = service.watched
        self._pods = FoundPods(service, _LOGGER)
        self._clock = clock
        entry = watched.entry
        self._name = entry.service or entry.selector or entry.pods or entry.pool
        self._namespace = entry.namespace or ""
        self._source: ApiSource | None = None
        self._found: dict[str, EndpointSet] = {}
        self._num_endpoints = 0
        self._version = ""
        self._applied: dict[PodId, FoundEndpoint] = {}
        # Tried again after a watch, or as they change.
        self._failed: dict[PodId, FoundEndpoint] = {}
        self._refused: frozenset[str] = frozenset()
        self._num_bad = 0
        self._held_since: float | None = None
        self._pause_s = 0.0

    def run(self, is_over: threading.Event) -> None:
        """Follow until it is over."""
        while not is_over.is_set():
            began = self._clock()
            try:
                self.ask()
            except NoAnswerError as error:
                self._fail(error.why, str(error))
            except OSError as error:
                self._fail("failed", str(error))
            except Exception:  # The next answer may be a better one.
                _LOGGER.exception("%s could not be followed", self._name)
            is_calm = self._clock() - began >= CALM_S
            self._pause_s = 0.0 if is_calm else min(2 * self._pause_s or RETRY_S, RETRY_MAX_S)
            is_over.wait(self._pause_s * _CHANCE.uniform(0.5, 1))

    def ask(self) -> None:
        """List the objects if that must be, and follow their changes for one watch.

        Raises:
            NoAnswerError: The API server gave no answer that can be used.
            OSError: A file of the table cannot be read.
        """
        with contextlib.closing(ApiServer(self._watched.entry)) as server:
            self._namespace = server.namespace
            self._num_bad = 0
            source = source_of(self._watched.entry, server)
            if source != self._source:
                self._source, self._version = source, ""
            if not self._version:
                version, objects = server.read_all(source)
                self._take_list(objects)
                self._version = version
                self._counts["listed"] += 1
            is_held = self._held_since is not None
            for change in server.watch(source, self._version, self._watch_s()):
                self._take(change)
                if not is_held and self._held_since is not None:
                    return  # The next watch ends in time.
            self._counts["watched"] += 1
        self._failed.clear()
        self._apply()

    def check_integrity(self) -> None:
        """Assert what holds after each step."""
        assert self._num_endpoints == sum(len(each.endpoints) for each in self._found.values())
        assert self._num_endpoints <= MOST_ENDPOINTS
        assert self._applied.keys() == self._pods.pods.keys()
        assert self._refused.isdisjoint(self._applied)

    def _watch_s(self) -> float:
        if self._held_since is None:
            return WATCH_S
        left = self._held_since + self._watched.entry.hold_s - self._clock()
        return min(max(left, 0.0) + 1, WATCH_S)

    def _fail(self, why: str, text: str) -> None:
        if why not in {"failed", "slow"}:
            self._version = ""
        self._counts[why] += 1
        told = one_line(text)
        _LOGGER.warning("%s: nothing is changed: %s: %s", self._name, why, told)

    def _take_list(self, listed: list[EndpointSet | BadObjectError]) -> None:
        before = self._found
        self._found, self._num_endpoints = {}, 0
        for each in listed:
            if isinstance(each, EndpointSet):
                self._keep(each)
                continue
            self._note_bad(each)
            if each.name in before:  # As it was known last.
                self._keep(before[each.name])
        self._apply()

    def _take(self, change: Change) -> None:
        if change.bad is not None:
            self._note_bad(change.bad)
        elif change.found is not None:
            self._keep(change.found)
        elif change.gone:
            self._drop(change.gone)
        self._version = change.version or self._version
        self._apply()

    def _keep(self, found: EndpointSet) -> None:
        old = self._found.get(found.name)
        after = self._num_endpoints + len(found.endpoints) - (len(old.endpoints) if old else 0)
        if after > MOST_ENDPOINTS:
            text = f"{after} endpoints, {MOST_ENDPOINTS} count"
            self._note_bad(BadObjectError(found.name, text))
            return
        self._found[found.name] = found
        if not found.endpoints:
            del self._found[found.name]  # Names alone could be endlessly many.
        self._num_endpoints = after

    def _drop(self, name: str) -> None:
        if name in self._found:
            self._num_endpoints -= len(self._found.pop(name).endpoints)

    def _note_bad(self, error: BadObjectError) -> None:
        self._counts["bad_object"] += 1
        self._num_bad += 1
        if self._num_bad > _NAMED:
            return
        told = one_line(error.name)
        _LOGGER.warning("%s: object %s stays as it was: %s", self._name, told, error)

    def _wanted(self) -> dict[str, FoundEndpoint]:
        """Return each pod once: at the first of its addresses, ready if every object says so."""
        wanted: dict[str, FoundEndpoint] = {}
        for each in self._found.values():
            for endpoint in each.endpoints:
                other = wanted.get(endpoint.name, endpoint)
                is_ready = endpoint.is_ready and other.is_ready
                wanted[endpoint.name] = min(endpoint, other)._replace(is_ready=is_ready)
        return wanted

    def _apply(self) -> None:
        """Register, drain and remove pods, as the objects say it."""
        named = {self._id(name): each for name, each in self._wanted().items()}
        wanted = {pod: each for pod, each in named.items() if self._service.has(pod)}
        pods = self._pods.pods
        gone = [pod for pod in pods if pod not in wanted]
        ready = {pod for pod, config in pods.items() if not config.serving.drain}
        if self._is_held(len(wanted), len(ready)):
            gone = [pod for pod in gone if pod not in ready]
        for pod in gone:
            self._pods.delete(pod)
            del self._applied[pod]
        self._failed = {pod: each for pod, each in self._failed.items() if pod in wanted}
        refused = [pod for pod in sorted(wanted) if not self._put(pod, wanted[pod])]
        self._tell_refused(frozenset(refused))

    def _id(self, name: str) -> PodId:
        return PodId(f"{self._namespace}/{name}")

    def _is_held(self, num_found: int, num_ready: int) -> bool:
        """Whether ready pods stay although they are not found any more."""
        if 2 * num_found >= num_ready:
            self._held_since = None
            return False
        hold_s = self._watched.entry.hold_s
        if self._held_since is None:
            self._held_since = self._clock()
            told = f"{counted(num_found, 'endpoint')} left of {counted(num_ready, 'ready pod')}"
            _LOGGER.warning("%s: %s; all of them stay for %g s", self._name, told, hold_s)
            self._counts["held"] += 1
        return self._clock() - self._held_since < hold_s

    def _put(self, pod: PodId, endpoint: FoundEndpoint) -> bool:
        """Register or change a pod; return False if there is no room for it."""
        if endpoint in (self._applied.get(pod), self._failed.get(pod)):
            return True
        is_known = pod in self._applied
        if not is_known and not endpoint.is_ready:
            return True
        if not is_known and pod not in self._service.pods and not self._has_room():
            return False

        def found() -> PodConfig:
            pod_id(pod)
            return pod_at(self._watched, endpoint.place, drains=not endpoint.is_ready)

        if self._pods.put(pod, found):
            self._applied[pod] = endpoint
        else:
            self._failed[pod] = endpoint
            self._counts["not_registered"] += 1
        return True

    def _has_room(self) -> bool:
        more = self._watched.entry.dp_size
        return self._service.num_ranks + more <= self._service.limits.pods

    def _tell_refused(self, refused: frozenset[str]) -> None:
        new = sorted(refused - self._refused)
        self._refused = refused
        if new:
            told = ", ".join(map(one_line, new[:_NAMED])) + (", ..." if new[_NAMED:] else "")
            limit = self._service.limits.pods
            what = counted(len(new), "endpoint")
            _LOGGER.warning("%s: limits.pods = %d, so %s: %s", self._name, limit, what, told)
            self._counts["too_many_pods"] += len(new)


@contextlib.contextmanager
def following_tables(config: FleetConfig, service: Service) -> Iterator[None]:
    """Follow the tables of a configuration, each on a thread of its own."""
    is_over = threading.Event()
    for watched in config.watched:
        table = FollowedTable(watched, service)
        threading.Thread(
            target=table.run, args=(is_over,), name="kvbraid-kubernetes", daemon=True
        ).start()
    try:
        yield
    finally:
        is_over.set()  # Nobody waits for an answer that is under way.
