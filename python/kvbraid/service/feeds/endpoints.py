"""Addresses and topics of event feeds: who binds, which port a rank has, what a topic names.

This module works on text and opens nothing. ZeroMQ accepts every address that passes here: its own
rule for hosts is repeated, and tests/service/test_endpoints.py asks ZeroMQ itself.
"""

import re
from typing import Final

from kvbraid.errors import InvalidValueError

_TRANSPORTS: Final = ("tcp", "ipc", "inproc")
_ANY_HOST: Final = frozenset({"*", "0.0.0.0", "[::]", "::"})  # noqa: S104  Recognised, not bound.
_MAX_PORT: Final = 65535
_HOST: Final = re.compile(r"\*|[A-Za-z0-9\[:][A-Za-z0-9.:%\[\]_-]*")
_MAX_PATH_BYTES: Final = 107
"""The longest path of an ipc endpoint: the address of a Unix domain socket has room for it."""


def rank_endpoint(endpoint: str, rank: int) -> str:
    """Return the endpoint of a data-parallel rank: tcp port + rank, or inproc name + `_dp{rank}`.

    Raises:
        InvalidValueError: Not a ZeroMQ endpoint, or one that has no place for that rank.
    """
    transport, address = _split(endpoint)
    if transport == "tcp":
        host, port = _host_and_port(endpoint, address)
        return endpoint if rank == 0 else f"tcp://{host}:{_rank_port(endpoint, port, rank)}"
    if rank == 0:
        return endpoint
    if transport == "inproc":
        return f"{endpoint}_dp{rank}"
    raise InvalidValueError(
        f"endpoint {endpoint!r} has no place for data-parallel rank {rank}: only tcp and inproc "
        "endpoints have ranks; use tcp, or dp_size 1"
    )


def check_connects(endpoint: str) -> None:
    """Check that a connection can be made to a well-formed endpoint.

    Raises:
        InvalidValueError: It names any host or any port, which is allowed only for binding.
    """
    transport, address = _split(endpoint)
    if transport == "tcp":
        host, port = _host_and_port(endpoint, address)
        if host == "*" or port == 0:
            raise InvalidValueError(
                f"endpoint {endpoint!r} cannot be connected to: write tcp://HOST:PORT with the "
                "host and port that the engine listens on"
            )


def engine_binds(endpoint: str) -> bool:
    """Whether an engine binds this endpoint (else it connects): the engines' own convention."""
    transport, address = _split(endpoint)
    return transport != "tcp" or "*" in address or "::" in address


def subscriber_binds(endpoint: str) -> bool:
    """Whether a subscriber binds this endpoint by default: it does if the host is `*`."""
    transport, address = _split(endpoint)
    return transport == "tcp" and _host_and_port(endpoint, address)[0] in _ANY_HOST


def topic_names(topic: bytes) -> tuple[str, str] | None:
    """Return the pod and model of a topic `kv@<pod>@<model>`; None for any other topic."""
    parts = topic.split(b"@", 2)
    if len(parts) != 3 or parts[0] != b"kv":
        return None
    return parts[1].decode(errors="replace"), parts[2].decode(errors="replace")


def _split(endpoint: str) -> tuple[str, str]:
    transport, separator, address = endpoint.partition("://")
    if not separator or transport not in _TRANSPORTS or not address:
        raise InvalidValueError(
            f"endpoint {endpoint!r} is not a ZeroMQ endpoint: write tcp://HOST:PORT, ipc://PATH "
            "or inproc://NAME"
        )
    if transport == "ipc" and len(address.encode()) > _MAX_PATH_BYTES:
        raise InvalidValueError(
            f"endpoint {endpoint!r} is too long: a path has at most {_MAX_PATH_BYTES} bytes"
        )
    return transport, address


def _host_and_port(endpoint: str, address: str) -> tuple[str, int]:
    """Split a tcp address; port `*` is 0, which lets the system choose."""
    host, _, port_text = address.rpartition(":")
    is_number = port_text.isascii() and port_text.isdecimal()
    port = 0 if port_text == "*" else int(port_text) if is_number else -1
    if not host or not 0 <= port <= _MAX_PORT:
        raise InvalidValueError(
            f"endpoint {endpoint!r} has no port between 0 and {_MAX_PORT}: write tcp://HOST:PORT"
        )
    if not _HOST.fullmatch(host):
        raise InvalidValueError(
            f"endpoint {endpoint!r} has the host {host!r}, which ZeroMQ refuses: it begins with a "
            "letter or digit and has letters, digits, dots, dashes and underscores; write "
            "tcp://HOST:PORT"
        )
    return host, port


def _rank_port(endpoint: str, port: int, rank: int) -> int:
    if port == 0 or port + rank > _MAX_PORT:
        raise InvalidValueError(
            f"endpoint {endpoint!r} has no port for data-parallel rank {rank}: rank r uses port "
            f"+ r; name a port between 1 and {_MAX_PORT - rank}"
        )
    return port + rank
