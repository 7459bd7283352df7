"""Envoy asks a picker where requests go, over real sockets."""

import json

import grpc
import grpc.aio
import pytest
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig

from tests.service.envoy_streams import (
    ENDPOINTS,
    PODS,
    STREAMED,
    USAGE,
    A,
    B,
    changed,
    destination,
    ends,
    envoy,
    options,
    picked,
    pod,
    prompt,
    refusal,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.service.route_pods import in_loop


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
