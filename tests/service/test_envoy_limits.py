"""What Envoy may send a picker, who may ask one, and its health."""

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio
import pytest
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.gateway.envoy.server import ACCESS_LOG, EXT_PROC
from kvbraid.service.config import Limits, ServerOptions
from kvbraid.service.http.access import Access

from tests.service.envoy_streams import (
    ENDPOINTS,
    destination,
    ends,
    entry,
    envoy,
    log_of,
    options,
    picked,
    prompt,
    refusal,
    refused,
    request_body,
    request_headers,
)
from tests.service.route_pods import in_loop

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
async def test_a_token_that_is_revoked_ends_open_streams() -> None:
    access = Access(token="t")
    async with envoy(access=access) as them:
        log = them.log_stream(token="t")
        await log.write(log_of(entry("a")))
        open_one, before = them.stream("t"), them.stream("t")
        await open_one.ask(request_headers(x_request_id="late"))
        await before.ask(request_headers(x_request_id="early"), request_body(prompt()))
        while not (them.app.grpc.log.entries and them.app.grpc.streams.num_open == 2):
            await asyncio.sleep(0.001)
        access.change(ServerOptions(token="u"), [])
        await log.write(log_of(entry("b")))
        assert await log.code() is grpc.StatusCode.UNAUTHENTICATED
        (told,) = await open_one.ask(request_body(prompt()))
        assert refused(told) == (401, "unauthorized")
        assert them.num_booked == 1  # What was booked before goes on.
        assert them.app.grpc.log.entries.total() == 1
        before.call.cancel()
        await them.log_stream(log_of(entry("early")), token="u")
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
