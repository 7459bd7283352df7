"""The pods of a fleet.toml that is written anew while a server runs.

Invariant: a file that cannot be read, or is refused, changes nothing. Pods that were registered
otherwise stay as they are. All other tables count at the next start, and a line says which of them
have changed.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, PodConfig, read_fleet_file
from kvbraid.service.errors import as_refusal
from kvbraid.service.registry import Service

LOOK_S: Final = 2.0
"""So often the file is looked at, in seconds."""

_OTHERS: Final = {
    "written": "server",
    "limits": "limits",
    "index": "index",
    "routing": "router",
    "forwarding": "gateway",
    "tokens": "tokens",
    "console": "console",
    "discovered": "discover",
}
"""What a configuration has besides pods, and the table that it comes from."""

_LOGGER: Final = logging.getLogger("kvbraid.config")


class FollowedFile:
    """A fleet.toml, and what of it counts."""

    def __init__(self, config: FleetConfig, service: Service) -> None:
        assert config.path is not None
        self._path = config.path
        self._service = service
        self._pods: dict[PodId, PodConfig] = dict(config.pods)
        self._known = config
        self._stamp = _stamp(self._path)

    def look(self) -> None:
        """Apply the file's pods if it was written since."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            config = read_fleet_file(self._path)
        except InvalidValueError as error:
            _LOGGER.warning("nothing is changed: %s", error)
            return
        self._apply(config)

    def _apply(self, config: FleetConfig) -> None:
        for pod in [pod for pod in self._pods if pod not in config.pods]:
            self._try(pod, partial(self._service.delete, pod))
            del self._pods[pod]
        for pod, entry in config.pods.items():
            if self._pods.get(pod) == entry:
                continue
            if self._try(pod, partial(self._service.put, pod, entry)):
                self._pods[pod] = entry
        changed = [t for name, t in _OTHERS.items() if _differ(name, config, self._known)]
        self._known = config
        if changed:
            _LOGGER.warning("changes of %s count at the next start", ", ".join(changed))

    def _try(self, pod: PodId, change: Callable[[], object]) -> bool:
        try:
            change()
        except KvbraidError as error:
            _LOGGER.warning("pod %s stays as it is: %s", pod, as_refusal(error).told())
            return False
        return True


def _differ(name: str, one: FleetConfig, other: FleetConfig) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written or replaced; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@contextlib.contextmanager
def following_file(config: FleetConfig, service: Service) -> Iterator[None]:
    """Look at the file of a configuration from time to time, on a thread of its own."""
    if config.path is None:
        yield
        return
    file, over = FollowedFile(config, service), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            try:
                file.look()
            except Exception:  # The next writing may be a better one.
                _LOGGER.exception("the configuration could not be followed")

    thread = threading.Thread(target=watch, name="kvbraid-config")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
