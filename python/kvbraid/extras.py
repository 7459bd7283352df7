"""The extras: `serve` for commands, `route` for a gateway, `envoy`, `otel`, `ray`, `torch`,
`transfer`.

The base install is only the library. Code that needs an extra calls `require_serve`, or the
function of another extra, first. So a user reads what to install instead of the name of a missing
module. kvbraid is in no package registry: what is told installs it from its source.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

SERVE: Final = (
    "click",
    "httptools",
    "httpx",
    "prometheus_client",
    "rich",
    "uvicorn",
    "zmq",
    "anyio",
)
"""The modules of the extra that the package imports."""

ROUTE: Final = ("aiohttp", "jinja2", "tokenizers", "yarl")
"""The modules that `route` has besides those of `serve`."""

ENVOY: Final = ("grpc", "google.protobuf")
"""The modules that `envoy` has besides those of `route`."""

OTEL: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
"""The modules of the extra `otel`."""
RAY: Final = ("ray", "fastapi")
"""Modules that `ray` has besides those of `route`; the second one comes with Ray Serve."""


def remedy(extra: str) -> str:
    """Return how to install an extra."""
    return f"in a checkout of kvbraid, pip install '.[{extra}]'"


def require_serve(who: str) -> None:
    """Check that the extra `serve` is installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "serve", SERVE)


def require_route(who: str) -> None:
    """Check that the extra `route` is installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "route", (*SERVE, *ROUTE))


def require_envoy(who: str) -> None:
    """Check that the extra `envoy` is installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "envoy", (*SERVE, *ROUTE, *ENVOY))


def require_otel(who: str) -> None:
    """Check that the extra `otel` is installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "otel", OTEL)


def require_ray(who: str) -> None:
    """Check that the extra `ray` is installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "ray", (*SERVE, *ROUTE, *RAY))


def require_torch(who: str, *names: str) -> None:
    """Check that these modules of the extra `torch` (torch, numpy) are installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "torch", names)


def require_transfer(who: str, *names: str) -> None:
    """Check that these modules of the extra `transfer` (numpy, xxhash) are installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    _require(who, "transfer", names)


def _require(who: str, extra: str, names: Iterable[str]) -> None:
    for name in names:
        if not _is_there(name):
            msg = f"{who} needs {name}, which is not installed: {remedy(extra)}"
            raise ModuleNotFoundError(msg, name=name)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # Not even the package that it is in.
        return False
