"""The access log of Envoy ends requests, and what operators see of all that."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kvbraid.gateway.envoy.protos.access_log_pb2 import (
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
)
from kvbraid.gateway.envoy.server import ACCESS_LOG
from kvbraid.service.config import FleetConfig
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.envoy_streams import (
    ENDPOINTS,
    STREAMED,
    A,
    B,
    ends,
    entry,
    envoy,
    metadata,
    picked,
    response_body,
    response_headers,
)
from tests.service.route_pods import in_loop


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
