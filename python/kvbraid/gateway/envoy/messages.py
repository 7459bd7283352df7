"""What is read from a message of Envoy, and the answers that are made.

Invariant: an answer names a destination twice, as a header and as metadata, and both are equal.
Whatever a client or an engine sends of control headers is overwritten or removed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.struct_pb2 import Struct

from kvbraid.gateway.envoy.protos.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMap,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from kvbraid.gateway.headers import DP_RANK, is_control
from kvbraid.service.errors import RefusalError
from kvbraid.service.http.app import RETRY_AFTER, TOO_MANY_REQUESTS

DESTINATION: Final = "x-gateway-destination-endpoint"
NAMESPACE: Final = "envoy.lb"
HINTS: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
UPSTREAM: Final = "upstream.address"

MOST_PIECE_BYTES: Final = 62_000
"""Of a body that is handed back: with all around it, a message stays below 64 KiB."""

_OVERWRITE: Final = 2
_RANK: Final = DP_RANK.encode()


class Destination(NamedTuple):
    """Where a request goes: `IP:PORT`, then others if that one fails; and headers on top."""

    endpoints: tuple[str, ...]
    headers: Mapping[str, str]

    @property
    def value(self) -> str:
        """The destination as the protocol spells it."""
        return ",".join(self.endpoints)


# ---- what is read -----------------------------------------------------------------------------


def headers_of(given: HeaderMap) -> dict[bytes, bytes]:
    """Return the last header of each name."""
    return {
        each.key.lower().encode(): each.raw_value or each.value.encode() for each in given.headers
    }


def hints_of(message: ProcessingRequest) -> tuple[str, ...] | None:
    """Return the endpoints that a data plane hands over; None: all.

    They are a list, or one text with commas, as `header_to_metadata` makes it.
    """
    fields = message.metadata_context.filter_metadata
    if HINTS not in fields or SUBSET not in fields[HINTS].fields:
        return None
    value = fields[HINTS].fields[SUBSET]
    texts = [each.string_value for each in value.list_value.values] or [value.string_value]
    return tuple(each for text in texts for each in map(str.strip, text.split(",")) if each)


def served_by(message: ProcessingRequest) -> str:
    """Return the endpoint that has answered; empty if nobody says so."""
    told = _text(message.metadata_context.filter_metadata, SERVED, NAMESPACE)
    return told or _text(message.attributes, UPSTREAM, *message.attributes)


def _text(structs: Mapping[str, Struct], key: str, *names: str) -> str:
    found = (structs[name].fields for name in names if name in structs)
    return next((fields[key].string_value for fields in found if key in fields), "")


# ---- what is answered -------------------------------------------------------------------------


def sends(kind: str, destination: Destination, given: Iterable[bytes]) -> ProcessingResponse:
    """Return the answer to a message of some kind that sends the request on its way.

    `given` are the names of the request's headers. Trailers have no room for a header.
    """
    # Parts are filled in where they lie: made one by one, they would be copied into each other.
    reply = ProcessingResponse()
    metadata = reply.dynamic_metadata.fields[NAMESPACE].struct_value
    metadata.fields[DESTINATION].string_value = destination.value
    part = getattr(reply, kind)
    part.SetInParent()
    if not kind.endswith("_trailers"):
        headers = {DESTINATION: destination.value, **destination.headers}
        response: CommonResponse = part.response
        response.clear_route_cache = True
        mutation = response.header_mutation
        for name, value in headers.items():
            option = mutation.set_headers.add(append_action=_OVERWRITE)
            option.header.key, option.header.raw_value = name, value.encode()
        mutation.remove_headers.extend(it for it in controls(given) if it not in headers)
    return reply


def controls(given: Iterable[bytes]) -> list[str]:
    """Return the headers by which a client could steer a data plane or an engine."""
    return [name.decode() for name in given if name == _RANK or is_control(name)]


def header(name: str, value: bytes) -> HeaderValueOption:
    """Return a header that replaces all others of its name."""
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value), append_action=_OVERWRITE
    )


def passes(kind: str, given: Iterable[bytes]) -> ProcessingResponse:
    """Return the answer to headers that removes control headers, and changes nothing else."""
    removed = controls(given)
    if not removed:
        return _PASSES[kind]
    mutation = HeaderMutation(remove_headers=removed)
    return about(kind, CommonResponse(header_mutation=mutation))


def piece(body: bytes, *, is_last: bool) -> CommonResponse:
    """Return a piece of a body that is handed back."""
    streamed = StreamedBodyResponse(body=body, end_of_stream=is_last)
    return CommonResponse(body_mutation=BodyMutation(streamed_response=streamed))


def pieces(body: bytes, *, is_whole: bool) -> Iterable[CommonResponse]:
    """Yield a body in pieces; the last one ends it, unless trailers follow."""
    starts = range(0, len(body) or 1, MOST_PIECE_BYTES)
    for start in starts:
        part = body[start : start + MOST_PIECE_BYTES]
        yield piece(part, is_last=is_whole and start == starts[-1])


_MAKERS: Final[Mapping[str, Callable[[CommonResponse | None], ProcessingResponse]]] = {
    "request_headers": lambda it: ProcessingResponse(request_headers=HeadersResponse(response=it)),
    "response_headers": lambda it: ProcessingResponse(
        response_headers=HeadersResponse(response=it)
    ),
    "request_body": lambda it: ProcessingResponse(request_body=BodyResponse(response=it)),
    "response_body": lambda it: ProcessingResponse(response_body=BodyResponse(response=it)),
    "request_trailers": lambda _: ProcessingResponse(request_trailers=TrailersResponse()),
    "response_trailers": lambda _: ProcessingResponse(response_trailers=TrailersResponse()),
}


def about(kind: str, response: CommonResponse | None = None) -> ProcessingResponse:
    """Return the answer to a message of some kind; without a response it changes nothing."""
    return _MAKERS[kind](response)


_PASSES: Final = {
    kind: about(kind, CommonResponse()) for kind in ("request_headers", "response_headers")
}
"""The usual answers to headers; nobody changes them."""


def refusal_of(error: RefusalError) -> ProcessingResponse:
    """Return what the client is told, whom no pod answers."""
    details = f"kvbraid_{error.code}"
    reply = answer_of(error.body(), status=error.status, details=details)
    if error.status == TOO_MANY_REQUESTS:
        reply.immediate_response.headers.set_headers.append(header("retry-after", RETRY_AFTER))
    return reply


def answer_of(body: bytes, *, status: int = 200, details: str = "kvbraid") -> ProcessingResponse:
    """Return an answer in JSON that comes from here; `details` are for Envoy's log."""
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=status),
            headers=HeaderMutation(set_headers=[header("content-type", b"application/json")]),
            body=body,
            details=details,
        )
    )
