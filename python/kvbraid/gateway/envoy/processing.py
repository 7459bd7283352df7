"""One request and its answer as Envoy tells of it: messages in, messages out.

    request_headers -> what is asked -> where it goes -> response_headers ... -> how it ended

Which message the destination is in, and when it is due, follows from how Envoy sends bodies:

    NONE, STREAMED          request_headers, before any of the body: load alone decides
    BUFFERED, .._PARTIAL    request_body; headers are let pass at once, else Envoy would wait
    FULL_DUPLEX_STREAMED    request_headers, after the whole body; the body is handed back
    a request without body  request_headers

Invariant: a request is asked about once, and a booking that was made for it ends at most once. No
message is refused: one that is out of order is answered so that it changes nothing, and is
counted. No I/O, no clock.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from kvbraid.gateway.envoy.messages import (
    Destination,
    about,
    headers_of,
    hints_of,
    passes,
    piece,
    pieces,
    refusal_of,
    sends,
    served_by,
)
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import (
    CommonResponse,
    HttpBody,
    ProcessingRequest,
    ProcessingResponse,
)
from kvbraid.gateway.usage import Tail, Usage
from kvbraid.service.errors import RefusalError
from kvbraid.service.requests import PickEvent


class BodyMode(IntEnum):
    """How Envoy sends the bodies of one direction, with the published numbers."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


class AskedBy(NamedTuple):
    """What is known of a request when its pod has to be chosen.

    `given` has the last header of each name. The body `is_cut` if there is more of it.
    `candidates` are the endpoints that the data plane allows; None: all.
    """

    given: Mapping[bytes, bytes]
    body: bytes
    is_cut: bool
    candidates: tuple[str, ...] | None


class Told(NamedTuple):
    """What has become of a request that was booked."""

    event: PickEvent
    usage: Usage = Usage()


class Reaction(NamedTuple):
    """What follows from a message: answers, perhaps a question, and news of the request."""

    replies: list[ProcessingResponse]
    asks: AskedBy | None = None
    told: tuple[Told, ...] = ()


class _Phase(Enum):
    HEAD = "waits for the request's headers"
    BODY = "waits for the rest of its body"
    ASKED = "waits for a destination"
    SENT = "has one"
    ANSWERED = "needs none any more"


_AT_ONCE: Final = frozenset({BodyMode.NONE, BodyMode.STREAMED})
_WHOLE: Final = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
_FAILED: Final = 400


class Processing:
    """One stream of messages. `counts` has messages by their kind, or by what is wrong with them.

    `num_kept` is how many bytes of the request's body are kept here.
    """

    def __init__(self, counts: Counter[str], *, most_bytes: int) -> None:
        self._counts = counts
        self._most_bytes = most_bytes
        self._phase = _Phase.HEAD
        self._is_configured = False
        self._request_mode = self._response_mode = BodyMode.NONE
        self._is_early = False  # Pieces of a streamed body come before the headers may pass.
        self._given: dict[bytes, bytes] = {}
        self._candidates: tuple[str, ...] | None = None
        self._body = bytearray()
        self._carrier = "request_headers"
        self._owed: list[str] = []  # Kinds of messages to be answered after the carrier.
        self._body_ended = False
        self._destination: Destination | None = None
        self._is_booked = False
        self._has_bytes = False
        self._status = 0
        self._tail = Tail()
        self.served = ""

    @property
    def num_kept(self) -> int:
        """How many bytes of the request's body are kept."""
        return len(self._body)

    @property
    def is_for_the_log(self) -> bool:
        """Whether only the access log can tell how the answer ends."""
        return self._is_configured and self._response_mode is BodyMode.NONE

    @property
    def waits_for_client(self) -> bool:
        """Whether the request has yet to arrive as a whole."""
        return self._phase in {_Phase.HEAD, _Phase.BODY}

    # ---- messages --------------------------------------------------------------------------

    def receive(self, message: ProcessingRequest) -> Reaction:
        """Take the next message.

        Raises:
            RefusalError: `body_too_large`, or `invalid_value` for a way of sending bodies that is
                not known: to be refused.
        """
        kind = message.WhichOneof("request")
        if kind is None or message.observability_mode:  # Copies want no answer.
            self._counts["unknown" if kind is None else "observed"] += 1
            return Reaction([])
        self._counts[kind] += 1
        if not self._is_configured:
            self._configure(message)
        return _HANDLERS[kind](self, message)

    def _configure(self, message: ProcessingRequest) -> None:
        self._is_configured = True
        told = message.protocol_config
        try:
            self._request_mode = BodyMode(told.request_body_mode)
            self._response_mode = BodyMode(told.response_body_mode)
        except ValueError:
            modes = f"{told.request_body_mode} and {told.response_body_mode}"
            message_ = f"Envoy sends bodies in the modes {modes}"
            remedy = "use BUFFERED, BUFFERED_PARTIAL, STREAMED, FULL_DUPLEX_STREAMED or NONE"
            raise RefusalError("invalid_value", message_, remedy=remedy) from None
        self._is_early = (
            told.send_body_without_waiting_for_header_response
            and self._request_mode is BodyMode.STREAMED
        )

    def _out_of_order(self, kind: str, body: HttpBody | None = None) -> Reaction:
        self._counts["out_of_order"] += 1
        mode = self._request_mode if kind.startswith("request") else self._response_mode
        return Reaction([about(kind, _unchanged(mode, body))])

    # ---- the request -----------------------------------------------------------------------

    def _request_headers(self, message: ProcessingRequest) -> Reaction:
        if self._phase is not _Phase.HEAD:
            return self._out_of_order("request_headers")
        self._given = headers_of(message.request_headers.headers)
        self._candidates = hints_of(message)
        if message.request_headers.end_of_stream:
            return self._ask(is_whole=True)
        if self._request_mode in _AT_ONCE and not self._is_early:
            return self._ask(is_whole=False)
        self._phase = _Phase.BODY
        if self._request_mode in _WHOLE:
            self._carrier = "request_body"
            return Reaction([passes("request_headers", self._given)])
        return Reaction([])

    def _request_body(self, message: ProcessingRequest) -> Reaction:
        body = message.request_body
        if self._phase is not _Phase.BODY:
            if self._phase is _Phase.SENT and self._request_mode not in _WHOLE:
                return Reaction([about("request_body", _unchanged(self._request_mode, body))])
            return self._out_of_order("request_body", body)
        length = self.num_kept + len(body.body)
        if length > self._most_bytes:
            raise RefusalError("body_too_large", f"{length} bytes; limit {self._most_bytes}")
        self._body += body.body
        self._body_ended = body.end_of_stream
        if self._is_early:
            self._owed.append("request_body")
        if self._request_mode is BodyMode.BUFFERED_PARTIAL:
            told = self._given.get(b"content-length", b"")
            return self._ask(is_whole=body.end_of_stream or told == str(length).encode())
        if body.end_of_stream or self._request_mode is BodyMode.BUFFERED:
            return self._ask(is_whole=True)
        return Reaction([])

    def _request_trailers(self, message: ProcessingRequest) -> Reaction:
        del message
        if self._phase is not _Phase.BODY:
            return Reaction([about("request_trailers")])
        if self._request_mode in _WHOLE:  # The body was empty; headers are on their way.
            self._carrier = "request_trailers"
        else:
            self._owed.append("request_trailers")
        return self._ask(is_whole=True)

    def _ask(self, *, is_whole: bool) -> Reaction:
        self._phase = _Phase.ASKED
        asked = AskedBy(self._given, bytes(self._body), not is_whole, self._candidates)
        return Reaction([], asks=asked)

    # ---- where it goes ---------------------------------------------------------------------

    def send_to(self, destination: Destination) -> list[ProcessingResponse]:
        """Return the answers that send the request there, where it is booked."""
        assert self._phase is _Phase.ASKED, self._phase
        self._phase = _Phase.SENT
        self._destination, self._is_booked = destination, True
        replies = [sends(self._carrier, destination, self._given)]
        is_duplex = self._request_mode is BodyMode.FULL_DUPLEX_STREAMED
        if is_duplex and (self._body or self._body_ended):
            parts = pieces(bytes(self._body), is_whole=self._body_ended)
            replies += [about("request_body", part) for part in parts]
        replies += map(about, self._owed)
        self._body, self._given = bytearray(), {}
        return replies

    def refuse(self, error: RefusalError) -> list[ProcessingResponse]:
        """Return the answer that ends a request which no pod gets."""
        return self.answer(refusal_of(error))

    def answer(self, reply: ProcessingResponse) -> list[ProcessingResponse]:
        """End the request with an answer from here; nothing that comes after it matters."""
        self._phase, self._body = _Phase.ANSWERED, bytearray()
        return [reply]

    # ---- the answer ------------------------------------------------------------------------

    def _response_headers(self, message: ProcessingRequest) -> Reaction:
        given = headers_of(message.response_headers.headers)
        status = given.get(b":status", b"")
        self._status = int(status) if status.isdigit() else 0
        told = self._note_served(served_by(message))
        if self._status >= _FAILED or message.response_headers.end_of_stream:
            told += self._end()
        return Reaction([passes("response_headers", given)], told=told)

    def _response_body(self, message: ProcessingRequest) -> Reaction:
        body = message.response_body
        told: tuple[Told, ...] = ()
        if body.body and self._is_booked:
            self._tail.keep(body.body)
            if not self._has_bytes:
                self._has_bytes, told = True, (Told("first_token"),)
        if body.end_of_stream:
            told += self._end()
        reply = about("response_body", _unchanged(self._response_mode, body))
        return Reaction([reply], told=told)

    def _response_trailers(self, message: ProcessingRequest) -> Reaction:
        del message
        return Reaction([about("response_trailers")], told=self._end())

    def _note_served(self, endpoint: str) -> tuple[Told, ...]:
        """Compare who has answered with who was to; another pod's answer says nothing of ours."""
        if self._destination is None:
            return ()
        chosen, *_ = self._destination.endpoints
        self.served = "not_told" if not endpoint else "chosen" if endpoint == chosen else "other"
        if self.served != "other" or not self._is_booked:
            return ()
        self._is_booked = False
        return (Told("failed"),)

    def _end(self) -> tuple[Told, ...]:
        """The answer is complete, or worthless; nothing more is told of it."""
        if not self._is_booked:
            return ()
        self._is_booked = False
        if self._status >= _FAILED:
            return (Told("failed"),)
        return (Told("end", self._tail.usage()),)

    def close(self, *, is_sent: bool) -> tuple[Told, ...]:
        """Say what has become of a request whose stream is over, whoever has ended it.

        `is_sent` says whether Envoy was told where it goes. If it was, and it sends no bodies of
        answers, only its access log knows.
        """
        self._body = bytearray()
        if not self._is_booked or (is_sent and self.is_for_the_log):
            return ()
        self._is_booked = False
        return (Told("end" if self._has_bytes else "failed"),)


_HANDLERS: Final[Mapping[str, Callable[[Processing, ProcessingRequest], Reaction]]] = {
    "request_headers": Processing._request_headers,
    "request_body": Processing._request_body,
    "request_trailers": Processing._request_trailers,
    "response_headers": Processing._response_headers,
    "response_body": Processing._response_body,
    "response_trailers": Processing._response_trailers,
}


def _unchanged(mode: BodyMode, body: HttpBody | None) -> CommonResponse | None:
    """Return what lets a piece of a body pass: in full duplex, it has to be handed back."""
    if body is None or mode is not BodyMode.FULL_DUPLEX_STREAMED:
        return None
    return piece(body.body, is_last=body.end_of_stream)
