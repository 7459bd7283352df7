"""What Envoy asks about is booked once, and released by whatever ends it."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from kvbraid.gateway.prompts import Prompt
from kvbraid.service.config import FleetConfig
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.envoy_streams import (
    DESTINATION,
    STREAMED,
    Stream,
    changed,
    destination,
    ends,
    envoy,
    options,
    picked,
    prompt,
    refusal,
    refused,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.service.listed_tokens import ListedTokens
from tests.service.route_pods import in_loop


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


class LeavesWhenAnswered:
    """A stream of Envoy that ends while it is written where its request goes."""

    def __init__(self, *messages: ProcessingRequest) -> None:
        self._messages = iter(messages)
        self.is_told = asyncio.Event()

    def invocation_metadata(self) -> None:
        """There is none."""

    async def read(self) -> ProcessingRequest:
        return next(self._messages)

    async def write(self, reply: ProcessingResponse) -> None:
        if DESTINATION in changed(reply):
            self.is_told.set()
            await asyncio.Event().wait()  # Until the stream is cancelled.


@in_loop
async def test_a_request_whose_stream_ends_with_the_answer_is_sent_and_its_log_ends_it() -> None:
    async with envoy() as them:
        head = request_headers(BodyMode.BUFFERED, BodyMode.NONE, x_request_id="r")
        leaving = LeavesWhenAnswered(head, request_body(prompt()))
        serving = asyncio.ensure_future(them.app.grpc.streams.process(None, cast("Any", leaving)))
        await leaving.is_told.wait()
        serving.cancel()
        await asyncio.wait([serving])
        assert them.num_booked == 1
        assert them.app.grpc.streams.answers == {"sent": 1}
        assert not them.service.picking.reports
        await ends(them, "r")
        assert them.reports("end") == 1


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
