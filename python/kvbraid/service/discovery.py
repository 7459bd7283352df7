"""Pods that a name stands for: the addresses of a headless service, looked up from time to time.

Invariant: an address is a pod from its first answer on, until it was missing in several answers in
a row. A look-up that fails says nothing about anybody, so it changes nothing. Pods that were
registered otherwise stay as they are.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from kvbraid.errors import one_line
from kvbraid.ids import PodId
from kvbraid.service.config import DiscoverEntry, Discovery, FleetConfig
from kvbraid.service.found_pods import FoundPods
from kvbraid.service.pod_checks import PodPlace, pod_at
from kvbraid.service.registry import Service

MOST_ADDRESSES: Final = 1024
"""Of one name; further ones are left out, and the log says so."""

_NOBODY: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""A headless service without pods looks like a name that does not exist."""

_LOGGER: Final = logging.getLogger("kvbraid.discovery")

LookUp: TypeAlias = Callable[[str], Sequence[str]]


def resolve(name: str) -> Sequence[str]:
    """Return the addresses of a name, in order; it may block for as long as the resolver waits.

    Raises:
        OSError: The look-up failed.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NOBODY:
            return ()
        raise
    return sorted({str(address[0]) for *_, address in found})


class FollowedName:
    """One name, and the pods that it stands for."""

    def __init__(
        self,
        discovery: Discovery[DiscoverEntry],
        service: Service,
        look_up: LookUp = resolve,
    ) -> None:
        self._discovery = discovery
        self._service = service
        self._pods = FoundPods(service, _LOGGER)
        self._look_up = look_up
        self._missing: dict[str, int] = {}  # Addresses that are pods: answers without them.

    def look(self) -> None:
        """Look the name up once, and register and remove pods accordingly."""
        name = self._discovery.entry.name
        try:
            found = self._look_up(name)
        except (OSError, UnicodeError) as error:
            _LOGGER.warning("%s: nothing is changed: %s", name, one_line(str(error)))
            return
        found = [address for address in found if self._service.has(self._pod(address))]
        if len(found) > MOST_ADDRESSES:
            _LOGGER.warning("%s: %d addresses, %d count", name, len(found), MOST_ADDRESSES)
        now = found[:MOST_ADDRESSES]
        for address in now:
            if address in self._missing or self._add(address):
                self._missing[address] = 0
        for address in self._missing.keys() - set(now):
            self._missing[address] += 1
            if self._missing[address] >= self._discovery.entry.misses:
                self._pods.delete(self._pod(address))
                del self._missing[address]

    def _pod(self, address: str) -> PodId:
        return PodId(f"{self._discovery.entry.name}/{address}")

    def _add(self, address: str) -> bool:
        place = PodPlace(address)
        return self._pods.put(self._pod(address), lambda: pod_at(self._discovery, place))


@contextlib.contextmanager
def following_names(config: FleetConfig, service: Service) -> Iterator[None]:
    """Look up the names of a configuration from time to time, each on a thread of its own."""
    over = threading.Event()

    def follow(name: FollowedName, every_s: float) -> None:
        while not over.is_set():
            try:
                name.look()
            except Exception:  # The next answer may be a better one.
                _LOGGER.exception("a name could not be followed")
            over.wait(every_s)

    for discovery in config.discovered:
        name = FollowedName(discovery, service)
        arguments = (name, discovery.entry.every_s)
        threading.Thread(target=follow, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        over.set()  # Nobody waits for a look-up that still blocks.
