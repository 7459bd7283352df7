"""Run the application: a socket, uvicorn on uvloop and httptools, and an orderly end.

After SIGTERM or SIGINT the server stops accepting, lets requests in flight finish, closes idle
connections and returns. Requests still in flight after END_S are cancelled, and the process exits
with 0.
"""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn

from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.extras import require
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, PodConfig, ServerOptions
from kvbraid.service.discovery import following_names
from kvbraid.service.errors import as_refusal
from kvbraid.service.event_sources import asking_pods
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.http.connection import Connection
from kvbraid.service.http.handshakes import Handshakes
from kvbraid.service.http.protocol import ScoreProtocol
from kvbraid.service.kubernetes import following_tables
from kvbraid.service.registry import Service
from kvbraid.service.reloading import following_file
from kvbraid.service.shared.log_reader import reading_log
from kvbraid.service.shared.sharing import sharing
from kvbraid.service.snapshots import saving
from kvbraid.service.supervision import Supervisor
from kvbraid.service.tls import Tls

END_S: Final = 3
"""Seconds that requests in flight have left after a signal."""

_BACKLOG: Final = 2048
_TICKS_PER_SWEEP: Final = 5


@contextlib.contextmanager
def _making_spans(config: FleetConfig, service: Service) -> Iterator[None]:
    """Make spans of decisions, if the configuration asks for that."""
    if not config.server.otel:
        yield
        return
    try:
        require("otel", "server.otel")
    except ModuleNotFoundError as error:
        raise InvalidValueError(str(error)) from None
    from kvbraid.service.tracing import DecisionSpans

    spans = service.picking.spans = DecisionSpans(service.picking.num_spans)
    try:
        yield
    finally:
        service.picking.spans = None
        spans.close()


def _application(service: Service, access: Access) -> Application:
    return Application(service, access=access)


def run_server(
    config: FleetConfig,
    service: Service,
    *,
    announce: Callable[[str], None],
    application: Callable[[Service, Access], Application] = _application,
    end_s: int = END_S,
) -> None:
    """Register the configured pods and serve until a signal; must run in the main thread.

    Args:
        config: Where to listen, who may register, and which pods to begin with.
        service: Index and subscriber; the subscriber is started and closed here.
        announce: Called once with the base URL when connections are accepted.
        application: Makes the application of the service.
        end_s: Seconds that requests in flight have left after a signal.

    Raises:
        InvalidValueError: The address cannot be listened on.
        KvbraidError: A configured pod was refused.
    """
    options = config.server
    access = Access.of(options, config.keys)
    with _listen(options) as listener:
        url = _url(listener, "http" if config.tls is None else "https")
        app = application(service, access)
        app.connection_limits.leave_descriptors()
        server = _Server(app, announce=lambda: announce(url), end_s=end_s)
        server.tls = config.tls

        def take(changed: FleetConfig) -> None:
            app.connection_limits.change(changed.limits)
            access.change(changed.server, changed.keys)
            server.tls = changed.tls

        with following(service, config, take) as server.on_hangup:
            server.run(sockets=[listener])


@contextlib.contextmanager
def following(
    service: Service, config: FleetConfig, take: Callable[[FleetConfig], None] = lambda _: None
) -> Iterator[Callable[[], None]]:
    """Start the subscriber, register the configured pods; close the subscriber at the end.

    `take` is called with each later configuration; what is yielded has the file read now.
    """
    service.feed.start()
    try:
        for pod, pod_config in config.pods.items():
            if service.has(pod):
                _put(service, pod, pod_config)
        with (
            following_file(service, take) as reread,
            following_names(config, service),
            following_tables(config, service),
            asking_pods(service),
            _making_spans(config, service),
            sharing(config, service),
            reading_log(config, service.log),
            # Its end comes first, as long as nothing else has ended.
            saving(service.snapshots, service.feed, lambda: service.followed),
        ):
            yield reread
    finally:
        service.feed.close()


def _put(service: Service, pod: PodId, config: PodConfig) -> None:
    try:
        service.put(pod, config)
    except KvbraidError as error:
        raise InvalidValueError(f"pod {pod!r}: {as_refusal(error).told()}") from None


def end_process() -> None:
    """End with 0 even if a call still runs on its thread; otherwise simply return.

    Python would join such a thread before it exits. If it did not, the thread could be inside the
    native core, which needs the interpreter. Nothing is left to save at this point: the sockets
    are closed, and the pods are saved if they are to be.
    """
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _Server(uvicorn.Server):
    """Ends on a signal without raising it again: a requested end is not a failure.

    Attributes:
        on_hangup: Called by SIGHUP.
        tls: What the next connection is encrypted with; None: nothing is.
    """

    def __init__(self, app: Application, *, announce: Callable[[], None], end_s: int) -> None:
        super().__init__(_uvicorn_config(app, end_s))
        self._announce = announce
        self._app = app
        self._supervisor = Supervisor()
        self._handshakes: list[Handshakes] = []
        self.on_hangup: Callable[[], None] = lambda: None
        self.tls: Tls | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Announce the server once requests are answered and signals are handled."""
        await self._app.start()
        if self.tls is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self._shake_hands(sockets or [])
        if self.started:
            self._announce()
            self._supervisor.ready()

    def _shake_hands(self, sockets: list[socket.socket]) -> None:
        """Accept connections in place of uvicorn, which makes them itself without TLS."""

        def context() -> ssl.SSLContext:
            assert self.tls is not None  # It is on or off for the life of a server.
            return self.tls.context

        def connection() -> Connection:
            made = self.config.http_protocol_class(
                config=self.config,  # type: ignore[call-arg]
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            assert isinstance(made, Connection)
            return made

        connections: set[Any] = self.server_state.connections
        for each in sockets:
            handshakes = Handshakes(context, self._app.connection_limits, connections, connection)
            handshakes.listen(each)
            self._handshakes.append(handshakes)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % _TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            limits = self._app.connection_limits
            limits.sweep(self.server_state.connections, now)  # type: ignore[arg-type]
            self._app.sweep(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests in flight finish, then close what the application has opened."""
        self._app.events.close()  # A stream is a request that would never finish.
        self._supervisor.ending()
        for handshakes in self._handshakes:
            handshakes.close()
        await super().shutdown(sockets)
        await self._app.close()
        self._supervisor.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        assert threading.current_thread() is threading.main_thread()
        ends = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in ends}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self.on_hangup())
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in before.items():
                signal.signal(number, handler)


def _uvicorn_config(app: Application, end_s: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=ScoreProtocol if app.shortcuts else Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,  # Its lines go where ours go.
        log_level="error",  # Errors of clients are counted, not logged.
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=app.connection_limits.limits.idle_s,
        timeout_graceful_shutdown=end_s,
    )


def _listen(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    address = (options.host, options.port)
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        # Use the system's text for the error number; Python's own repeats the address.
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else "no such address"
        msg = f"cannot listen on {options.host}:{options.port}: {why}; choose another"
        raise InvalidValueError(msg) from None


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
