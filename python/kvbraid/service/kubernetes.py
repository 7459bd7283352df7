"""Pods of Kubernetes: the endpoints of a service are registered, drained and removed.

Invariant: what was known last counts until the API server says something else. A failure says
nothing about anybody. An endpoint is a pod from when it is ready the first time until no slice has
it; in between, it gets no new requests while a slice says that it is not ready or terminates. If
no endpoint is left at all, those that were ready stay for `hold_s`: such a list may be a lie.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from kvbraid.errors import counted, one_line
from kvbraid.ids import PodId
from kvbraid.service.config import Discovery, FleetConfig, KubernetesEntry, PodConfig, pod_id
from kvbraid.service.endpoint_slices import (
    MOST_ENDPOINTS,
    WATCH_S,
    BadSliceError,
    Change,
    NoAnswerError,
    Slice,
    SliceEndpoint,
    SliceReader,
)
from kvbraid.service.found_pods import FoundPods
from kvbraid.service.registry import Service

RETRY_S: Final = 0.5
"""Seconds of the first pause. Each further pause is twice as long, and half of each is random."""

RETRY_MAX_S: Final = 30.0
"""The longest pause."""

CALM_S: Final = 10.0
"""After a watch that has lasted so long, the next pause is the first again."""

_NAMED: Final = 8  # Of many that are wrong or refused, in one watch.
_LOGGER: Final = logging.getLogger("kvbraid.kubernetes")


class FollowedSlices:
    """The slices of one table, and the pods that they stand for; one thread uses it."""

    def __init__(self, watched: Discovery[KubernetesEntry], service: Service) -> None:
        self._watched = watched
        self._service = service
        self._counts = service.watched
        self._pods = FoundPods(service, _LOGGER)
        self._name = watched.entry.service or watched.entry.selector
        self._namespace = watched.entry.namespace or ""
        self._slices: dict[str, Slice] = {}
        self._num_endpoints = 0
        self._version = ""
        self._applied: dict[PodId, SliceEndpoint] = {}
        self._failed: dict[
            PodId, SliceEndpoint
        ] = {}  # Tried again after a watch, or as they change.
        self._refused: frozenset[str] = frozenset()
        self._num_bad = 0
        self._empty_since: float | None = None
        self._pause_s = 0.0

    def run(self, is_over: threading.Event) -> None:
        """Follow until it is over."""
        while not is_over.is_set():
            began = time.monotonic()
            try:
                self.ask()
            except NoAnswerError as error:
                self._fail(error.why, str(error))
            except OSError as error:
                self._fail("failed", str(error))
            except Exception:  # The next answer may be a better one.
                _LOGGER.exception("%s could not be followed", self._name)
            is_calm = time.monotonic() - began >= CALM_S
            self._pause_s = 0.0 if is_calm else min(2 * self._pause_s or RETRY_S, RETRY_MAX_S)
            is_over.wait(self._pause_s * random.uniform(0.5, 1))  # noqa: S311  No secret.

    def ask(self) -> None:
        """List the slices if that must be, and follow their changes for one watch.

        Raises:
            NoAnswerError: The API server gave no answer that can be used.
            OSError: A file of the table cannot be read.
        """
        with contextlib.closing(SliceReader(self._watched.entry)) as reader:
            self._namespace = reader.namespace
            self._num_bad = 0
            if not self._version:
                version, slices = reader.read_all()
                self._take_list(slices)
                self._version = version
                self._counts["listed"] += 1
            is_held = self._empty_since is not None
            for change in reader.watch(self._version, self._watch_s()):
                self._take(change)
                if not is_held and self._empty_since is not None:
                    return  # The next watch ends in time.
            self._counts["watched"] += 1
        self._failed.clear()
        self._apply()

    def check_integrity(self) -> None:
        """Assert what holds after each step."""
        assert self._num_endpoints == sum(len(each.endpoints) for each in self._slices.values())
        assert self._num_endpoints <= MOST_ENDPOINTS
        assert self._applied.keys() == self._pods.pods.keys()
        assert self._refused.isdisjoint(self._applied)

    def _watch_s(self) -> float:
        if self._empty_since is None:
            return WATCH_S
        left = self._empty_since + self._watched.entry.hold_s - time.monotonic()
        return min(max(left, 0.0) + 1, WATCH_S)

    def _fail(self, why: str, text: str) -> None:
        if why not in {"failed", "slow"}:
            self._version = ""
        self._counts[why] += 1
        told = one_line(text)
        _LOGGER.warning("%s: nothing is changed: %s: %s", self._name, why, told)

    def _take_list(self, listed: list[Slice | BadSliceError]) -> None:
        before = self._slices
        self._slices, self._num_endpoints = {}, 0
        for each in listed:
            if isinstance(each, Slice):
                self._keep(each)
                continue
            self._note_bad(each)
            if each.name in before:  # As it was known last.
                self._keep(before[each.name])
        self._apply()

    def _take(self, change: Change) -> None:
        if change.bad is not None:
            self._note_bad(change.bad)
        elif change.slice is not None:
            self._keep(change.slice)
        elif change.gone:
            self._drop(change.gone)
        self._version = change.version or self._version
        self._apply()

    def _keep(self, found: Slice) -> None:
        old = self._slices.get(found.name)
        after = self._num_endpoints + len(found.endpoints) - (len(old.endpoints) if old else 0)
        if after > MOST_ENDPOINTS:
            text = f"{after} endpoints, {MOST_ENDPOINTS} count"
            self._note_bad(BadSliceError(found.name, text))
            return
        self._slices[found.name] = found
        if not found.endpoints:
            del self._slices[found.name]  # Names alone could be endlessly many.
        self._num_endpoints = after

    def _drop(self, name: str) -> None:
        if name in self._slices:
            self._num_endpoints -= len(self._slices.pop(name).endpoints)

    def _note_bad(self, error: BadSliceError) -> None:
        self._counts["bad_object"] += 1
        self._num_bad += 1
        if self._num_bad > _NAMED:
            return
        told = one_line(error.name)
        _LOGGER.warning("%s: slice %s stays as it was: %s", self._name, told, error)

    def _wanted(self) -> dict[str, SliceEndpoint]:
        """Return each pod once: at the first of its addresses, ready if every slice says so."""
        wanted: dict[str, SliceEndpoint] = {}
        for each in self._slices.values():
            for endpoint in each.endpoints:
                other = wanted.get(endpoint.name, endpoint)
                is_ready = endpoint.is_ready and other.is_ready
                wanted[endpoint.name] = min(endpoint, other)._replace(is_ready=is_ready)
        return wanted

    def _apply(self) -> None:
        """Register, drain and remove pods, as the slices say it."""
        wanted = {self._id(name): each for name, each in self._wanted().items()}
        pods = self._pods.pods
        gone = [pod for pod in pods if pod not in wanted]
        draining = [pod for pod in gone if pods[pod].serving.drain]
        if not wanted and len(draining) < len(gone) and self._is_held():
            gone = draining
        else:
            self._empty_since = None
        for pod in gone:
            self._pods.delete(pod)
            del self._applied[pod]
        self._failed = {pod: each for pod, each in self._failed.items() if pod in wanted}
        refused = [pod for pod in sorted(wanted) if not self._put(pod, wanted[pod])]
        self._tell_refused(frozenset(refused))

    def _id(self, name: str) -> PodId:
        return PodId(f"{self._namespace}/{name}")

    def _is_held(self) -> bool:
        """Whether pods stay although no endpoint is left."""
        if self._empty_since is None:
            self._empty_since = time.monotonic()
            hold_s = self._watched.entry.hold_s
            _LOGGER.warning("%s: no endpoint is left; pods stay for %g s", self._name, hold_s)
            self._counts["held"] += 1
        return time.monotonic() - self._empty_since < self._watched.entry.hold_s

    def _put(self, pod: PodId, endpoint: SliceEndpoint) -> bool:
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
            named, drains = dict(endpoint.ports), not endpoint.is_ready
            return self._watched.pod_at(endpoint.address, named, drains=drains)

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
def following_slices(config: FleetConfig, service: Service) -> Iterator[None]:
    """Follow the services of a configuration, each on a thread of its own."""
    is_over = threading.Event()
    for watched in config.watched:
        slices = FollowedSlices(watched, service)
        threading.Thread(
            target=slices.run, args=(is_over,), name="kvbraid-kubernetes", daemon=True
        ).start()
    try:
        yield
    finally:
        is_over.set()  # Nobody waits for an answer that is under way.
