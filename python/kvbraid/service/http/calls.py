"""One HTTP request as handlers get it, and one answer as they give it; no ASGI here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvbraid.service.http.access import Access
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.events import Changes, Stream
from kvbraid.service.http.metrics import Metrics
from kvbraid.service.registry import Service


class TokenIds(Protocol):
    """Makes token ids of prompts, as those of a request are made."""

    async def __call__(self, body: bytes) -> Sequence[int]:
        """Return the ids of what the body of a completion or chat asks.

        Raises:
            RefusalError: `no_token_ids`: they cannot be known, and why.
        """


class Context(NamedTuple):
    """What every handler may use."""

    service: Service
    access: Access
    metrics: Metrics
    openapi: bytes
    connection_limits: ConnectionLimits
    events: Changes
    token_ids: TokenIds | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request, read completely; fields that the request did not send are empty."""

    body: bytes = b""
    content_type: bytes = b""
    query: bytes = b""
    pod: str = ""
    if_none_match: bytes = b""
    traceparent: str = ""


class Answer(NamedTuple):
    """One HTTP answer; with a `stream`, that is its body, and it is closed in any case."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    close: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: Stream | None = None
