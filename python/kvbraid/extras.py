"""The extra `serve`: the packages that a server, its clients and the command line need.

The base install is only the library. Code that needs the extra calls `require_serve` first, so a
user reads what to install instead of the name of a missing module.
"""

from importlib.util import find_spec
from typing import Final

SERVE: Final = (
    "click",
    "httptools",
    "httpx",
    "prometheus_client",
    "rich",
    "starlette",
    "uvicorn",
    "zmq",
)
"""The modules of the extra that the package imports."""


def require_serve(who: str) -> None:
    """Check that the extra `serve` is installed.

    Raises:
        ModuleNotFoundError: A module of the extra is missing; the message says what to install.
    """
    for name in SERVE:
        if find_spec(name) is None:
            msg = f"{who} needs {name}, which is not installed: pip install 'kvbraid[serve]'"
            raise ModuleNotFoundError(msg, name=name)
