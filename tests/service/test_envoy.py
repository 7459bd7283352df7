"""Envoy asks a picker where requests go, over real sockets."""

import grpc
from kvbraid.gateway.envoy.processing import BodyMode

from tests.service.envoy_streams import (
    PODS,
    changed,
    destination,
    envoy,
    prompt,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.service.route_pods import in_loop

ENDPOINTS = {url.removeprefix("http://") for url in PODS.values()}


@in_loop
async def test_envoy_hears_where_a_buffered_request_goes() -> None:
    async with envoy() as them:
        stream = them.stream()
        head, body = await stream.ask(
            request_headers(BodyMode.BUFFERED, BodyMode.STREAMED, x_request_id="r-1"),
            request_body(prompt()),
        )
        assert head.WhichOneof("response") == "request_headers"
        assert destination(body) in ENDPOINTS
        assert changed(body)["x-request-id"] == "r-1"
        assert them.num_booked == 1
        await stream.ask(response_headers(), response_body(b"{}", ends=True))
        assert await stream.end() is grpc.StatusCode.OK
        await them.until(0)
        assert them.reports("end") == 1
