"""A fleet.toml that is written anew while a server runs, or that SIGHUP says to read again.

Invariant: a file is taken whole or not at all. If it cannot be read, or a pod of it is refused,
everything stays as it is. Pods that were registered otherwise stay, too. Keys that count at the
next start are named in the log.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from kvbraid.errors import InvalidValueError, KvbraidError, counted
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, PodConfig
from kvbraid.service.errors import as_refusal
from kvbraid.service.fleet_file import override, read_fleet_file, stamp_of
from kvbraid.service.in_force import merged
from kvbraid.service.logs import configure
from kvbraid.service.registry import Service

LOOK_S: Final = 2.0
"""So often the file is looked at, in seconds."""

_LOGGER: Final = logging.getLogger("kvbraid.config")

Take: TypeAlias = Callable[[FleetConfig], None]


class FollowedFile:
    """The file of a running server's configuration; one thread at a time uses it.

    `take` is called with what counts from now on, and cannot fail.
    """

    def __init__(self, service: Service, take: Take = lambda _: None) -> None:
        self._service = service
        self._in_force = service.in_force
        self._take = take
        config = self._in_force.config
        self._pods: Mapping[PodId, PodConfig] = config.pods
        self._stamps = dict(config.stamps)

    def look(self, *, again: bool = False) -> None:
        """Take the file if it was written since, or in any case."""
        path = self._in_force.config.path
        if path is None:
            return
        stamps = {each: stamp_of(each) for each in self._stamps}
        if stamps == self._stamps and not again:
            return
        self._stamps = stamps
        try:
            new = override(read_fleet_file(path), self._in_force.config.flags)
            self._change_pods(new)
            self._stamps = dict(new.stamps)
        except KvbraidError as error:
            told = str(error) if isinstance(error, InvalidValueError) else as_refusal(error).told()
            self._in_force.refuse(told)
            _LOGGER.warning("nothing is changed: %s", told)
            return
        self._change(new)

    def _change_pods(self, new: FleetConfig) -> None:
        gone = [pod for pod in self._pods if pod not in new.pods]
        wanted = {pod: c for pod, c in new.pods.items() if self._pods.get(pod) != c}
        self._service.change(wanted, gone)
        self._pods = new.pods
        told = f"{counted(len(wanted), 'pod')} changed, {len(gone)} removed"
        _LOGGER.info("%s counts now: %s", new.path, told)

    def _change(self, new: FleetConfig) -> None:
        old, before = self._in_force.config, self._in_force.waiting
        config, waiting = merged(old, new)
        server = config.server
        if (server.log_level, server.log_format) != (old.server.log_level, old.server.log_format):
            configure(server.log_level, server.log_format)
        if config.routing != old.routing:
            self._service.picking.route_by(config.routing)
        self._service.limits = config.limits
        self._take(config)
        self._in_force.take(config, waiting)
        if waiting and tuple(waiting) != before:
            _LOGGER.warning("changes of %s count at the next start", ", ".join(waiting))


@contextlib.contextmanager
def following_file(service: Service, take: Take) -> Iterator[Callable[[], None]]:
    """Look at the file of a configuration from time to time, on a thread of its own.

    Yields what makes the thread read it now; also a signal may call that.
    """
    file = FollowedFile(service, take)
    asked: SimpleQueue[bool] = SimpleQueue()  # Its `put` may be interrupted by another one.

    def watch() -> None:
        goes_on = True
        while goes_on:
            is_asked = False
            with contextlib.suppress(Empty):
                goes_on = is_asked = asked.get(timeout=LOOK_S)
            if goes_on:
                look(again=is_asked)

    def look(*, again: bool) -> None:
        try:
            file.look(again=again)
        except Exception:  # The next writing may be a better one.
            _LOGGER.exception("the configuration could not be followed")

    thread = threading.Thread(target=watch, name="kvbraid-config")
    thread.start()
    try:
        yield lambda: asked.put(True)
    finally:
        asked.put(False)
        thread.join()
