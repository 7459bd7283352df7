"""Envoy asks a picker where requests go, over real sockets."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.gateway.envoy.protos.access_log_pb2 import (
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
)
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import ProcessingRequest
from kvbraid.gateway.envoy.server import ACCESS_LOG, EXT_PROC
from kvbraid.gateway.prompts import Prompt
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, Limits, PodConfig
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access

from tests.service.envoy_streams import (
    PODS,
    Envoy,
    Stream,
    changed,
    destination,
    entry,
    envoy,
    metadata,
    pod,
    prompt,
    refused,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.service.listed_tokens import ListedTokens
from tests.service.route_pods import in_loop

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


# ---- where a request goes -------------------------------------------------------------------


@in_loop
async def test_envoy_hears_where_a_buffered_request_goes() -> None:
    async with envoy() as them:
        stream, endpoint = await picked(them, "r-1", STREAMED)
        assert endpoint in ENDPOINTS
        assert them.num_booked == 1
        await stream.ask(response_headers(), response_body(USAGE, ends=True))
        assert await stream.end() is grpc.StatusCode.OK
        await them.until(0)
        assert them.reports("first_token") == them.reports("end") == 1
        [ladder] = them.service.picking.ladder.answer().models
        assert (ladder.rungs.prompt, ladder.rungs.delivered) == (32, 16)
        assert them.app.picker.counts.usage == {"counted": 1}


@in_loop
async def test_a_body_in_full_duplex_comes_back_byte_by_byte() -> None:
    async with envoy() as them:
        stream = them.stream()
        body = prompt(30_000)
        pieces = [body[start : start + 16_384] for start in range(0, len(body), 16_384)]
        head = request_headers(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
        await stream.send(head, *(request_body(piece, ends=False) for piece in pieces))
        await stream.send(request_body(b""))
        assert destination(await stream.reply()) in ENDPOINTS
        back = b""
        while True:
            streamed = (await stream.reply()).request_body.response.body_mutation
            back += streamed.streamed_response.body
            if streamed.streamed_response.end_of_stream:
                break
        assert back == body
        [_, event, last] = await stream.ask(
            response_headers(), response_body(b"data: 1\n\n"), response_body(b"", ends=True)
        )
        mutations = [it.response_body.response.body_mutation for it in (event, last)]
        told = [
            (it.streamed_response.body, it.streamed_response.end_of_stream) for it in mutations
        ]
        assert told == [(b"data: 1\n\n", False), (b"", True)]
        await stream.end()
        assert them.service.picking.ladder.answer().models[0].rungs.prompt == 30_000


@pytest.mark.parametrize("path", ["/v1/responses/r-1", "/v1/files?a=b", "/tokenize"])
@in_loop
async def test_a_request_without_a_prompt_goes_by_load(path: str) -> None:
    async with envoy() as them:
        stream = them.stream()
        [reply] = await stream.ask(
            request_headers(path=path, method="GET", ends=True, x_request_id="r")
        )
        assert destination(reply) in ENDPOINTS
        await stream.end()
        await ends(them, "r")


@in_loop
async def test_the_models_are_listed_without_a_pod() -> None:
    async with envoy({"a": pod(None), "b": pod(PODS["b"], loras={"l": "/l"})}) as them:
        stream = them.stream()
        [reply] = await stream.ask(request_headers(path="/v1/models", method="GET", ends=True))
        told = reply.immediate_response
        models = [row["id"] for row in json.loads(told.body)["data"]]
        assert (told.status.code, models) == (200, ["l", "m"])
        assert await stream.end() is grpc.StatusCode.OK
        assert them.num_booked == 0


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/../metrics", "/shutdown", "", "*"])
@in_loop
async def test_what_engines_offer_to_their_operators_is_for_them_alone(path: str) -> None:
    async with envoy() as them:
        head = request_headers(path=path, method="GET", ends=True)
        assert await refusal(them, head) == (404, "not_found")


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b'])
@in_loop
async def test_a_request_without_a_usual_name_gets_one(given: str) -> None:
    async with envoy() as them:
        stream = them.stream()
        _, reply = await stream.ask(request_headers(x_request_id=given), request_body(prompt()))
        name = changed(reply)["x-request-id"]
        assert name != given
        await stream.end()
        await ends(them, name)
        assert them.reports("end") == 1


@in_loop
async def test_an_engine_with_several_ranks_is_told_which() -> None:
    async with envoy({"a": pod(PODS["a"], dp_size=4)}) as them:
        stream = them.stream()
        head = request_headers(x_request_id="r", x_data_parallel_rank="77")
        _, reply = await stream.ask(head, request_body(prompt()))
        booked = them.service.picking.rank("r")
        assert booked is not None
        assert changed(reply)["x-data-parallel-rank"] == str(booked[1])
        await stream.end()
        await ends(them, "r")


@pytest.mark.parametrize(
    "hints", [["10.0.0.2:8000"], "10.0.0.2:8000", ["10.0.0.2"], "10.0.0.9:1, 10.0.0.2:8000"]
)
@in_loop
async def test_a_data_plane_can_leave_few_to_choose_from(hints: object) -> None:
    async with envoy() as them:
        for number in range(8):
            stream, endpoint = await picked(them, f"{number}", hints=hints)
            assert endpoint == B
            await stream.end()
        await ends(them, *map(str, range(8)))
        assert them.app.picker.hints["of_a_pod"] == 8


@pytest.mark.parametrize("hints", [[], "", ["10.0.0.9:8000"], ["10.0.0.2:1"], "evil"])
@in_loop
async def test_if_none_of_the_few_is_a_pod_there_is_none(hints: object) -> None:
    async with envoy() as them:
        messages = (request_headers(hints=hints), request_body(prompt()))
        assert await refusal(them, *messages) == (503, "no_pod")


@pytest.mark.parametrize("url", ["https://10.0.0.2:1", "http://h:1", "http://10.0.0.2/x", None])
@in_loop
async def test_a_pod_without_an_address_that_envoy_takes_gets_nothing(url: str | None) -> None:
    async with envoy({"a": PODS["a"], "b": pod(url)}) as them:
        for number in range(6):
            stream, endpoint = await picked(them, f"{number}")
            assert endpoint == A
            await stream.end()
        await ends(them, *map(str, range(6)))
        them.service.put(PodId("a"), pod(url))
        messages = (request_headers(), request_body(prompt()))
        assert await refusal(them, *messages) == (503, "no_pod")


@in_loop
async def test_an_address_of_ipv6_has_brackets() -> None:
    async with envoy({"a": "http://[fd00::1]:8000"}) as them:
        stream, endpoint = await picked(them)
        assert endpoint == "[fd00::1]:8000"
        await stream.end()
        await ends(them, "r")


@in_loop
async def test_others_are_named_for_retries_if_that_is_wanted() -> None:
    pods = {name: f"http://10.0.0.{number}:80" for number, name in enumerate("abcde")}
    async with envoy(pods, options=options(fallbacks=2)) as them:
        stream, endpoints = await picked(them)
        named = endpoints.split(",")
        assert len({*named}) == 3
        assert {f"http://{each}" for each in named} <= {*pods.values()}
        booked = them.service.picking.rank("r")
        assert booked is not None
        assert pods[booked[0]] == f"http://{named[0]}"
        await stream.end()
        await ends(them, "r")


@in_loop
async def test_a_pod_with_ranks_is_no_fallback_for_one_without() -> None:
    pods: dict[str, str | PodConfig] = {"a": PODS["a"], "b": pod(PODS["b"], dp_size=2)}
    async with envoy(pods, options=options(fallbacks=2)) as them:
        for number in range(12):
            stream, endpoint = await picked(them, f"{number}")
            assert endpoint in ENDPOINTS
            await stream.end()
        await ends(them, *map(str, range(12)))


# ---- bookings -------------------------------------------------------------------------------


@in_loop
async def test_a_request_that_is_asked_about_three_times_is_booked_once() -> None:
    async with envoy() as them:
        streams = [(await picked(them, "r", STREAMED))[0] for _ in range(3)]
        assert them.num_booked == 1
        assert them.service.picking.counts()["asked_again"] == 2
        for stream in streams[:2]:  # They are not the last who asked: the booking is not theirs.
            assert await stream.end() is grpc.StatusCode.OK
        assert them.num_booked == 1
        assert await streams[2].end() is grpc.StatusCode.OK
        await them.until(0)
        assert them.service.picking.reports == {("failed", "noted"): 1}


@pytest.mark.parametrize("messages", [[], [response_headers()]])
@in_loop
async def test_a_stream_that_is_cancelled_releases_its_booking_once(
    messages: list[ProcessingRequest],
) -> None:
    async with envoy() as them:
        stream, _ = await picked(them, "r", STREAMED)
        await stream.ask(*messages)
        stream.call.cancel()
        await them.until(0)
        assert them.service.picking.reports == {("failed", "noted"): 1}


@in_loop
async def test_a_client_that_leaves_in_the_middle_of_an_answer_has_had_a_part_of_it() -> None:
    async with envoy() as them:
        stream, _ = await picked(them, "r", STREAMED)
        await stream.ask(response_headers(), response_body(b"data: 1\n\n"))
        stream.call.cancel()
        await them.until(0)
        assert them.service.picking.reports == {
            ("first_token", "noted"): 1, ("end", "noted"): 1
        }  # fmt: skip


@in_loop
async def test_a_stream_that_ends_before_its_question_books_nothing() -> None:
    async with envoy() as them:
        duplex = request_headers(BodyMode.FULL_DUPLEX_STREAMED)
        for messages in ((request_headers(),), (duplex, request_body(b"{", ends=False))):
            stream = them.stream()
            await stream.send(*messages)
            stream.call.cancel()
        await them.until(0)
        assert not them.service.picking.reports


class SlowTokens(ListedTokens):
    """Reads a prompt when it is allowed to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may = asyncio.Event()

    async def read(self, path: str, headers: Mapping[str, str], body: bytes) -> Prompt:
        self.asked.set()
        await self.may.wait()
        return await super().read(path, headers, body)


@in_loop
async def test_a_decision_that_is_late_is_a_refusal_and_books_nothing() -> None:
    reader = SlowTokens()
    async with envoy(options=options(decide_s=0.05), reader=reader) as them:
        messages = (request_headers(), request_body(prompt()))
        assert await refusal(them, *messages) == (503, "not_decided")
        await them.until(0)
        assert them.app.grpc.streams.answers == {"not_decided": 1}


@in_loop
async def test_a_stream_that_is_cancelled_while_its_question_waits_books_nothing() -> None:
    reader = SlowTokens()
    async with envoy(reader=reader) as them:
        stream = them.stream()
        await stream.send(request_headers(), request_body(prompt()))
        await reader.asked.wait()
        stream.call.cancel()
        await them.until(0)
        reader.may.set()
        await asyncio.sleep(0.01)
        assert them.num_booked == 0


@in_loop
async def test_above_the_limit_of_questions_nobody_is_told() -> None:
    reader = SlowTokens()
    config = FleetConfig(forwarding=ForwardingOptions(requests=1))
    async with envoy(config=config, reader=reader) as them:
        first = them.stream()
        await first.send(request_headers(x_request_id="r"), request_body(prompt()))
        await reader.asked.wait()
        stream = them.stream()
        _, reply = await stream.ask(request_headers(), request_body(prompt()))
        assert refused(reply) == (429, "too_many_requests")
        assert changed(reply) == {"content-type": "application/json", "retry-after": "1"}
        await stream.end()
        reader.may.set()
        await first.reply()
        destination(await first.reply())
        await first.end()
        await ends(them, "r")


@in_loop
async def test_above_the_limit_of_streams_a_request_is_refused_and_others_go_on() -> None:
    async with (
        envoy(options=options(streams=2)) as them,
        grpc.aio.insecure_channel(
            them.app.grpc.address, [("grpc.use_local_subchannel_pool", 1)]
        ) as other,
    ):
        streams = [them.stream() for _ in range(2)]
        for stream in streams:
            await stream.ask(request_headers())
        third = Stream(other)
        assert refused(await third.reply()) == (429, "too_many_requests")
        assert await third.end() is grpc.StatusCode.OK
        for stream in streams:
            stream.call.cancel()
        await them.until(0)


# ---- limits and hostile input ---------------------------------------------------------------


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED])
@in_loop
async def test_a_body_has_a_limit(mode: BodyMode) -> None:
    async with envoy(limits=Limits(body_bytes=100)) as them:
        messages = (request_headers(mode), request_body(b"x" * 101))
        assert await refusal(them, *messages) == (413, "body_too_large")


@in_loop
async def test_all_bodies_together_have_a_limit() -> None:
    async with envoy(limits=Limits(body_bytes=100, bodies_bytes=150)) as them:
        first = them.stream()
        duplex = request_headers(BodyMode.FULL_DUPLEX_STREAMED)
        await first.send(duplex, request_body(b"x" * 100, ends=False))
        while them.app.connection_limits.held_bytes != 100:
            await asyncio.sleep(0.001)
        assert await refusal(them, duplex, request_body(b"x" * 51)) == (503, "overloaded")
        first.call.cancel()
        await them.until(0)
        assert them.app.connection_limits.held_bytes == 0


@in_loop
async def test_a_message_above_all_limits_ends_its_own_stream_alone() -> None:
    async with envoy(limits=Limits(body_bytes=1000)) as them:
        stream = them.stream()
        await stream.send(request_headers())
        await stream.reply()
        await stream.send(request_body(b"x" * (2 << 20)))
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await them.until(0)
        other, _ = await picked(them)
        await other.end()
        await ends(them, "r")


@in_loop
async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with envoy(limits=Limits(request_s=1)) as them:
        for mode in (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED):
            assert await refusal(them, request_headers(mode)) == (408, "request_timeout")


@in_loop
async def test_a_body_that_comes_without_end_is_not_waited_for() -> None:
    async with envoy(limits=Limits(request_s=1)) as them:
        stream = them.stream()
        await stream.send(request_headers(BodyMode.FULL_DUPLEX_STREAMED))
        coming = asyncio.ensure_future(stream.reply())
        while not coming.done():
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.send(request_body(b"", ends=False))
            await asyncio.sleep(0)  # A send that is refused at once lets nothing else run.
        assert refused(await coming) == (408, "request_timeout")


@pytest.mark.parametrize("method", [f"/{EXT_PROC}/Process", f"/{ACCESS_LOG}/StreamAccessLogs"])
@in_loop
async def test_garbage_ends_its_own_stream_alone(method: str) -> None:
    async with envoy() as them:
        for garbage in (b"\xff" * 40, b"\x12\x7f", b"\x08", b"\x1a\x03abc"):
            call: Any = them.channel.stream_stream(method)()
            await call.write(garbage)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
            assert await call.code() is grpc.StatusCode.OK
        counts = them.app.grpc.streams.messages + them.app.grpc.log.entries
        assert counts["garbage"] >= 2
        stream, _ = await picked(them)
        await stream.end()
        await ends(them, "r")


@in_loop
async def test_a_message_of_a_later_version_is_counted_and_the_stream_goes_on() -> None:
    async with envoy() as them:
        call: Any = them.channel.stream_stream(f"/{EXT_PROC}/Process")()
        await call.write(b"\x82\x7d\x03abc")  # Field 2000.
        await call.write(request_headers(method="GET", ends=True).SerializeToString())
        assert await call.read() is not grpc.aio.EOF
        call.cancel()
        assert them.app.grpc.streams.messages["unknown"] == 1
        await them.log(*(entry(name) for name, _ in them.service.picking._router._bookings))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"\xff", b"[" * 50_000, b'{"model": 1}', b'{"prompt": [-1]}']
)
@in_loop
async def test_a_body_that_is_wrong_goes_by_load_and_its_engine_says_so(body: bytes) -> None:
    async with envoy() as them:
        stream = them.stream()
        _, reply = await stream.ask(request_headers(x_request_id="r"), request_body(body))
        assert destination(reply) in ENDPOINTS
        await stream.end()
        await ends(them, "r")
        assert them.app.picker.counts.unknown.total() == 1


@in_loop
async def test_a_model_that_nobody_serves_is_refused() -> None:
    async with envoy() as them:
        messages = (request_headers(), request_body(prompt(model="other")))
        assert await refusal(them, *messages) == (404, "unknown_model")


@in_loop
async def test_a_pod_that_is_removed_meanwhile_leaves_no_booking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with envoy() as them:
        monkeypatch.setattr(them.app.picker.fleet, "target", lambda pod: None)
        messages = (request_headers(), request_body(prompt()))
        assert await refusal(them, *messages) == (503, "no_pod")
        await them.until(0)
        assert them.service.picking.reports == {("failed", "noted"): 1}


@in_loop
async def test_an_error_of_ours_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with envoy() as them:
        them.index.fail = ValueError("boom")
        messages = (request_headers(), request_body(prompt()))
        assert await refusal(them, *messages) == (500, "internal")
        assert "a stream of Envoy failed" in caplog.text
        them.index.fail = None


# ---- who may ask, and health ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "token", "code"),
    [
        (Access(token="t"), None, grpc.StatusCode.UNAUTHENTICATED),
        (Access(token="t"), "wrong", grpc.StatusCode.UNAUTHENTICATED),
        (Access(token="t"), "t", None),
        (Access(changes_allowed=False), None, grpc.StatusCode.PERMISSION_DENIED),
        (Access(hosts=frozenset()), None, None),
    ],
)
@in_loop
async def test_who_may_not_change_anything_may_not_ask(
    access: Access, token: str | None, code: grpc.StatusCode | None
) -> None:
    async with envoy(access=access) as them:
        stream = them.stream(token)
        if code is None:
            await stream.ask(request_headers())
            stream.call.cancel()
        else:
            assert await stream.code() is code
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await them.log(entry("r"))
            assert told.value.code() is code
        await them.until(0)


@in_loop
async def test_health_has_a_name_for_each_question() -> None:
    async with envoy() as them:
        for name in ("", "liveness", "readiness", EXT_PROC):
            assert await them.health(name) == 1
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await them.health("other")
        them.app.grpc._is_ending = True
        assert [await them.health(name) for name in ("liveness", "readiness")] == [1, 2]


@in_loop
async def test_an_address_that_is_taken_is_named() -> None:
    async with envoy() as them:
        port = int(them.app.grpc.address.rpartition(":")[2])
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port} for gRPC"):
            async with envoy(options=options(port=port)):
                pass


# ---- the access log -------------------------------------------------------------------------


@in_loop
async def test_an_entry_of_the_access_log_ends_a_request_with_its_usage() -> None:
    async with envoy() as them:
        stream, endpoint = await picked(them)
        await stream.end()
        assert them.num_booked == 1
        usage = metadata("kvbraid", {"prompt_tokens": 32, "cached_tokens": 16})
        for _ in range(2):
            await them.log(entry("r", endpoint=endpoint, usage=usage))
        assert them.num_booked == 0
        assert them.app.grpc.log.entries == {"tcp": 0, "noted": 1, "unknown": 1}
        [ladder] = them.service.picking.ladder.answer().models
        assert (ladder.rungs.delivered, them.reports("end", "unknown")) == (16, 1)
        assert them.app.picker.counts.usage == {"counted": 1}


@in_loop
async def test_an_answer_of_another_pod_says_nothing_of_the_chosen_one() -> None:
    async with envoy() as them:
        stream, endpoint = await picked(them)
        await stream.end()
        (other,) = ENDPOINTS - {endpoint}
        await them.log(entry("r", endpoint=other))
        assert them.app.grpc.log.entries["other_pod"] == them.reports("failed") == 1


@in_loop
async def test_a_pod_that_fails_often_is_left_alone() -> None:
    config = FleetConfig(forwarding=ForwardingOptions(failures=2))
    async with envoy(config=config) as them:
        flags = {"upstream_connection_failure": True}
        for number in range(2):
            stream, _ = await picked(them, f"{number}", hints=[A])
            await stream.end()
            await them.log(entry(f"{number}", 503, endpoint=A, flags=flags))
        assert them.app.picker.fleet.resting == {"a"}
        stream, endpoint = await picked(them)
        assert endpoint == B
        await stream.end()
        await them.log(entry("r", endpoint=B))
        them.app.sweep(asyncio.get_running_loop().time() + 60)
        assert not them.app.picker.fleet.resting


@in_loop
async def test_everything_is_in_the_metrics() -> None:
    async with envoy() as them:
        stream, _ = await picked(them, "r", STREAMED)
        await stream.ask(response_headers(served=B), response_body(b"{}", ends=True))
        await stream.end()
        await them.until(0)
        await them.log(entry(""))
        text = them.app.metrics.render().decode()
        for line in (
            "kvbraid_envoy_streams 0.0",
            'kvbraid_envoy_messages_total{kind="request_body"} 1.0',
            'kvbraid_envoy_answers_total{answer="sent"} 1.0',
            'kvbraid_envoy_entries_total{entry="no_end"} 1.0',
        ):
            assert line in text.splitlines()


@in_loop
async def test_a_log_that_stays_open_does_not_hold_up_the_end() -> None:
    async with envoy() as them:
        method = them.channel.stream_unary(
            f"/{ACCESS_LOG}/StreamAccessLogs",
            StreamAccessLogsMessage.SerializeToString,
            StreamAccessLogsResponse.FromString,
        )
        call: Any = method()
        await call.write(StreamAccessLogsMessage(http_logs={"log_entry": [entry("")]}))
        while not them.app.grpc.log.entries:
            await asyncio.sleep(0.001)
        await asyncio.wait_for(them.app.grpc.close(1000), 20)
        call.cancel()


@in_loop
async def test_it_is_said_once_that_nobody_reports_first_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routing = FleetConfig().routing
    told = replace(routing, options=replace(routing.options, first_tokens=False))
    for config, times in ((FleetConfig(), 1), (FleetConfig(routing=told), 0)):
        caplog.clear()
        async with envoy(config=config) as them:
            for number in range(2):
                stream, _ = await picked(them, f"{number}")
                await stream.end()
            await ends(them, "0", "1")
        assert caplog.text.count("first_tokens = false") == times
