"""Host names to addresses, away from every thread that carries messages.

ZeroMQ would look names up in its only I/O thread, where a slow name delays every connection. So
ZeroMQ gets only addresses. Invariant: `look_up` never waits. Each name is looked up on a thread of
its own, at most once at a time: there are never more such threads than names.
"""

import ipaddress
import socket
import threading
from typing import Final

from kvbraid.errors import ServiceError

FRESH_S: Final = 5.0
"""How long an address is used without asking for it again."""

_FAILED_S: Final = 1.0  # Several feeds may wait for one name: each hears that it has no address.


class _LookUp:
    """One question; the thread that asks it sets `address` or `error`, then `is_done`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.address = ""
        self.error = ""
        self.done_at: float | None = None
        self.is_done = False
        threading.Thread(target=self._ask, name="kvbraid-name", daemon=True).start()

    def _ask(self) -> None:
        try:
            # IPv4 only, like ZeroMQ's own look-up.
            found = socket.getaddrinfo(self.host, None, socket.AF_INET, socket.SOCK_STREAM)
            self.address = str(found[0][4][0])
        except (OSError, UnicodeError) as error:
            self.error = str(error)
        finally:
            self.is_done = True


class Names:
    """The addresses of names, as far as they are known. One thread uses it."""

    def __init__(self) -> None:
        self._asked: dict[str, _LookUp] = {}

    def locate(self, endpoint: str, now: float) -> str | None:
        """Return an endpoint with its host as an address; None: not known yet, ask again soon.

        Endpoints other than tcp, and hosts that are addresses already, are returned unchanged.

        Raises:
            ServiceError: The name has no address; it is asked for again a second later.
        """
        host, port = named_host(endpoint)
        if host is None:
            return endpoint
        address = self._look_up(host, now)
        return None if address is None else f"tcp://{address}:{port}"

    def _look_up(self, host: str, now: float) -> str | None:
        asked = self._asked.get(host)
        if asked is not None and asked.is_done:
            if asked.done_at is None:
                asked.done_at = now
            age_s = now - asked.done_at
            if asked.error and age_s < _FAILED_S:
                raise ServiceError(f"host name {host!r} has no address: {asked.error}")
            if not asked.error and age_s < FRESH_S:
                return asked.address
            asked = None
        if asked is None:
            self._asked[host] = _LookUp(host)
        return None


def named_host(endpoint: str) -> tuple[str | None, str]:
    """Return host and port of a tcp endpoint; the host is None if it is an address."""
    if not endpoint.startswith("tcp://"):
        return None, ""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return (None if host.startswith("[") else host), port
    return None, port
