"""What goes through a gateway, and what its router learns of it."""

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import Limits, PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access
from kvbraid.service.keys import KeyEntry

from tests.service.route_pods import Asked, Fleet, fleet, get, greets, in_loop, post, prompt, until

SAID = {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}


def says(usage: object) -> bytes:
    return json.dumps({"choices": [{"text": 'a "cached_tokens": 9'}], "usage": usage}).encode()


def code(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


@in_loop
async def test_a_request_goes_to_a_pod_and_its_answer_comes_back() -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(b'{"choices": []}', "201 Created", "x-engine: 1\r\n")

    async with fleet(answers) as them:
        head, body = await them.ask(post("/v1/completions?a=%2F&b", prompt(echo=True)))
        assert (head.status, body) == (201, b'{"choices": []}')
        assert head.headers["x-engine"] == "1"
        [asked] = them.engines["a"].asked
        assert asked.line == "POST /v1/completions?a=%2F&b HTTP/1.1"
        assert asked.body == prompt(echo=True)
        assert them.reports("first_token") == them.reports("end") == 1
        assert them.proxy.counts.outcomes == {"answered": 1}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/rerank"])
@in_loop
async def test_each_event_reaches_the_client_before_the_next_is_written(path: str) -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        for _ in range(3):
            await asked.event(str(await told.get()))
        await asked.end()

    told: asyncio.Queue[int] = asyncio.Queue()
    async with fleet(streams) as them:
        client = await them.connect()
        await client.send(post(path, prompt(stream=True)))
        for number in range(3):
            told.put_nowait(number)
            if not number:
                head = await client.head()
                assert head.headers["content-type"] == "text/event-stream"
            assert await client.chunk() == b"data: %d\n\n" % number
            assert number == 2 or them.num_booked == 1
        assert await client.chunk() == b""
        assert them.num_booked == 0


@in_loop
async def test_a_first_token_is_the_first_byte_of_a_body() -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        begun.set()
        await go_on.wait()
        await asked.event("1")
        await asked.end()

    begun, go_on = asyncio.Event(), asyncio.Event()
    async with fleet(streams) as them:
        client = await them.connect()
        await client.send(post())
        await begun.wait()
        assert them.reports("first_token") == 0
        go_on.set()
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        assert them.reports("first_token") == 1
        assert await client.chunk() == b""


@in_loop
async def test_headers_that_steer_or_belong_to_a_connection_end_here() -> None:
    async def answers(asked: Asked) -> None:
        more = "connection: x-mine\r\nx-mine: 1\r\nx-kvbraid-pod: z\r\nx-request-id: theirs\r\n"
        await asked.answer(b"{}", more=more)

    async with fleet(answers) as them:
        dropped = {
            "x_gateway_destination_endpoint": "h:1", "x_kvbraid_explain": "0",
            "x_data_parallel_rank": "3", "connection": "x-hop", "x_hop": "1", "te": "trailers",
            "proxy_authorization": "p", "upgrade": "h2c",
        }  # fmt: skip
        kept = {"authorization": "Bearer k", "x_session_id": "s", "accept_encoding": "gzip"}
        head, _ = await them.ask(post("/v1/completions", None, **dropped, **kept))
        assert "x-mine" not in head.headers
        assert head.headers["x-kvbraid-pod"] == "a"  # Ours, not the engine's: it was asked for.
        [asked] = them.engines["a"].asked
        names = {name for name, _ in asked.headers}
        assert not {name.replace("_", "-") for name in dropped} & names
        assert {name.replace("_", "-"): value for name, value in kept.items()}.items() <= dict(
            asked.headers
        ).items()
        assert asked.header("host") == them.engines["a"].url.removeprefix("http://")
        assert head.headers["x-request-id"] == asked.header("x-request-id") != "theirs"


@pytest.mark.parametrize(
    ("given", "is_kept"), [("abc-1", True), ("a b", False), ("x" * 129, False)]
)
@in_loop
async def test_a_request_keeps_its_id_if_that_is_usual(given: str, is_kept: bool) -> None:
    async with fleet(greets) as them:
        head, _ = await them.ask(post(x_request_id=given))
        [asked] = them.engines["a"].asked
        assert head.headers["x-request-id"] == asked.header("x-request-id")
        assert (head.headers["x-request-id"] == given) is is_kept


@in_loop
async def test_two_requests_of_one_id_are_booked_each() -> None:
    async def waits(asked: Asked) -> None:
        await go_on.wait()
        await asked.answer(b"{}")

    go_on = asyncio.Event()
    async with fleet(waits) as them:
        clients = [await them.connect() for _ in range(2)]
        for client in clients:
            await client.send(post(x_request_id="same"))
        await them.engines["a"].request(2)
        assert them.num_booked == 2
        go_on.set()
        for client in clients:
            assert (await client.answer())[0].status == 200


@in_loop
async def test_an_engine_with_several_ranks_is_told_which() -> None:
    async with fleet(greets, dp_size=4) as them:
        head, _ = await them.ask(post(x_kvbraid_explain="1"))
        [asked] = them.engines["a"].asked
        assert asked.header("x-data-parallel-rank") == head.headers["x-kvbraid-dp-rank"]
        assert head.headers["x-kvbraid-pod"] == "a"
        assert head.headers["x-kvbraid-predicted"] == "0-0"
        assert head.headers["x-kvbraid-ladder"] == "prompt=32, best=0, chosen=0, resumable=0"


@in_loop
async def test_nobody_is_told_of_pods_if_that_is_off() -> None:
    async with fleet(greets, options=ForwardingOptions(tells=False)) as them:
        head, _ = await them.ask(post(x_kvbraid_explain="1"))
        assert "x-kvbraid-pod" not in head.headers
        for path in ("/v1/pods", "/v1/score", "/metrics", "/openapi.json"):
            before = len(them.engines["a"].asked)
            head, _ = await them.ask(post(path))
            passed = len(them.engines["a"].asked) - before
            assert (head.status, passed) == ((200, 1) if path.startswith("/v1/") else (404, 0))
        for path in ("/healthz", "/readyz", "/v1/models"):
            assert (await them.ask(get(path)))[0].status == 200
        for path in CONSOLE:
            assert (await them.ask(get(path)))[0].status == 404


CONSOLE = ("/", "/fleet", "/fleet.json", "/console/main.js")


@in_loop
async def test_a_gateway_has_the_console_and_shows_what_it_forwards() -> None:
    async with fleet(greets) as them:
        for path in CONSOLE:
            assert (await them.ask(get(path)))[0].status == 200
        assert (await them.ask(post()))[0].status == 200
        _, body = await them.ask(get("/requests.json"))
        (row,) = json.loads(body)["requests"]
        assert (row["status"], row["chosen"]["pod"]) == ("ended", "a")


@in_loop
async def test_nobody_is_told_of_pods_if_that_needs_a_key_of_ours() -> None:
    hashed = hashlib.sha256(b"key").hexdigest()
    keys = [KeyEntry(name="k", sha256=hashed, rights=["read"])]
    async with fleet(greets, access=Access(keys=keys)) as them:
        asked = post(x_kvbraid_explain="1", authorization="Bearer key-of-the-engine")
        head, _ = await them.ask(asked)
        assert head.status == 200
        assert "x-kvbraid-pod" not in head.headers
        assert (await them.ask(get("/v1/pods")))[0].status == 401
        for path in ("/healthz", "/readyz", "/v1/models"):
            assert (await them.ask(get(path)))[0].status == 200


# ---- what is asked --------------------------------------------------------------------------


@in_loop
async def test_the_router_gets_the_prompt() -> None:
    async with fleet(greets) as them:
        await them.ask(post(body=prompt(5, cache_salt="s")))
        [asked] = them.index.requests
        assert (asked.model, list(asked.token_ids), asked.cache_salt) == (
            "m",
            [0, 1, 2, 3, 4],
            "s",
        )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model": "m", "prompt": "text"}', "no_tokenizer"),
        (b'{"model": "m", "prompt": [-1]}', "no_tokenizer"),
        (b"nonsense", "malformed"),
        (b"", "malformed"),
        (b"[" * 5_000, "malformed"),
    ],
)
@in_loop
async def test_a_prompt_without_tokens_is_sent_by_load_alone(body: bytes, why: str) -> None:
    async with fleet(greets) as them:
        head, _ = await them.ask(post(body=body))
        assert head.status == 200
        assert them.engines["a"].asked[0].body == body
        assert list(them.index.requests[0].token_ids) == []
        assert them.proxy.counts.unknown == {why: 1}


@in_loop
async def test_a_prompt_of_too_many_tokens_is_sent_by_load_alone() -> None:
    async with fleet(greets, limits=Limits(tokens=8)) as them:
        assert (await them.ask(post(body=prompt(9))))[0].status == 200
        assert them.proxy.counts.unknown == {"too_many_tokens": 1}


@in_loop
async def test_other_paths_are_passed_on_and_counted_as_load() -> None:
    async def waits(asked: Asked) -> None:
        await go_on.wait()
        await asked.answer(b"{}")

    go_on = asyncio.Event()
    async with fleet(waits) as them:
        client = await them.connect()
        await client.send(get("/v1/responses/resp_1"))
        await them.engines["a"].request(1)
        assert them.num_booked == 1
        go_on.set()
        assert (await client.answer())[1] == b"{}"


@pytest.mark.parametrize(
    "path",
    ["/sleep", "/x", "/v1/../sleep", "/v1/./x", "/v1/%2e%2e/sleep", "/v1", "/metricsx", "//v1/x"],
)
@in_loop
async def test_what_engines_offer_their_operators_is_not_passed_on(path: str) -> None:
    async with fleet(greets) as them:
        head, body = await them.ask(post(path))
        assert (head.status, code(body)) == (404, "not_found")
        assert not them.engines["a"].asked


@in_loop
async def test_a_body_that_is_passed_on_goes_out_while_it_arrives() -> None:
    async with fleet(greets, options=ForwardingOptions(kept_bytes=4)) as them:
        client = await them.connect()
        await client.send(post("/v1/audio/transcriptions", b"0123456789", content_length="20"))
        await until_connected(them)
        await client.send(b"0123456789")
        assert (await client.answer())[0].status == 200
        [asked] = them.engines["a"].asked
        assert (asked.body, asked.header("content-length")) == (b"0123456789" * 2, "20")


async def until_connected(them: Fleet) -> None:
    await until(lambda: them.engines["a"].num_connections == 1)


@in_loop
async def test_a_model_is_found_by_its_name_an_adapters_or_a_header() -> None:
    async with fleet(greets) as them:
        one = them.engines["a"].url
        them.service.put(
            PodId("b"),
            PodConfig(
                model="n", endpoint="tcp://h:2", loras={"tuned": "/x"}, serving=Serving(url=one)
            ),
        )
        them.service.put(PodId("c"), PodConfig(model="o", endpoint="tcp://h:3"))

        async def asked(body: bytes, **headers: str) -> object:
            head, answer = await them.ask(post("/v1/completions", body, **headers))
            if head.status != 200:
                return code(answer)
            found = them.index.requests[-1]
            return found.model, found.lora

        assert await asked(b'{"model": "n"}') == ("n", None)
        assert await asked(b'{"model": "tuned"}') == ("n", "tuned")
        assert await asked(b"{}", x_kvbraid_model="n") == ("n", None)
        assert await asked(b"{}") == "unknown_model"
        assert await asked(b'{"model": "p"}') == "unknown_model"
        assert await asked(b'{"model": "o"}') == "no_pod"
        models = json.loads((await them.ask(get("/v1/models")))[1])
        assert [(row["id"], row["parent"]) for row in models["data"]] == [
            ("m", None), ("n", None), ("o", None), ("tuned", "n"),
        ]  # fmt: skip


@in_loop
async def test_an_adapter_is_asked_for_where_it_is_listed() -> None:
    async with fleet(greets, greets, greets) as them:
        for name in "bc":
            serving = Serving(url=them.engines[name].url)
            config = PodConfig(
                model="m", endpoint="tcp://h:1", loras={"tuned": "/x"}, serving=serving
            )
            them.service.put(PodId(name), config)
        for _ in range(12):
            assert (await them.ask(post(body=b'{"model": "tuned"}')))[0].status == 200
        assert not them.engines["a"].asked


# ---- who gets it ----------------------------------------------------------------------------


@in_loop
async def test_a_pod_that_drains_or_has_no_url_gets_nothing() -> None:
    async with fleet(greets, greets, greets) as them:
        drains = Serving(url=them.engines["a"].url, drain=True)
        config = PodConfig(model="m", endpoint="tcp://h:1")
        them.service.put(PodId("a"), replace(config, serving=drains))
        them.service.put(PodId("b"), config)
        for _ in range(8):
            assert (await them.ask(post()))[0].status == 200
        assert [len(engine.asked) for engine in them.engines.values()] == [0, 0, 8]
        them.service.put(PodId("c"), replace(config, serving=Serving(url="http://h", drain=True)))
        head, body = await them.ask(post())
        assert (head.status, code(body)) == (503, "no_pod")
        assert b"draining" in body


@in_loop
async def test_too_many_requests_at_once_are_told_to_come_again() -> None:
    async def waits(asked: Asked) -> None:
        await go_on.wait()
        await asked.answer(b"{}")

    go_on = asyncio.Event()
    async with fleet(waits, options=ForwardingOptions(requests=1)) as them:
        first = await them.connect()
        await first.send(post())
        await them.engines["a"].request(1)
        head, body = await them.ask(post())
        assert (head.status, code(body)) == (429, "too_many_requests")
        assert head.headers["retry-after"] == "1"
        go_on.set()
        assert (await first.answer())[0].status == 200


# ---- what engines say of reuse --------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "said", "delivered"),
    [
        (SAID, "counted", 16),
        ({"input_tokens": 32, "input_tokens_details": {"cached_tokens": 16}}, "counted", 16),
        ({"prompt_tokens": 32, "prompt_tokens_details": None}, "not_reported", 0),
        ({"prompt_tokens": 32}, "not_reported", 0),
        (SAID | {"prompt_tokens": 33}, "other_prompt", 0),
        ({"prompt_tokens_details": {"cached_tokens": 33}}, "other_prompt", 0),
    ],
)
@in_loop
async def test_what_an_answer_says_of_reuse_is_counted(
    usage: object, said: str, delivered: int
) -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(says(usage))

    async with fleet(answers) as them:
        await them.ask(post())
        assert them.proxy.counts.usage == {said: 1}
        assert them.service.picking.tokens["delivered"] == delivered
        assert them.service.picking.tokens["prompt"] == (32 if delivered else 0)
        [ladder] = them.service.picking.ladder.answer().models
        assert (ladder.rungs.prompt, ladder.rungs.delivered) == (32, delivered)
        assert ladder.reported == (said == "counted")


@in_loop
async def test_the_last_event_says_it_for_a_stream_of_any_length() -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        for _ in range(100):
            await asked.event("x" * 1000)
        await asked.event(says(SAID).decode())
        await asked.event("[DONE]")
        await asked.end()

    async with fleet(streams) as them:
        await them.ask(post())
        assert them.proxy.counts.usage == {"counted": 1}


USAGE = f"data: {json.dumps({'choices': [], 'usage': SAID})}\n\n"
ALL_EVENTS = f'data: {{"choices": [1], "usage": null}}\n\n{USAGE}data: [DONE]\n\n'


async def streams_usage(asked: Asked) -> None:
    """Stream what an engine streams that is asked for the usage, in small pieces."""
    await asked.begin()
    for start in range(0, len(ALL_EVENTS), 7):
        await asked.chunk(ALL_EVENTS[start : start + 7].encode())
    await asked.end()


@pytest.mark.parametrize("padding", [0, 2 << 20])
@in_loop
async def test_a_usage_that_only_the_gateway_asks_for_is_counted_and_not_shown(
    padding: int,
) -> None:
    async with fleet(streams_usage, options=ForwardingOptions(include_usage=True)) as them:
        body = prompt(stream=True, padding="x" * padding)
        _, shown = await them.ask(post(body=body))
        assert shown.decode() == ALL_EVENTS.replace(USAGE, "")
        assert them.proxy.counts.usage == {"counted": 1}
        [asked] = them.engines["a"].asked
        assert json.loads(asked.body) == json.loads(body) | {
            "stream_options": {"include_usage": True}
        }


@pytest.mark.parametrize(
    ("is_on", "path", "more"),
    [
        (False, "/v1/completions", {"stream": True}),
        (True, "/v1/completions", {"stream": True, "stream_options": {"include_usage": True}}),
        (True, "/v1/completions", {"stream": False}),
        (True, "/v1/chat", {"stream": True}),
    ],
)
@in_loop
async def test_other_bodies_and_answers_go_on_as_they_are(
    is_on: bool, path: str, more: dict[str, Any]
) -> None:
    async with fleet(streams_usage, options=ForwardingOptions(include_usage=is_on)) as them:
        _, shown = await them.ask(post(path, prompt(**more)))
        assert shown.decode() == ALL_EVENTS
        assert them.engines["a"].asked[0].body == prompt(**more)


@in_loop
async def test_an_answer_with_a_length_goes_on_as_it_is() -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(ALL_EVENTS.encode(), more="content-type: text/event-stream\r\n")

    async with fleet(answers, options=ForwardingOptions(include_usage=True)) as them:
        assert (await them.ask(post(body=prompt(stream=True))))[1].decode() == ALL_EVENTS


@in_loop
async def test_metrics_tell_what_was_counted() -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(says(SAID))

    async with fleet(answers) as them:
        await them.ask(post())
        _, text = await them.ask(get("/metrics"))
        for line in (
            'kvbraid_http_requests_total{method="POST",route="/v1/completions",status="200"} 1.0',
            "kvbraid_gateway_in_flight 0.0",
            'kvbraid_gateway_requests_total{outcome="answered"} 1.0',
            'kvbraid_gateway_usage_total{said="counted"} 1.0',
            'kvbraid_pick_tokens_total{tokens="delivered"} 16.0',
        ):
            assert line in text.decode().splitlines()
