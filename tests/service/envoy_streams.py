"""Envoy as a test plays it: streams of ext_proc and the access log, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import UInt32Value
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.gateway.envoy.protos.access_log_pb2 import (
    AccessLogCommon,
    Address,
    HTTPAccessLogEntries,
    HTTPAccessLogEntry,
    HTTPRequestProperties,
    HTTPResponseProperties,
    ResponseFlags,
    SocketAddress,
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
)
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import (
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    Metadata,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from kvbraid.gateway.envoy.protos.health_pb2 import HealthCheckRequest, HealthCheckResponse
from kvbraid.gateway.envoy.serve import PickApplication
from kvbraid.gateway.envoy.server import ACCESS_LOG, EXT_PROC
from kvbraid.gateway.prompts import PromptReader
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, Limits, PodConfig, Serving
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.http.access import Access
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.listed_tokens import ListedTokens

DESTINATION = "x-gateway-destination-endpoint"


# ---- messages -------------------------------------------------------------------------------


def prompt(num_tokens: int = 32, **more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": list(range(num_tokens)), **more}).encode()


def header_map(given: Mapping[str, str]) -> HeaderMap:
    return HeaderMap(
        headers=[HeaderValue(key=name, raw_value=it.encode()) for name, it in given.items()]
    )


def request_headers(
    request_mode: int | None = BodyMode.BUFFERED,
    response_mode: int = BodyMode.NONE,
    *,
    path: str = "/v1/completions",
    method: str = "POST",
    ends: bool = False,
    early: bool = False,
    hints: object = None,
    **headers: str,
) -> ProcessingRequest:
    given = {name.replace("_", "-"): it for name, it in headers.items()}
    message = ProcessingRequest(
        request_headers=HttpHeaders(
            headers=header_map({":method": method, ":path": path, **given}), end_of_stream=ends
        )
    )
    if request_mode is not None:
        message.protocol_config.CopyFrom(
            ProtocolConfiguration(
                request_body_mode=request_mode,
                response_body_mode=response_mode,
                send_body_without_waiting_for_header_response=early,
            )
        )
    if hints is not None:
        message.metadata_context.CopyFrom(
            metadata("envoy.lb.subset_hint", {f"{DESTINATION}-subset": hints})
        )
    return message


def metadata(namespace: str, fields: Mapping[str, Any]) -> Metadata:
    struct = Struct()
    struct.update(dict(fields))
    return Metadata(filter_metadata={namespace: struct})


def request_body(body: bytes, *, ends: bool = True) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=ends))


def request_trailers() -> ProcessingRequest:
    return ProcessingRequest(request_trailers=HttpTrailers())


def response_headers(
    status: int = 200, *, served: str = "", ends: bool = False, **headers: str
) -> ProcessingRequest:
    given = {name.replace("_", "-"): it for name, it in headers.items()}
    message = ProcessingRequest(
        response_headers=HttpHeaders(
            headers=header_map({":status": str(status), **given}), end_of_stream=ends
        )
    )
    if served:
        message.metadata_context.CopyFrom(metadata("envoy.lb", {f"{DESTINATION}-served": served}))
    return message


def response_body(body: bytes, *, ends: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=body, end_of_stream=ends))


def response_trailers() -> ProcessingRequest:
    return ProcessingRequest(response_trailers=HttpTrailers())


def entry(
    name: str,
    status: int = 200,
    *,
    endpoint: str = "",
    flags: Mapping[str, bool] | None = None,
    usage: Metadata | None = None,
    kind: int = 6,
    has_begun: bool = True,
) -> HTTPAccessLogEntry:
    """Return an entry of the access log, as Envoy writes it at the end of a request."""
    host, _, port = endpoint.rpartition(":")
    common = AccessLogCommon(
        upstream_remote_address=Address(
            socket_address=SocketAddress(address=host.strip("[]"), port_value=int(port or 0))
        ),
        response_flags=ResponseFlags(**(flags or {})),
        access_log_type=kind,
    )
    if has_begun:
        common.time_to_first_upstream_rx_byte.nanos = 1
    if usage is not None:
        common.metadata.ParseFromString(usage.SerializeToString())
    return HTTPAccessLogEntry(
        common_properties=common,
        request=HTTPRequestProperties(request_id=name),
        response=HTTPResponseProperties(response_code=UInt32Value(value=status)),
    )


def changed(reply: ProcessingResponse) -> dict[str, str]:
    """The headers that an answer sets."""
    part: Any = getattr(reply, reply.WhichOneof("response") or "")
    mutation = part.headers if reply.HasField("immediate_response") else None
    mutation = mutation or part.response.header_mutation
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}


def destination(reply: ProcessingResponse) -> str:
    """Where an answer sends a request; header and metadata must agree."""
    named = changed(reply)[DESTINATION]
    struct = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    assert struct.fields[DESTINATION].string_value == named
    return named


def refused(reply: ProcessingResponse) -> tuple[int, str]:
    """The status and the code of an immediate answer."""
    told = reply.immediate_response
    return told.status.code, json.loads(told.body)["error"]["code"]


# ---- a client -------------------------------------------------------------------------------


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


def log_of(*entries: HTTPAccessLogEntry) -> StreamAccessLogsMessage:
    return StreamAccessLogsMessage(http_logs=HTTPAccessLogEntries(log_entry=entries))


class Stream:
    """One stream of ext_proc, as Envoy opens it."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        call = channel.stream_stream(
            f"/{EXT_PROC}/Process",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )
        self.call: Any = call(metadata=bearer(token))

    async def send(self, *messages: ProcessingRequest) -> None:
        for message in messages:
            await self.call.write(message)

    async def reply(self) -> ProcessingResponse:
        reply = await self.call.read()
        assert reply is not grpc.aio.EOF, await self.call.code()
        found: ProcessingResponse = reply
        return found

    async def ask(self, *messages: ProcessingRequest) -> list[ProcessingResponse]:
        """Send messages, and return an answer to each."""
        await self.send(*messages)
        return [await self.reply() for _ in messages]

    async def end(self) -> grpc.StatusCode:
        """Close the stream in an orderly way; return its status when the server has, too."""
        await self.call.done_writing()
        assert await self.call.read() is grpc.aio.EOF
        return await self.code()

    async def code(self) -> grpc.StatusCode:
        found: grpc.StatusCode = await self.call.code()
        return found


@dataclass
class Envoy:
    """A picker that runs, and a channel to it."""

    app: PickApplication
    service: Service
    index: FakeIndex
    channel: grpc.aio.Channel

    def stream(self, token: str | None = None) -> Stream:
        return Stream(self.channel, token)

    @property
    def num_booked(self) -> int:
        return self.service.picking.num_booked()

    def log_stream(self, *messages: StreamAccessLogsMessage, token: str | None = None) -> Any:  # noqa: ANN401 - a call of gRPC
        """Open a stream of the access log; without messages it stays open for some."""
        method = self.channel.stream_unary(
            f"/{ACCESS_LOG}/StreamAccessLogs",
            StreamAccessLogsMessage.SerializeToString,
            StreamAccessLogsResponse.FromString,
        )
        return method(iter(messages) if messages else None, metadata=bearer(token))

    async def log(self, *entries: HTTPAccessLogEntry) -> None:
        """Send entries of the access log, and wait until they were read."""
        await self.log_stream(log_of(*entries))

    async def health(self, name: str) -> int:
        check = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            HealthCheckRequest.SerializeToString,
            HealthCheckResponse.FromString,
        )
        status: int = (await check(HealthCheckRequest(service=name))).status
        return status

    async def until(self, num_booked: int) -> None:
        """Let everything else run until so many requests are booked, and no stream is open."""
        while self.num_booked != num_booked or self.app.grpc.streams.num_open:
            await asyncio.sleep(0.001)

    def reports(self, event: str, status: str = "noted") -> int:
        return self.service.picking.reports[event, status]


def pod(url: str | None, **more: Any) -> PodConfig:  # noqa: ANN401 - fields of a pod
    fields = {"model": "m", "endpoint": "tcp://h:1", **more}
    return PodConfig(serving=Serving(url=url), **fields)


PODS = {"a": "http://10.0.0.1:8000", "b": "http://10.0.0.2:8000"}


@asynccontextmanager
async def envoy(
    pods: Mapping[str, str | PodConfig] | None = None,
    *,
    options: EnvoyOptions | None = None,
    config: FleetConfig | None = None,
    limits: Limits | None = None,
    access: Access | None = None,
    reader: PromptReader | None = None,
) -> AsyncIterator[Envoy]:
    """Run a picker for these pods, by their URLs; nothing may be left of a request at the end."""
    index = FakeIndex()
    limits = limits or Limits()
    service = Service(index, FakeFeed(), limits=limits)
    for name, it in (PODS if pods is None else pods).items():
        service.put(PodId(name), it if isinstance(it, PodConfig) else pod(it))
    config = replace(
        config or FleetConfig(),
        limits=limits,
        envoy=options or EnvoyOptions(host="127.0.0.1", port=0),
    )
    app = PickApplication(service, reader or ListedTokens(), config, access or Access())
    await app.start()
    try:
        async with grpc.aio.insecure_channel(app.grpc.address) as channel:
            yield Envoy(app, service, index, channel)
    finally:
        await app.grpc.close(0.2)
        await asyncio.sleep(0)
    assert service.picking.num_booked() == 0
    app.picker.check_integrity()
    assert app.grpc.streams.num_open == 0
    assert app.connection_limits.held_bytes == 0


# ---- what a test does often -----------------------------------------------------------------

ENDPOINTS = {url.removeprefix("http://") for url in PODS.values()}
A, B = sorted(ENDPOINTS)
STREAMED = BodyMode.STREAMED
USAGE = b'{"usage": {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}}'


def options(**more: Any) -> EnvoyOptions:  # noqa: ANN401 - fields of the options
    return EnvoyOptions(**{"host": "127.0.0.1", "port": 0, **more})


async def picked(
    them: Envoy,
    name: str = "r",
    response_mode: BodyMode = BodyMode.NONE,
    **headers: Any,  # noqa: ANN401
) -> tuple[Stream, str]:
    """Ask about a buffered prompt; return the stream, and where the request goes."""
    stream = them.stream()
    head = request_headers(BodyMode.BUFFERED, response_mode, x_request_id=name, **headers)
    _, reply = await stream.ask(head, request_body(prompt()))
    return stream, destination(reply)


async def refusal(them: Envoy, *messages: ProcessingRequest) -> tuple[int, str]:
    """The status and code of the last answer, to a request that no pod gets."""
    stream = them.stream()
    await stream.send(*messages)
    while not (reply := await stream.reply()).HasField("immediate_response"):
        pass
    assert await stream.end() is grpc.StatusCode.OK
    return refused(reply)


async def ends(them: Envoy, *names: str) -> None:
    await them.log(*(entry(name) for name in names))
