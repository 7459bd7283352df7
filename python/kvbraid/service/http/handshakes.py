"""Connections over TLS, until their handshake is over.

Invariant: a connection in its handshake counts against the same limits as all others, as one that
waits for its client. It is given up after the time of a request, or when others need its place.
(A server of asyncio would wait for handshakes itself: without a limit, and each for a minute.)
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, MutableSet
from typing import Final

from kvbraid.service.http.connection import Connection
from kvbraid.service.http.connection_limits import ConnectionLimits, Waiter

_AT_A_TIME: Final = 64
"""Connections that are accepted in one turn."""

_SHUTDOWN_S: Final = 1.0
"""How long a client has to say that it has heard of the end."""

_REST_S: Final = 0.5
"""How long nothing is accepted after the system has refused to."""

_logger: Final = logging.getLogger(__name__)


class Handshakes:
    """Accepts connections and makes each a `Connection` once its handshake is over.

    `context` gives what the next handshake is made with.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        limits: ConnectionLimits,
        connections: MutableSet[Waiter],
        make: Callable[[], Connection],
    ) -> None:
        self.context = context
        self.limits = limits
        self.connections = connections
        self.make = make
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None

    def listen(self, listener: socket.socket) -> None:
        """Accept what comes there."""
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept nothing more; handshakes end as connections do."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_A_TIME):
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _logger.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(listener)
                self._loop.call_later(_REST_S, self._go_on)
                return
            client.setblocking(False)
            self._begin(client)

    def _go_on(self) -> None:
        if self._listener is not None:
            self.listen(self._listener)

    def _begin(self, client: socket.socket) -> None:
        handshake = _Handshake(client, self)
        self.connections.add(handshake)
        if self.limits.admit(self.connections):
            handshake.since = self._loop.time()
        else:  # Nobody could read why.
            self.limits.refused["too_many_connections"] += 1
            handshake.evict()


class _Handshake:
    """One handshake; `since` is when it has begun to wait for its client, once it may stay."""

    since: float | None = None

    def __init__(self, client: socket.socket, all_of_them: Handshakes) -> None:
        loop = asyncio.get_running_loop()
        self._all = all_of_them
        self._not_begun: socket.socket | None = client
        self._task = loop.create_task(self._shake(loop, client))

    async def _shake(self, loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
        self._not_begun, limits = None, self._all.limits
        try:
            await loop.connect_accepted_socket(
                self._make,
                client,
                ssl=self._all.context(),
                ssl_handshake_timeout=limits.limits.request_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError:
            limits.refused["tls_handshake"] += 1
        finally:
            self._all.connections.discard(self)

    def _make(self) -> Connection:
        connection = self._all.make()
        connection.handshake = self
        return connection

    def waiting_since(self) -> float | None:
        """When the wait for the client began."""
        return self.since

    def evict(self) -> None:
        """Close at once."""
        self._all.connections.discard(self)
        self._task.cancel()
        if self._not_begun is not None:  # Nobody else would close it.
            self._not_begun.close()

    def expire(self, now: float) -> None:
        """Its time limit is that of the handshake."""

    def shutdown(self) -> None:
        """Close at the server's end."""
        self.evict()
