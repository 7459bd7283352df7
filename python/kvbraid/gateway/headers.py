"""Which headers go on to a pod, and which come back.

Dropped are those that belong to one connection (RFC 9110, 7.6.1), those that this gateway answers
for itself, and those by which a client could steer a gateway or an engine. All others are passed
on as they are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""

REQUEST_ID: Final = b"x-request-id"
DP_RANK: Final = "x-data-parallel-rank"
EXPLAIN: Final = b"x-kvbraid-explain"
MODEL: Final = "x-kvbraid-model"
SESSION: Final = "x-session-id"
TRACEPARENT: Final = "traceparent"

_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_OWN: Final = frozenset({b"host", b"content-length", b"expect", REQUEST_ID, DP_RANK.encode()})
_NOT_TO_POD: Final = _HOP | _OWN
_NOT_TO_CLIENT: Final = _HOP | {REQUEST_ID}
_CONTROL: Final = (b"x-gateway-", b"x-kvbraid-")
_USUAL_ID: Final = re.compile(rb"[!-~]{1,128}")


def is_control(name: bytes) -> bool:
    """Whether a header could steer a gateway; names are in lower case."""
    return name.startswith(_CONTROL)


def as_text(given: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return headers as readers of prompts take them."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in given.items()}


def to_pod(headers: Headers) -> list[tuple[str, str]]:
    """Return the headers of a request that go on to its pod."""
    dropped = _with_named(_NOT_TO_POD, headers)
    return [
        (name.decode("ascii"), value.decode("utf-8", "replace"))
        for name, value in headers
        if name not in dropped and not name.startswith(_CONTROL)
    ]


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that go on to its client."""
    given = [(name.lower(), value) for name, value in headers]
    dropped = _with_named(_NOT_TO_CLIENT, given)
    if b"transfer-encoding" in dict(given):
        dropped |= {b"content-length"}  # Where both are given, only the former counts.
    return [
        (name, value)
        for name, value in given
        if name not in dropped and not name.startswith(_CONTROL)
    ]


def request_id(given: Mapping[bytes, bytes], own: str) -> bytes:
    """Return the client's name of a request if it is a usual one, else our own."""
    name = given.get(REQUEST_ID)
    return name if name and _USUAL_ID.fullmatch(name) else own.encode()


def _with_named(dropped: frozenset[bytes], headers: Headers) -> frozenset[bytes]:
    """Add the headers that a `connection` header says belong to the connection."""
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return dropped
    return dropped.union(each.strip().lower() for each in b",".join(named).split(b","))
