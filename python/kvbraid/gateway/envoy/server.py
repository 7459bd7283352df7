"""The gRPC server: streams of ext_proc, the access log, health; and the limits of all of them.

Invariant: a stream holds a bounded part of a body for a bounded time before it is answered, and a
booking that it has made is released when it is over, whatever ends it. No message ends anything
but its own stream.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.gateway.envoy.logs import read_entry
from kvbraid.gateway.envoy.messages import answer_of
from kvbraid.gateway.envoy.picker import Picker
from kvbraid.gateway.envoy.processing import AskedBy, Processing
from kvbraid.gateway.envoy.protos.access_log_pb2 import (
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
)
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from kvbraid.gateway.envoy.protos.health_pb2 import HealthCheckRequest, HealthCheckResponse
from kvbraid.service.config import FleetConfig
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.http.access import Access
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.registry import Service

EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
ACCESS_LOG: Final = "envoy.service.accesslog.v3.AccessLogService"
_HEALTH: Final = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING = 1, 2
_TICK_S: Final = 0.05
_MESSAGE_BYTES: Final = 1 << 20
"""What a message may be longer than the longest body: headers, metadata, attributes."""

_logger: Final = logging.getLogger(__name__)
"""Lines about what is wrong here; whatever Envoy does wrong is counted."""

_Context = grpc.aio.ServicerContext[Any, Any]


class Streams:
    """The streams of ext_proc that are open, each of them one HTTP request.

    `messages` counts what came, `answers` what was answered about requests.
    """

    def __init__(
        self, picker: Picker, config: FleetConfig, *, access: Access, limits: ConnectionLimits
    ) -> None:
        self._picker = picker
        self._options = config.envoy
        self._first_tokens = config.routing.options.first_tokens
        self._access = access
        self._limits = limits
        self.num_open = 0
        self.messages: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    async def process(self, requests: object, context: _Context) -> None:
        """Serve one stream."""
        del requests  # They are read one by one.
        await _check(self._access, context)
        stream = Processing(self.messages, most_bytes=self._limits.limits.body_bytes)
        talk = _Talk(stream, context, self._limits)
        self.num_open += 1
        try:
            await self._serve(talk)
        finally:
            self.num_open -= 1
            self._picker.close(stream, is_sent=talk.is_sent)
            talk.release()

    async def _serve(self, talk: "_Talk") -> None:
        try:
            await self._follow(talk)
        except TimeoutError:
            error = self._too_late(talk)
        except KvbraidError as refused:
            error = as_refusal(refused)
        except Exception as unexpected:
            _logger.exception("a stream of Envoy failed")
            error = RefusalError("internal", f"unexpected {type(unexpected).__name__}")
        else:
            return
        talk.release()
        if not talk.is_sent:
            self.answers[error.code] += 1
            await talk.write(talk.stream.refuse(error))

    async def _follow(self, talk: "_Talk") -> None:
        stream, context = talk.stream, talk.context
        if self.num_open > self._options.streams:
            raise RefusalError("too_many_requests", f"{self._options.streams} streams are open")
        async with asyncio.timeout(self._limits.limits.request_s) as patience:
            while (message := await _next(context, self.messages)) is not grpc.aio.EOF:
                progress = stream.receive(message)
                talk.hold()
                for told in progress.told:
                    self._picker.report(stream, told)
                await talk.write(progress.replies)
                if progress.asks is not None and not await self._answer(
                    talk, progress.asks, patience
                ):
                    return

    async def _answer(self, talk: "_Talk", asked: AskedBy, patience: asyncio.Timeout) -> bool:
        """Answer a question; say whether the request goes to a pod."""
        own = self._picker.at_once(asked)
        if own is not None:
            self.answers["from_here"] += 1
            await talk.write(talk.stream.answer(answer_of(own)))
            return False
        _check_right(self._access, talk.context)  # Its key may have been revoked meanwhile.
        patience.reschedule(asyncio.get_running_loop().time() + self._options.decide_s)
        destination = await self._picker.decide(talk.stream, asked)
        patience.reschedule(None)  # The pod's answer may take as long as it will.
        replies = talk.stream.send_to(destination)
        talk.release()
        # Envoy may end the stream while this is written; then its log tells of the request.
        talk.is_sent = True
        self.answers["sent"] += 1
        await talk.write(replies)
        self._hint(talk.stream)
        return True

    def _hint(self, stream: Processing) -> None:
        """Say once that first tokens are expected which nobody reports."""
        if self._first_tokens and stream.is_for_the_log:
            self._first_tokens = False
            _logger.warning(
                "Envoy sends no bodies of answers, so nobody reports first tokens: "
                "set first_tokens = false in [router]"
            )

    def _too_late(self, talk: "_Talk") -> RefusalError:
        if talk.stream.waits_for_client:
            limit = self._limits.limits.request_s
            return RefusalError("request_timeout", f"the body did not arrive within {limit} s")
        return RefusalError("not_decided", f"no decision within {self._options.decide_s:g} s")


class _Talk:
    """One stream with what it holds here."""

    def __init__(self, stream: Processing, context: _Context, limits: ConnectionLimits) -> None:
        self.stream = stream
        self.context = context
        self.is_sent = False
        self._limits = limits
        self._held = 0

    async def write(self, replies: list[ProcessingResponse]) -> None:
        for reply in replies:
            await self.context.write(reply)

    def hold(self) -> None:
        more = self.stream.num_kept - self._held
        if more > 0:
            self._limits.hold(more)
            self._held += more

    def release(self) -> None:
        self._limits.release(self._held)
        self._held = 0


def _read(kind: type[Message]) -> Callable[[bytes], Message | DecodeError]:
    """Return a reader of messages; what is none is an error that is handed on."""

    def read(data: bytes) -> Message | DecodeError:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            return error

    return read


async def _next(context: _Context, counts: Counter[str]) -> Any:  # noqa: ANN401 - or the end
    """Return the next message of a call.

    Raises:
        RefusalError: What came is none, and was counted.
    """
    message = await context.read()
    if isinstance(message, DecodeError):
        counts["garbage"] += 1
        raise RefusalError("invalid_value", "what came is no message of this protocol")
    return message


def _check_right(access: Access, context: _Context) -> None:
    """Refuse a call that may not book: a decision is a booking."""
    given = dict(context.invocation_metadata() or ())
    authorization = given.get("authorization", "")
    told = authorization if isinstance(authorization, bytes) else authorization.encode()
    access.check("route", told, b"localhost", None)  # A page in a browser cannot speak gRPC.


async def _check(access: Access, context: _Context) -> None:
    """End a call that may not book."""
    try:
        _check_right(access, context)
    except RefusalError as error:
        code = grpc.StatusCode.UNAUTHENTICATED
        await context.abort(
            code if error.code == "unauthorized" else grpc.StatusCode.PERMISSION_DENIED,
            error.told(),
        )


class AccessLog:
    """The streams of the access log; `entries` counts what became of their entries."""

    def __init__(self, picker: Picker, access: Access) -> None:
        self._picker = picker
        self._access = access
        self.entries: Counter[str] = Counter()

    async def receive(self, requests: object, context: _Context) -> StreamAccessLogsResponse:
        """Note the entries of one stream; Envoy keeps it open as long as it runs."""
        del requests  # They are read one by one.
        rules = self._access.rules
        await _check(self._access, context)
        with contextlib.suppress(RefusalError):
            while (message := await _next(context, self.entries)) is not grpc.aio.EOF:
                if rules is not self._access.rules:  # Its key may have been revoked.
                    await _check(self._access, context)
                self._note(message)
        return StreamAccessLogsResponse()

    def _note(self, message: StreamAccessLogsMessage) -> None:
        self.entries["tcp"] += len(message.tcp_logs.log_entry)
        for entry in message.http_logs.log_entry:
            ended = read_entry(entry)
            self.entries["no_end" if ended is None else self._picker.note_end(ended)] += 1


class PickServer:
    """The gRPC server of a picker; it opens on the loop that starts it."""

    def __init__(
        self,
        service: Service,
        picker: Picker,
        config: FleetConfig,
        *,
        access: Access,
        limits: ConnectionLimits,
    ) -> None:
        self._service = service
        self._options = config.envoy
        self._host = config.envoy.host or config.server.host
        self._message_bytes = config.limits.body_bytes + _MESSAGE_BYTES
        self.streams = Streams(picker, config, access=access, limits=limits)
        self.log = AccessLog(picker, access)
        self._server: grpc.aio.Server | None = None
        self._is_ending = False
        self.address = ""

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidValueError: The address cannot be listened on.
        """
        options = [
            ("grpc.max_receive_message_length", self._message_bytes),
            ("grpc.max_concurrent_streams", self._options.streams),
            ("grpc.so_reuseport", 0),
            # Envoy may ask whether a connection is alive more often than gRPC expects it.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(self._handlers())
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = server.add_insecure_port(f"{host}:{self._options.port}")
        except RuntimeError:
            told = f"cannot listen on {host}:{self._options.port} for gRPC; choose another"
            raise InvalidValueError(told) from None
        await server.start()
        self._server, self.address = server, f"{host}:{port}"

    async def close(self, end_s: float) -> None:
        """Refuse new streams; cut those that are still open after `end_s` seconds."""
        self._is_ending = True
        if self._server is not None:
            ending = asyncio.ensure_future(self._server.stop(end_s))
            while self.streams.num_open and not ending.done():
                await asyncio.sleep(_TICK_S)
            await self._server.stop(None)  # Streams of the access log never end by themselves.
            await ending

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        process = grpc.stream_stream_rpc_method_handler(
            self.streams.process,
            _read(ProcessingRequest),
            ProcessingResponse.SerializeToString,
        )
        log = grpc.stream_unary_rpc_method_handler(
            self.log.receive,
            _read(StreamAccessLogsMessage),
            StreamAccessLogsResponse.SerializeToString,
        )
        check = grpc.unary_unary_rpc_method_handler(
            self._check_health,
            HealthCheckRequest.FromString,
            HealthCheckResponse.SerializeToString,
        )
        return [
            grpc.method_handlers_generic_handler(EXT_PROC, {"Process": process}),
            grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": log}),
            grpc.method_handlers_generic_handler(_HEALTH, {"Check": check}),
        ]

    async def _check_health(
        self, request: HealthCheckRequest, context: _Context
    ) -> HealthCheckResponse:
        if request.service == "liveness":
            return HealthCheckResponse(status=_SERVING)
        if request.service not in {"", "readiness", EXT_PROC}:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        is_ready = not self._is_ending and not self._service.missing()
        return HealthCheckResponse(status=_SERVING if is_ready else _NOT_SERVING)
