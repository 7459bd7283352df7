"""What others put before an engine: proxies, which choose nothing, and routers with one worker.

They are measured where they are installed: `apt-get install haproxy nginx`, and `make
.venv-gateway/rivals` for the routers. Each has the settings with which it starts, besides ports,
fewer lines of log, and one thread where a setting says so.
"""

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from bench.router.gateways import (
    CONFIG,
    ENGINE,
    OTHER,
    PORT,
    Running,
    Servers,
    installed,
    running_engine,
    server,
)


class Rival(NamedTuple):
    """A program, how it is run, and a path that it answers when it can serve."""

    program: str
    options: tuple[str, ...]
    config: str = ""
    ready: str = "/healthz"


_HAPROXY: Final = """\
global
    nbthread 1
defaults
    mode http
    option http-no-delay
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind "127.0.0.1:{port}"
    http-request return status 200 if { path /healthz }
    default_backend engine
backend engine
    http-reuse always
    server engine 127.0.0.1:{engine}
"""
_NGINX: Final = """\
daemon off;
worker_processes 1;
pid {config}.pid;
error_log stderr;
events { worker_connections 1024; }
http {
    access_log off;
    client_body_temp_path {config}.bodies;
    proxy_temp_path {config}.proxy;
    fastcgi_temp_path {config}.fastcgi;
    uwsgi_temp_path {config}.uwsgi;
    scgi_temp_path {config}.scgi;
    keepalive_requests 1000000;
    upstream engine { server 127.0.0.1:{engine}; keepalive 64; keepalive_requests 1000000; }
    server {
        listen 127.0.0.1:{port};
        location / {
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }
    }
}
"""
_WORKER: Final = (
    "--port", PORT, "--worker-urls", f"http://127.0.0.1:{ENGINE}",
    "--prometheus-host", "127.0.0.1", "--prometheus-port", OTHER, "--log-level", "error",
)  # fmt: skip
_RIVALS: Final = {
    "nginx": Rival("nginx", ("-e", "stderr", "-c", CONFIG), _NGINX),
    "haproxy": Rival("haproxy", ("-db", "-f", CONFIG), _HAPROXY),
    "vllm_router": Rival("vllm-router", _WORKER, ready="/v1/models"),
    "smg": Rival("smg", ("launch", *_WORKER), ready="/v1/models"),
}
READS_NO_IDS: Final = frozenset({"smg"})
"""Who refuses prompts of token ids: its prompts are texts of the same length."""


@contextlib.contextmanager
def before_engine(
    command: list[str], config: str = "", ready: str = "/healthz"
) -> Iterator[Running]:
    """Run an engine, and a server before it."""
    with (
        running_engine() as (port, _),
        server(command, port, config=config, ready=ready) as running,
    ):
        yield running


def python_proxy(module: str) -> Servers:
    """Run a proxy of this folder, which takes the engine's port and its own."""
    return partial(before_engine, [sys.executable, "-m", f"bench.router.{module}", ENGINE, PORT])


PLAIN: Final = python_proxy("plain_proxy")
"""The least that uvicorn with aiohttp can do."""


def others() -> dict[str, Servers]:
    """Return all that are there, by their names."""
    return {
        "plain": PLAIN,
        "starlette": python_proxy("starlette_proxy"),
        **{
            name: partial(before_engine, [path, *rival.options], rival.config, rival.ready)
            for name, rival in _RIVALS.items()
            if (path := installed(rival.program))
        },
    }
