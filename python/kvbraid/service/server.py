"""Run the application: a socket, uvicorn on uvloop and httptools, and an orderly end.

SIGTERM and SIGINT stop accepting, let requests in flight finish, close idle connections and
return; nothing outlives END_S, and the process can exit with 0.
"""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from kvbraid.errors import InvalidValueError
from kvbraid.service.access import Access
from kvbraid.service.app import build_app
from kvbraid.service.config import FleetConfig, ServerOptions
from kvbraid.service.registry import Service

END_S: Final = 4
"""Seconds that requests in flight have after a signal."""

_BACKLOG: Final = 2048


def run_server(
    config: FleetConfig, service: Service, *, announce: Callable[[str], None]
) -> None:
    """Register the configured pods and serve until a signal; must run in the main thread.

    Args:
        config: Where to listen, who may register, and which pods to begin with.
        service: Index and subscriber; the subscriber is started and closed here.
        announce: Called once with the base URL when connections are accepted.

    Raises:
        InvalidValueError: The address cannot be listened on.
        KvbraidError: A configured pod was refused.
    """
    for pod, pod_config in config.pods.items():
        service.put(pod, pod_config)
    options = config.server
    access = Access.of(
        host=options.host, token=options.token, allow_registration=options.allow_registration
    )
    with _listen(options) as listener:
        announce(_url(listener))
        server = _Server(_uvicorn_config(build_app(service, access=access)))
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """Ends on a signal without raising it again: an asked-for end is not a failure."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        assert threading.current_thread() is threading.main_thread()
        ends = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in ends}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=END_S,
    )


def _listen(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    address = (options.host, options.port)
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        msg = f"cannot listen on {options.host}:{options.port}: {error.strerror}; choose another"
        raise InvalidValueError(msg) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
