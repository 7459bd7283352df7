"""Other data planes ask a gateway where a request goes, over real sockets."""

import asyncio
import json
from typing import Any

import pytest
from kvbraid.gateway.asking import first_model
from kvbraid.gateway.prompts import path_of
from kvbraid.ids import PodId
from kvbraid.service.config import Limits, PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access

from tests.service.route_pods import Fleet, fleet, get, greets, in_loop, post, prompt

PATH = "/internal/route"


def pod(url: str | None, model: str = "m") -> PodConfig:
    return PodConfig(model=model, endpoint="tcp://h:1", serving=Serving(url=url))


async def directions(
    them: Fleet, body: bytes | None = None, **headers: str | None
) -> dict[str, Any]:
    head, answer = await them.ask(post(PATH, body, **headers))
    assert head.status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


async def refusal(them: Fleet, request: bytes) -> tuple[int, str]:
    head, answer = await them.ask(request)
    return head.status, json.loads(answer)["error"]["code"]


async def ends(them: Fleet, name: str, event: str = "end") -> str:
    told = json.dumps({"pick": name, "event": event}).encode()
    _, answer = await them.ask(post("/v1/picked", told))
    status: str = json.loads(answer)["status"]
    return status


@in_loop
async def test_a_data_plane_hears_where_a_request_goes_and_says_when_it_has_ended() -> None:
    async with fleet(greets) as them:
        found = await directions(them, x_request_id="r-1")
        assert found == {
            "host": "127.0.0.1",
            "port": them.engines["a"].port,
            "replica_id": "a",
            "request_headers": {"x-request-id": "r-1"},
        }
        assert not them.engines["a"].asked  # The data plane sends it itself.
        assert them.num_booked == 1
        assert await ends(them, "r-1") == "noted"
        assert them.num_booked == 0
        [ladder] = them.service.picking.ladder.answer().models
        assert ladder.rungs.prompt == 32


@in_loop
async def test_a_request_that_is_asked_about_three_times_is_booked_once() -> None:
    async with fleet(greets, greets) as them:
        for _ in range(3):
            await directions(them, x_request_id="r-1")
        assert them.num_booked == 1
        assert them.service.picking.counts()["asked_again"] == 2
        assert [await ends(them, "r-1") for _ in range(2)] == ["noted", "unknown"]


@pytest.mark.parametrize("given", [None, "a b", "x" * 129, 'a"b', "a\\b", "a}b", "\u00e9"])
@in_loop
async def test_a_request_without_a_usual_name_gets_one(given: str | None) -> None:
    async with fleet(greets) as them:
        found = [await directions(them, None, x_request_id=given) for _ in range(2)]
        names = [each["request_headers"]["x-request-id"] for each in found]
        assert len({*names, given}) == 3
        assert [await ends(them, name) for name in names] == ["noted", "noted"]


@in_loop
async def test_an_engine_with_several_ranks_is_to_be_told_which() -> None:
    async with fleet(greets, dp_size=4) as them:
        found = await directions(them, x_request_id="r")
        rank = found["request_headers"]["x-data-parallel-rank"]
        assert found["replica_id"] == f"a/{rank}"
        assert await ends(them, "r", "failed") == "noted"


@in_loop
async def test_http_1_0_is_answered_since_that_is_how_data_planes_ask() -> None:
    async with fleet(greets) as them:
        asked = post(PATH, x_request_id="r", connection="close").replace(b"HTTP/1.1", b"HTTP/1.0")
        client = await them.connect()
        await client.send(asked)
        head, body = await client.answer()
        assert (head.status, json.loads(body)["replica_id"]) == (200, "a")
        assert await client.is_cut()
        await ends(them, "r")


# ---- bodies -----------------------------------------------------------------------------------


@in_loop
async def test_of_a_cut_body_nothing_decides_but_load_and_its_length_is_load() -> None:
    async with fleet(greets) as them:
        cut = prompt(4000)[:100]
        await directions(them, cut, x_body_truncated="100/40000", x_request_id="r")
        assert them.proxy.counts.unknown == {"cut_body": 1}
        booking = them.service.picking._router.booking("r")
        assert booking is not None
        assert booking.tokens == 10_000
        await ends(them, "r")


@pytest.mark.parametrize(
    ("told", "tokens"), [("1", 5), ("a/b", 5), ("-1/-9", 5), ("1/" + "9" * 15, 50), ("1/0", 1)]
)
@in_loop
async def test_no_word_about_a_cut_body_makes_it_longer_than_prompts_are(
    told: str, tokens: int
) -> None:
    async with fleet(greets, limits=Limits(tokens=50)) as them:
        await directions(them, b"x" * 20, x_body_truncated=told, x_request_id="r")
        booking = them.service.picking._router.booking("r")
        assert booking is not None
        assert booking.tokens == tokens
        await ends(them, "r")


@in_loop
async def test_the_model_of_a_cut_body_is_its_first_field_or_that_of_the_header() -> None:
    async with fleet(greets, greets) as them:
        them.service.put(PodId("b"), pod(them.engines["b"].url, "n"))
        cut = {"x_body_truncated": "9/99", "x_request_id": "r"}
        named = b'{"model": "n", "prompt": [1, 2'
        assert (await directions(them, named, **cut))["replica_id"] == "b"
        found = await directions(them, named, x_kvbraid_model="m", **cut)
        assert found["replica_id"] == "a"
        for body in (b'{"messages": [], "model": "n"', b'{"model": "n', b""):
            assert await refusal(them, post(PATH, body, **cut)) == (404, "unknown_model")
        await ends(them, "r")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": 1}', b'"\xed\xa0\x80"',
        b'{"prompt": [4294967296]}', b'{"prompt": [-1]}', b'{"prompt": [1e999]}',
    ],
)  # fmt: skip
@in_loop
async def test_a_body_that_is_wrong_goes_by_load_and_its_engine_says_so(body: bytes) -> None:
    async with fleet(greets) as them:
        assert (await directions(them, body, x_request_id="r"))["replica_id"] == "a"
        assert them.proxy.counts.unknown.total() == 1
        await ends(them, "r")


@in_loop
async def test_a_body_has_a_limit_whether_its_length_is_told_or_not() -> None:
    async with fleet(greets, limits=Limits(body_bytes=100)) as them:
        assert await refusal(them, post(PATH, b"x" * 101)) == (413, "body_too_large")
        chunks = b"65\r\n" + b"x" * 0x65 + b"\r\n0\r\n\r\n"
        head = post(PATH, b"", transfer_encoding="chunked", content_length=None)
        assert await refusal(them, head + chunks) == (413, "body_too_large")
        assert them.num_booked == 0


@in_loop
async def test_a_data_plane_that_leaves_in_the_middle_of_a_body_books_nothing() -> None:
    async with fleet(greets) as them:
        client = await them.connect()
        await client.send(post(PATH, content_length="1000"))
        client.leave()
        assert await refusal(them, get(PATH)) == (405, "method_not_allowed")
        await asyncio.sleep(0)
        assert them.num_booked == 0


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"messages": []}', "/v1/chat/completions"),
        (b'{"messages": [], "prompt": null}', "/v1/chat/completions"),
        (b'{"model": "m", "prompt": "a"}', "/v1/completions"),
        (b'{"messages": [], "prompt": "a"}', ""),
        (b'{"input": "a"}', ""),
        (b"{}", ""),
        (b"nonsense", ""),
    ],
)
def test_a_body_tells_what_it_is_for_if_only_one_path_has_it(body: bytes, path: str) -> None:
    assert path_of(body) == path


@pytest.mark.parametrize(
    ("cut", "model"),
    [
        (b'{"model": "m", "pro', "m"),
        (b' {\n"model":"a\\u0062\\"c"', 'ab"c'),
        (b'{"model": "m', ""),
        (b'{"x": {"model": "m"}', ""),
        (b'{"model": "\xff"', ""),
        (b'{"model": "' + b"x" * 513 + b'"', ""),
        (b'{"model": "\\', ""),
        (b'{"model": ["m"]', ""),
    ],
)
def test_the_first_field_of_a_cut_body_may_be_its_model(cut: bytes, model: str) -> None:
    assert first_model(cut) == model


# ---- who may ask, and who may get it --------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "headers", "status"),
    [
        (Access(token="t"), {}, 401),
        (Access(token="t"), {"authorization": "Bearer t"}, 200),
        (Access(changes_allowed=False), {}, 403),
        (Access(hosts=frozenset()), {}, 403),
        (Access(hosts=frozenset()), {"host": "localhost"}, 200),
        (Access(hosts=frozenset()), {"host": "localhost", "origin": "http://evil.example"}, 403),
    ],
)
@in_loop
async def test_who_may_not_change_anything_may_not_ask(
    access: Access, headers: dict[str, str], status: int
) -> None:
    async with fleet(greets, access=access) as them:
        head, _ = await them.ask(post(PATH, None, x_request_id="r", **headers))
        assert head.status == status
        assert them.num_booked == (status == 200)
        if status == 200:
            head, _ = await them.ask(
                post("/v1/picked", b'{"pick": "r", "event": "end"}', **headers)
            )
            assert head.status == 200


@in_loop
async def test_a_gateway_that_tells_nothing_has_no_such_route() -> None:
    async with fleet(greets, options=ForwardingOptions(tells=False)) as them:
        assert await refusal(them, post(PATH)) == (404, "not_found")


@in_loop
async def test_above_the_limit_of_requests_in_flight_nobody_is_told() -> None:
    async with fleet(greets, options=ForwardingOptions(requests=1)) as them:
        client = await them.connect()
        asked = post(PATH, x_request_id="r")
        await client.send(asked[:-1])
        while not them.gateway.connection_limits.held_bytes:
            await asyncio.sleep(0.001)
        head, body = await them.ask(post(PATH))
        assert (head.status, json.loads(body)["error"]["code"]) == (429, "too_many_requests")
        assert head.headers["retry-after"] == "1"
        await client.send(asked[-1:])
        assert (await client.answer())[0].status == 200
        await ends(them, "r")


@pytest.mark.parametrize("url", ["https://h:1", "http://h:1/prefix", None])
@in_loop
async def test_a_pod_that_host_and_port_do_not_lead_to_is_no_answer(url: str | None) -> None:
    async with fleet(greets) as them:
        them.service.put(PodId("z"), pod(url))
        for number in range(8):
            assert (await directions(them, x_request_id=f"{number}"))["replica_id"] == "a"
        for number in range(8):
            await ends(them, f"{number}")
        them.service.put(PodId("a"), pod(url))
        assert await refusal(them, post(PATH)) == (503, "no_pod")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://h", "h", 80),
        ("http://10.0.0.1:8000/", "10.0.0.1", 8000),
        ("http://[fd00::1]:8000", "fd00::1", 8000),
    ],
)
@in_loop
async def test_an_address_is_that_of_the_url(url: str, host: str, port: int) -> None:
    async with fleet() as them:
        them.service.put(PodId("a"), pod(url))
        found = await directions(them, x_request_id="r")
        assert (found["host"], found["port"]) == (host, port)
        await ends(them, "r")


@in_loop
async def test_an_adapter_goes_where_it_is_listed_and_a_pod_that_drains_gets_nothing() -> None:
    async with fleet(greets, greets) as them:
        url = them.engines["b"].url
        listed = PodConfig(
            model="m", endpoint="tcp://h:1", loras={"l": "/l"}, serving=Serving(url=url)
        )
        them.service.put(PodId("b"), listed)
        body = json.dumps({"model": "l", "prompt": [1]}).encode()
        assert (await directions(them, body, x_request_id="r"))["replica_id"] == "b"
        await ends(them, "r")
        drained = Serving(url=url, drain=True)
        config = PodConfig(model="m", endpoint="tcp://h:1", loras={"l": "/l"}, serving=drained)
        them.service.put(PodId("b"), config)
        assert await refusal(them, post(PATH, body)) == (503, "no_pod")


@in_loop
async def test_answers_are_counted_under_their_route() -> None:
    async with fleet(greets) as them:
        await directions(them, x_request_id="r")
        await ends(them, "r")
        await refusal(them, post(PATH, b'{"model": "other"}'))
        _, text = await them.ask(get("/metrics"))
        for status in (200, 404):
            labels = f'method="POST",route="{PATH}",status="{status}"'
            lines = text.decode().splitlines()
            assert f"kvbraid_http_requests_total{{{labels}}} 1.0" in lines
