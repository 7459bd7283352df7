"""One table of error codes, one JSON shape.

Every refusal over HTTP is `{"error": {"code", "message", "remedy"}}` with the status that ERRORS
gives its code. Nothing here decides whether to refuse.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from kvbraid.errors import (
    FullError,
    InvalidValueError,
    KvbraidError,
    NoRankError,
    TooLargeError,
    TopologyError,
    UnknownError,
    one_line,
)


class ErrorKind(NamedTuple):
    """The HTTP status of a code, and what a caller can do about the error."""

    status: int
    remedy: str


ERRORS: Final[Mapping[str, ErrorKind]] = {
    "malformed_body": ErrorKind(400, "send the fields that docs/api.md lists for this route"),
    "invalid_value": ErrorKind(400, "correct the value that the message shows"),
    "invalid_topology": ErrorKind(400, "use the field names of an engine's exported config.json"),
    "invalid_endpoint": ErrorKind(400, "give tcp://HOST:PORT; other transports: fleet.toml"),
    "malformed_http": ErrorKind(400, "send HTTP/1.1, and each deciding header once"),
    "unauthorized": ErrorKind(401, "send the header Authorization: Bearer TOKEN"),
    "registration_off": ErrorKind(
        403, "start the server with --token, --allow-registration, or on 127.0.0.1"
    ),
    "right_missing": ErrorKind(403, "use a key with that right, or give this one the right"),
    "foreign_host": ErrorKind(
        403, "call the server as localhost, list the name in server.allow_hosts, or use a token"
    ),
    "not_found": ErrorKind(404, "GET /openapi.json lists every route"),
    "unknown_model": ErrorKind(404, "GET /v1/models lists the models; PUT /v1/pods/{id} adds one"),
    "unknown_pod": ErrorKind(404, "GET /v1/pods lists the pods"),
    "unknown_request": ErrorKind(
        404, "GET /v1/requests lists what is kept; console.prompts in fleet.toml keeps prompts"
    ),
    "no_token_ids": ErrorKind(
        404, "send token_ids, or give the model [tokens.MODEL] in the fleet.toml of kvbraid route"
    ),
    "method_not_allowed": ErrorKind(405, "GET /openapi.json lists the methods of every route"),
    "other_shard": ErrorKind(421, "ask the shard that the message names, or all of them"),
    "request_timeout": ErrorKind(408, "send faster, or raise limits.request_s in fleet.toml"),
    "too_many_pods": ErrorKind(409, "remove a pod, or raise limits.pods in fleet.toml"),
    "body_too_large": ErrorKind(413, "send fewer bytes, or raise limits.body_bytes in fleet.toml"),
    "too_many_tokens": ErrorKind(413, "send fewer tokens, or raise limits.tokens in fleet.toml"),
    "too_large": ErrorKind(413, "send less than the limit that the message shows"),
    "too_many_requests": ErrorKind(429, "send it again after the seconds of Retry-After"),
    "head_too_large": ErrorKind(431, "send fewer headers, or raise limits.head_bytes"),
    "internal": ErrorKind(500, "report it with the server's log"),
    "pod_failed": ErrorKind(502, "send it again; GET /v1/pods and the pod's log say more"),
    "no_pod": ErrorKind(503, "hand over other candidates, or end what the message counts"),
    "not_decided": ErrorKind(503, "send it again, or raise envoy.decide_s in fleet.toml"),
    "not_following": ErrorKind(503, "it restarts by itself; the server's log says what failed"),
    "not_ready": ErrorKind(503, "wait for the pods named, at most server.ready_after_s seconds"),
    "not_settled": ErrorKind(503, "ask again in a moment; GET /v1/pods has the state of the pod"),
    "overloaded": ErrorKind(503, "send less at a time, or raise limits.bodies_bytes"),
    "shard_silent": ErrorKind(
        503, "wait until GET /readyz no longer names the shard, then send the report again"
    ),
    "shutting_down": ErrorKind(503, "ask another server, or this one once it is back"),
    "too_many_connections": ErrorKind(503, "close some, or raise limits.connections"),
    "too_many_streams": ErrorKind(503, "close some pages, or raise console.streams"),
    "pod_silent": ErrorKind(504, "send it again, or raise gateway.first_byte_s in fleet.toml"),
    "http_version": ErrorKind(505, "send HTTP/1.1; in nginx: proxy_http_version 1.1"),
}
"""Every code that an answer can carry."""

_CODES: Final[Mapping[type[KvbraidError], str]] = {
    TopologyError: "invalid_topology",
    InvalidValueError: "invalid_value",
    UnknownError: "unknown_model",
    FullError: "too_many_requests",
    NoRankError: "no_pod",
    TooLargeError: "too_large",
}


class RefusalError(KvbraidError):
    """A refusal with a code of ERRORS.

    Args:
        code: Key of ERRORS; it decides the status and the usual remedy.
        message: Shows the offending value; it is kept on one line and clipped.
        remedy: Replaces the table's remedy if this case has a better one.
    """

    def __init__(self, code: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(one_line(message))
        kind = ERRORS[code]
        self.code = code
        self.status = kind.status
        self.remedy = remedy or kind.remedy

    def told(self) -> str:
        """Return message and remedy as one sentence."""
        return f"{self}; {self.remedy}"

    def body(self) -> bytes:
        """Return the JSON answer."""
        error = {"code": self.code, "message": str(self), "remedy": self.remedy}
        return msgspec.json.encode({"error": error})


def as_refusal(error: KvbraidError) -> RefusalError:
    """Give an error of the tree its code: that of its nearest class in the table."""
    if isinstance(error, RefusalError):
        return error
    for cls in type(error).__mro__:
        if cls in _CODES:
            return RefusalError(_CODES[cls], str(error))
    return RefusalError("internal", f"{type(error).__name__}: {error}")
