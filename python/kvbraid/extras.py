"""The extras: what each needs, and what a user without it reads.

The base install is only the library. Code that needs an extra calls `require` first, so a user
reads what to install instead of the name of a missing module. kvbraid is in no package registry:
what is told installs it from its source.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

_SERVE: Final = (
    "click",
    "httptools",
    "httpx",
    "prometheus_client",
    "rich",
    "uvicorn",
    "zmq",
    "anyio",
)
_ROUTE: Final = (*_SERVE, "aiohttp", "jinja2", "tokenizers", "yarl")

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "serve": _SERVE,
    "route": _ROUTE,
    "envoy": (*_ROUTE, "grpc", "google.protobuf"),
    "nats": (*_SERVE, "nats"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "ray": (*_ROUTE, "ray", "fastapi"),  # The latter comes with Ray Serve.
    "torch": ("torch", "numpy"),
    "transfer": ("numpy", "xxhash"),
}
"""The modules of each extra that the package imports."""


def remedy(extra: str) -> str:
    """Return how to install an extra."""
    return f"in a checkout of kvbraid, pip install '.[{extra}]'"


def require(extra: str, who: str, *names: str) -> None:
    """Check that the modules of an extra are installed, or only these of them.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    for name in names or MODULES[extra]:
        if not _is_there(name):
            msg = f"{who} needs {name}, which is not installed: {remedy(extra)}"
            raise ModuleNotFoundError(msg, name=name)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # Not even the package that it is in.
        return False
