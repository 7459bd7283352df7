"""Entries of Envoy's access log: how a request has ended, and what its engine reused.

An entry comes when its request has ended, which may be long after the decision, and it may be lost
or come twice. Its metadata is what filters of Envoy took out of the answer, in the namespace
`kvbraid`. All here are functions of an entry.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.struct_pb2 import Struct

from kvbraid.gateway.envoy.processing import Told
from kvbraid.gateway.envoy.protos.access_log_pb2 import (
    AccessLogCommon,
    HTTPAccessLogEntry,
    SocketAddress,
)
from kvbraid.gateway.usage import Usage

METADATA: Final = "kvbraid"
MOST_TOKENS: Final = 1 << 53
"""A larger count is none: numbers of metadata are floats."""

_AT_THE_END: Final = frozenset({0, 6})
"""Types of entries that are written when a client's request ends: not said, and DownstreamEnd."""

_POD_FAILED: Final = (
    "no_healthy_upstream", "upstream_remote_reset", "upstream_connection_failure",
    "upstream_connection_termination", "upstream_protocol_error",
)  # fmt: skip
"""Flags that tell of a pod that does not work."""

_GIVEN_UP: Final = (
    "upstream_request_timeout", "upstream_overflow", "upstream_retry_limit_exceeded",
    "stream_idle_timeout", "upstream_max_stream_duration_reached", "duration_timeout",
)  # fmt: skip
"""Flags that tell of an answer that is not complete, for which its pod may not be to blame."""

_CLIENT_GONE: Final = ("downstream_connection_termination", "downstream_remote_reset")
"""Flags that tell of a client that left before its answer was complete."""

_FAILED: Final = 400
_LONGEST_NAME: Final = 256


class Ended(NamedTuple):
    """How a request has ended, that had this name.

    `endpoint` is who has answered, `IP:PORT`, and empty if nobody has. `failure` is the flag that
    tells of a pod that does not work, if there is one.
    """

    name: str
    told: Told
    endpoint: str
    failure: str


def read_entry(entry: HTTPAccessLogEntry) -> Ended | None:
    """Return what an entry says of its request's end; None if it is of no request or no end."""
    common, name = entry.common_properties, entry.request.request_id
    if not 0 < len(name) <= _LONGEST_NAME or common.access_log_type not in _AT_THE_END:
        return None
    failure = _flag(common, _POD_FAILED)
    return Ended(
        name=name,
        told=_told(entry, failed=bool(failure or _flag(common, _GIVEN_UP))),
        endpoint=_endpoint(common.upstream_remote_address.socket_address),
        failure=failure,
    )


def _told(entry: HTTPAccessLogEntry, *, failed: bool) -> Told:
    common = entry.common_properties
    if failed or entry.response.response_code.value >= _FAILED:
        return Told("failed")
    if _flag(common, _CLIENT_GONE):
        # The client left. If the answer had begun, the pod has computed the whole prompt.
        has_begun = common.HasField("time_to_first_upstream_rx_byte")
        return Told("end" if has_begun else "failed")
    return Told("end", _usage(common.metadata.filter_metadata))


def _flag(common: AccessLogCommon, names: tuple[str, ...]) -> str:
    return next((name for name in names if getattr(common.response_flags, name)), "")


def _endpoint(socket: SocketAddress) -> str:
    host = f"[{socket.address}]" if ":" in socket.address else socket.address
    return f"{host}:{socket.port_value}" if host else ""


def _usage(metadata: Mapping[str, Struct]) -> Usage:
    if METADATA not in metadata:
        return Usage()
    fields = metadata[METADATA]
    return Usage(_count(fields, "prompt_tokens"), _count(fields, "cached_tokens"))


def _count(fields: Struct, name: str) -> int | None:
    if name not in fields.fields:
        return None
    number = fields.fields[name].number_value
    return int(number) if 0 <= number < MOST_TOKENS else None  # Neither infinite nor NaN.
