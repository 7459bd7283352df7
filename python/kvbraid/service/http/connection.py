"""One HTTP/1.1 connection with limits on its head, its time and its place among others.

uvicorn parses and answers; this module adds the limits that uvicorn does not have. The bytes of a
head are bounded while they arrive. A client that does not finish its request, or does not read its
answer, is disconnected after a documented time. Input that is not HTTP is answered in the same
JSON shape as other errors, after the answers to earlier requests of the connection. A large piece
is parsed in slices, in turn with everything else on the event loop, so a client that floods the
server waits for the others.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from kvbraid.service.errors import RefusalError
from kvbraid.service.http.app import Application
from kvbraid.service.http.calls import Answer
from kvbraid.service.http.connection_limits import MOST_LEAVING

SLICE_BYTES: Final = 64 << 10
"""Bytes of one connection that are parsed in one turn."""

EXTENSION: Final = "kvbraid.connection"
"""The extension of ASGI in which a request finds its `Connection`, and uvicorn's `cycle` of it.

The cycle has the request's scope, so here is only a weak reference to it: whatever refers to
itself stays until a collection finds it, and each collection stops everything.

It can learn there that its client has left, without a task that waits for that, and can end an
answer that it cannot complete: ASGI has no other way to let a client know.
"""

_INTERIM: Final = b"HTTP/1.1 1"
"""How an answer begins after which another one comes."""

_LINGER_S: Final = 1.0
"""How long a refused client may go on sending: a reset would destroy the answer."""

_logger: Final = logging.getLogger(__name__)


class Connection(HttpToolsProtocol):
    """A connection that observes the limits which its application sets for all.

    Attributes:
        when_lost: Called when the client has left, or was disconnected.
        handshake: What stood for the connection among all others until now.
    """

    when_lost: Callable[[], None] | None = None
    handshake: object = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        app = config.app
        assert isinstance(app, Application)
        self._application = app
        self._connection_limits = app.connection_limits
        self._max_head_bytes = app.connection_limits.limits.head_bytes
        self._since: float | None = None  # When the client last began a request, or was answered.
        self._in_head = False
        self._in_message = False
        self._head_bytes = 0  # Of the head that is arriving, without the piece in which it began.
        self._first_bytes = 0  # The size of that piece.
        self._piece_bytes = 0
        self._unparsed = bytearray()  # Arrived, to be parsed in a later turn.
        self._is_parse_scheduled = False
        self._is_refused = False  # Nothing more is parsed.
        self._is_leaving = False  # Our side has ended.
        self._unsent_bytes = 0
        self._unsent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place among the connections, or refuse the client if there is none."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self.connections.discard(self.handshake)
        admitted = self._connection_limits.admit(self.connections)  # type: ignore[arg-type]
        self._since = self.loop.time()
        if not admitted:
            number = self._connection_limits.max_connections
            self.refuse(RefusalError("too_many_connections", f"{number} are being answered"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered that nobody waits for it."""
        super().connection_lost(exc)
        self._connection_limits.num_leaving -= self._is_leaving
        if self.when_lost is not None:
            self.when_lost()

    def cut(self, cycle: RequestResponseCycle) -> None:
        """Close in the middle of an answer, once what was written of it has gone out.

        `cycle` is that of the answer: `self.cycle` may be a later one, which waits for its turn.
        """
        cycle.disconnected = True  # So uvicorn expects no end of it, either.
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse a piece, or its first slice."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        if len(data) <= SLICE_BYTES and not self._unparsed:
            self._parse(data)
            return
        self._unparsed += data
        self.transport.pause_reading()
        if not self._is_parse_scheduled:
            self._parse_slice()

    def has_unparsed(self) -> bool:
        """Whether bytes have arrived that are not parsed yet."""
        return bool(self._unparsed)

    def schedule_parse(self) -> None:
        """Parse a slice of the rest once others have had their turn."""
        if not self._is_parse_scheduled:
            self._is_parse_scheduled = True
            self.loop.call_soon(self._parse_slice)

    def _parse_slice(self) -> None:
        self._is_parse_scheduled = False
        if self.transport.is_closing():
            self._unparsed.clear()
        if not self._unparsed or self.flow.read_paused:
            return  # Goes on when uvicorn is ready for more.
        piece = bytes(self._unparsed[:SLICE_BYTES])
        del self._unparsed[:SLICE_BYTES]
        self._parse(piece)
        if self._unparsed:
            self.schedule_parse()
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _parse(self, piece: bytes) -> None:
        """Parse bytes; input that is not HTTP, or a head that is too long, ends the connection."""
        self._piece_bytes = len(piece)
        if self._in_head:
            self._head_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return  # Answered like any other request: no protocol is offered.
        except httptools.HttpParserError as error:
            self.refuse(_refusal(error))
            return
        if self._in_head and self._head_bytes > self._max_head_bytes:
            self.refuse(self._head_too_large(self._head_bytes))

    def on_message_begin(self) -> None:
        """Begin to count a head and its time."""
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._head_bytes, self._first_bytes = 0, self._piece_bytes
        self._since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Refuse a head that is too large even though it came in few pieces."""
        self._in_head = False
        if self._first_bytes + self._head_bytes > self._max_head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._max_head_bytes:
                raise self._head_too_large(size)
        self.begin_request()

    def begin_request(self) -> None:
        """Take a request whose head is complete and within its limit."""
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # Its head is all that is written.
            self.cycle.transport = _Joined(self.transport)
        own: dict[object, object] = {"connection": self, "cycle": ref(self.cycle)}
        self.scope["extensions"] = {EXTENSION: own}

    def on_message_complete(self) -> None:
        """Stop waiting for the client."""
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the client again."""
        self._since = self.loop.time()
        super().on_response_complete()

    def await_next_request(self) -> None:
        """Wait for the client again, after an answer that uvicorn does not know about."""
        self.server_state.total_requests += 1
        self._in_message = False
        self._since = self.loop.time()

    def waiting_since(self) -> float | None:
        """When the wait for the client began; None while it is answered, or is leaving."""
        is_ours = self._is_answering() or self._is_leaving or self.transport.is_closing()
        return None if is_ours else self._since

    def evict(self) -> None:
        """Close at once."""
        self.transport.abort()

    def expire(self, now: float) -> None:
        """Close if the client has not sent its request, or read its answer, for too long."""
        limits = self._connection_limits.limits
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        if unsent and now - self._unsent_since > limits.request_s:
            self._connection_limits.refused["unread_answer"] += 1
            self.transport.abort()
            return
        since = self.waiting_since()
        if since is None:
            return
        if self._is_refused:
            self.transport.close()  # What was answered before has gone out.
        if self.flow.read_paused:
            return
        if not self._in_message and now - since > limits.idle_s:
            self.transport.close()
        elif self._in_message and now - since > limits.request_s:
            told = f"the request did not arrive within {limits.request_s} s"
            self.refuse(RefusalError("request_timeout", told))

    def refuse(self, error: RefusalError) -> None:
        """Answer with an error, unless earlier answers are due, and close; read no more."""
        if self._is_refused:
            return
        self._is_refused = True
        self._connection_limits.refused[error.code] += 1
        self._unparsed.clear()
        if self._is_answering():
            # The last of them ends the connection.
            self.cycle.keep_alive = False
            if not self._in_head:
                self._give_up_body()
        else:
            if not self._is_answered_early():
                self.write(Answer(error.body(), error.status, close=True))
            self.leave()

    def leave(self) -> None:
        """Give up what is arriving, end our side, and close when the client has, or soon."""
        self._give_up_body()
        self._is_leaving = True
        self._connection_limits.num_leaving += 1
        if self._connection_limits.num_leaving > MOST_LEAVING:
            self.transport.close()  # What the client has sent may keep it from reading why.
        else:
            if self.transport.can_write_eof():  # TLS cannot.
                self.transport.write_eof()
            self.transport.resume_reading()
            self.loop.call_later(_LINGER_S, self.transport.close)

    def _give_up_body(self) -> None:
        """Tell the reader of a body that its rest will not come."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False  # Nothing may follow the end of our side.
            self.cycle.message_event.set()

    def write(self, answer: Answer) -> None:
        """Write a whole answer."""
        head = b"%scontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (
            STATUS_LINE[answer.status],
            answer.content_type.encode(),
            len(answer.body),
            b"connection: close\r\n" if answer.close else b"",
        )
        self.transport.write(head + answer.body)

    def _is_answering(self) -> bool:
        """Whether a request that has arrived completely waits for its answer."""
        if self.pipeline:
            return True
        is_open = self.cycle is not None and not self.cycle.response_complete
        return is_open and (self._in_head or not self._in_message)

    def _is_answered_early(self) -> bool:
        """Whether the request that is still arriving has its answer already."""
        is_own = self.cycle is not None and self.cycle.scope is self.scope
        return self._in_message and is_own and self.cycle.response_complete

    def _head_too_large(self, size: int) -> RefusalError:
        return RefusalError("head_too_large", f"{size} bytes; limit {self._max_head_bytes}")


class _Joined(asyncio.Transport):
    """Keeps the head of an answer until the first bytes of its body, which follow at once.

    uvicorn writes one after the other. Each write is a system call, and can wake the client.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head: bytes | None = None  # Empty once it is written.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, or keep what is the head."""
        if self._head is None and data[: len(_INTERIM)] != _INTERIM:
            self._head = bytes(data)
            return
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def close(self) -> None:
        """Close once everything is written, also a head without a body."""
        if self._head:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closing."""
        return self._transport.is_closing()


class _Flow(FlowControl):
    """Continues to read only when everything that has arrived is parsed."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Parse the rest, or read on."""
        if self._connection.has_unparsed():
            self.read_paused = False
            self._connection.schedule_parse()
        else:
            super().resume_reading()


def _refusal(error: httptools.HttpParserError) -> RefusalError:
    """Return the refusal of the parser, or of one of its callbacks."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, RefusalError):
        return cause
    if isinstance(cause, httptools.HttpParserError | UnicodeDecodeError):
        return RefusalError("malformed_http", f"not HTTP/1.1: {cause}")
    _logger.error("a connection failed", exc_info=cause)
    return RefusalError("internal", f"unexpected {type(cause).__name__}")
