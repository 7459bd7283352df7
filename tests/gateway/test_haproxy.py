"""The configuration in deploy/haproxy, run by a real HAProxy before engines and a gateway."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kvbraid.gateway.ends import hear
from kvbraid.ids import PodId
from kvbraid.service.config import Limits, PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access

from tests.gateway.programs import ask, attempt, free_port, listens, program, route_command, silent
from tests.service.route_pods import (
    Asked,
    Behaviour,
    Fleet,
    fleet,
    get,
    greets,
    in_loop,
    new_posts,
    post,
    prompt,
    two_events,
    until,
)

FOLDER = Path(__file__).parents[2] / "deploy" / "haproxy"
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy")


@asynccontextmanager
async def haproxy(them: Fleet, **env: str) -> AsyncIterator[int]:
    """Run HAProxy before a gateway, which hears from it of requests' ends; yield its port."""
    assert HAPROXY is not None
    port = free_port()
    hearing = await hear("127.0.0.1:0", them.service.picking, them.proxy.fleet, them.proxy.counts)
    host, ends = hearing.get_extra_info("sockname")
    given = {
        "KVBRAID_LISTEN": f"127.0.0.1:{port}",
        "KVBRAID_PORT": str(them.port),
        "KVBRAID_ENDS": f"{host}:{ends}",
        "KVBRAID_LUA": str(FOLDER / "pick.lua"),
        **env,
    }
    command = (HAPROXY, "-db", "-f", env.get("CONFIG", str(FOLDER / "haproxy.cfg")))
    try:
        async with program(*command, is_ready=lambda _: listens(port), env=given):
            yield port
    finally:
        hearing.close()


def code(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


def reported(them: Fleet, event: str) -> int:
    return them.service.picking.reports[event, "noted"]


@in_loop
async def test_events_pass_one_by_one_and_the_end_is_reported() -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        for _ in range(3):
            await asked.event(str(await told.get()))
        await told.get()
        await asked.end()

    told: asyncio.Queue[int] = asyncio.Queue()
    async with fleet(streams, dp_size=2) as them, haproxy(them) as port:
        client = await them.connect(port)
        body = prompt(2000, stream=True)
        await client.send(post("/v1/completions?a=b", body, x_request_id="theirs"))
        for number in range(3):
            told.put_nowait(number)
            if not number:
                assert (await client.head()).headers["content-type"] == "text/event-stream"
            assert await client.chunk() == b"data: %d\n\n" % number
            assert them.num_booked == 1
        told.put_nowait(3)
        assert await client.chunk() == b""
        await until(lambda: not them.num_booked)
        assert reported(them, "end") == 1
        [asked] = them.engines["a"].asked
        assert (asked.line, asked.body) == ("POST /v1/completions?a=b HTTP/1.1", body)
        assert asked.header("x-data-parallel-rank") in {"0", "1"}
        assert asked.header("x-request-id") != "theirs"
        assert not them.proxy.counts.unknown


@in_loop
async def test_no_header_of_a_client_chooses_a_pod() -> None:
    async with fleet(greets, greets) as them, haproxy(them) as port:
        them.service.put(PodId("b"), pod(them.engines["b"].url, drain=True))
        spoofed = {
            "x_gateway_destination_endpoint": f"127.0.0.1:{them.engines['b'].port}",
            "x_kvbraid_path": "/v1/rerank", "x_kvbraid_model": "z", "x_data_parallel_rank": "7",
        }  # fmt: skip
        assert (await ask(them, port, post("/v1/completions", None, **spoofed)))[0] == 200
        [asked] = them.engines["a"].asked
        assert not {name.replace("_", "-") for name in spoofed} & dict(asked.headers).keys()
        assert not them.engines["b"].asked
        await until(lambda: not them.num_booked)


def pod(url: str, *, drain: bool = False) -> PodConfig:
    return PodConfig(model="m", endpoint="tcp://h:1", serving=Serving(url=url, drain=drain))


@in_loop
async def test_without_kvbraid_nobody_gets_a_request() -> None:
    async with fleet(greets) as them, haproxy(them, KVBRAID_PORT=str(free_port())) as port:
        status, body = await ask(them, port, post())
        assert (status, code(body)) == (503, "no_pod")
        assert not them.engines["a"].asked


@in_loop
async def test_without_kvbraid_the_pod_with_fewest_connections_may_get_it(tmp_path: Path) -> None:
    async with fleet(greets) as them:
        text = (FOLDER / "haproxy.cfg").read_text()
        config = tmp_path / "haproxy.cfg"
        server = f"server a 127.0.0.1:{them.engines['a'].port}"
        config.write_text(text.replace("# server a 10.0.0.1:8000 check", server))
        env = {"KVBRAID_PORT": str(free_port()), "KVBRAID_UNREACHABLE": "least_connections"}
        async with haproxy(them, CONFIG=str(config), **env) as port:
            assert (await ask(them, port, post()))[0] == 200


@in_loop
async def test_kvbraid_that_says_nothing_counts_as_away() -> None:
    async with fleet(greets) as them, silent() as port:
        env = {"KVBRAID_PORT": str(port), "KVBRAID_PATIENCE_S": "0.1"}
        async with haproxy(them, **env) as clients:
            status, body = await ask(them, clients, post())
            assert (status, code(body)) == (503, "no_pod")


@in_loop
async def test_kvbraid_may_be_killed_and_started_again(tmp_path: Path) -> None:
    go_on, number = asyncio.Event(), free_port()
    async with fleet(two_events(go_on)) as them:
        command = route_command(tmp_path, them.engines, number)
        async with haproxy(them, KVBRAID_PORT=str(number)) as port:
            client = await them.connect(port)
            async with program(*command, is_ready=lambda _: listens(number)):
                await client.send(post())
                assert (await client.head()).status == 200
                assert await client.chunk() == b"data: 1\n\n"
            assert (await ask(them, port, post()))[0] == 503
            go_on.set()
            assert await client.chunk() == b"data: 2\n\n"
            async with program(*command, is_ready=lambda _: listens(number)):
                assert (await attempt(port, post())) == 200


@in_loop
async def test_questions_share_a_connection_and_one_that_was_closed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def admit(connections: object) -> bool:
        made.append(connections)
        return True

    text = (FOLDER / "haproxy.cfg").read_text()
    config = tmp_path / "haproxy.cfg"  # Each thread keeps connections of its own.
    config.write_text(text.replace("global\n", "global\n    nbthread 1\n"))
    async with fleet(greets) as them, haproxy(them, CONFIG=str(config)) as port:
        limits = them.gateway.connection_limits
        monkeypatch.setattr(limits, "admit", admit)
        for num_made in (1, 1, 1, 2):
            if num_made == 2:
                them.sweep_clients(limits.limits.idle_s + 1)
            assert (await ask(them, port, post()))[0] == 200
            assert len(made) == num_made
        await until(lambda: not them.num_booked)


async def dies(asked: Asked) -> None:
    asked.die()


async def is_busy(asked: Asked) -> None:
    await asked.answer(b"{}", "503 Service Unavailable")


async def garbage(asked: Asked) -> None:
    await asked.write(b"garbage\r\n\r\n")


@pytest.mark.parametrize("behaviour", [dies, is_busy, garbage])
@in_loop
async def test_another_pod_gets_what_a_pod_did_not_take_if_that_is_configured(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    text = (FOLDER / "haproxy.cfg").read_text()
    assert "    # retry-on " in text
    config = tmp_path / "haproxy.cfg"
    config.write_text(text.replace("    # retry-on ", "    retry-on "))
    async with (
        fleet(greets, behaviour) as them,
        haproxy(them, CONFIG=str(config)) as port,
    ):
        posts = new_posts()
        while not them.engines["b"].asked:
            assert await ask(them, port, next(posts)) == (200, b'{"choices": []}')
        await until(lambda: not them.num_booked)
        assert reported(them, "failed") >= 1


@in_loop
async def test_a_pod_that_is_dead_is_noticed_and_left_alone() -> None:
    options = ForwardingOptions(failures=1)
    async with fleet(greets, options=options) as them, haproxy(them) as port:
        them.service.put(PodId("z"), pod(f"http://127.0.0.1:{free_port()}"))
        posts = new_posts()
        while not them.proxy.fleet.resting:
            assert (await ask(them, port, next(posts)))[0] == 200
        assert them.proxy.fleet.resting == {"z"}
        outcomes = dict(them.proxy.counts.outcomes)
        for _ in range(16):
            assert (await ask(them, port, post()))[0] == 200
        assert dict(them.proxy.counts.outcomes) == outcomes  # None of them came through kvbraid.
        await until(lambda: not them.num_booked)


@in_loop
async def test_if_every_pod_is_dead_the_client_hears_it_and_it_is_reported() -> None:
    async with fleet() as them, haproxy(them) as port:
        them.service.put(PodId("z"), pod(f"http://127.0.0.1:{free_port()}"))
        status, body = await ask(them, port, post())
        assert (status, code(body)) == (502, "pod_failed")
        await until(lambda: reported(them, "failed") == 2)


@in_loop
async def test_a_pod_without_an_address_of_ip_is_a_503_and_reported_as_failed() -> None:
    async with fleet() as them, haproxy(them) as port:
        hosts = ("localhost", "cafe", "bad.cafe", "999.1.1.1", "1.1")
        for host in hosts:
            them.service.put(PodId("z"), pod(f"http://{host}:{port}"))
            status, body = await ask(them, port, post())
            assert (status, code(body)) == (503, "no_pod")
        await until(lambda: reported(them, "failed") == len(hosts))


@in_loop
async def test_a_pod_that_dies_in_a_stream_cuts_it_and_its_end_is_reported() -> None:
    async def dies(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()
        asked.die()

    go_on = asyncio.Event()
    async with fleet(dies) as them, haproxy(them) as port:
        client, _ = await them.begin(port=port)
        assert await client.chunk() == b"data: 1\n\n"
        go_on.set()
        assert await client.is_cut()
        await until(lambda: reported(them, "end") == 1)


@in_loop
async def test_what_kvbraid_refuses_is_what_a_client_hears() -> None:
    async with (
        fleet(greets, options=ForwardingOptions(), limits=Limits(body_bytes=5000)) as them,
        haproxy(them) as port,
    ):
        status, body = await ask(them, port, post(body=b'{"model": "other", "prompt": [1]}'))
        assert (status, code(body)) == (404, "unknown_model")
        status, body = await ask(them, port, post(body=prompt(5000)))
        assert (status, code(body)) == (413, "body_too_large")


@in_loop
async def test_a_body_longer_than_the_buffer_goes_whole_by_load_alone() -> None:
    async with fleet(greets) as them, haproxy(them) as port:
        body = prompt(2_700_000)
        assert len(body) > 20 << 20
        assert (await ask(them, port, post(body=body)))[0] == 200
        [asked] = them.engines["a"].asked
        assert asked.body == body
        assert them.proxy.counts.unknown == {"cut_body": 1}
        await until(lambda: not them.num_booked)


@in_loop
async def test_a_token_opens_kvbraid_and_without_it_nobody_gets_a_request() -> None:
    async with fleet(greets, access=Access(token="t")) as them:
        async with haproxy(them, KVBRAID_TOKEN="t") as port:
            assert (await ask(them, port, post()))[0] == 200
            await until(lambda: reported(them, "end") == 1)
        async with haproxy(them) as port:
            assert (await ask(them, port, post()))[0] == 503
            await until(lambda: them.proxy.counts.ends["not_chosen"] == 1)


@in_loop
async def test_only_prompts_and_the_list_of_models_pass() -> None:
    async with fleet(greets) as them, haproxy(them) as port:
        status, body = await ask(them, port, get("/v1/models"))
        assert (status, json.loads(body)["data"][0]["id"]) == (200, "m")
        for path in ("/v1/pods", "/metrics", "/internal/route", "/v1/completions"):
            client = await them.connect(port)
            await client.send(get(path))
            assert (await client.head()).status == 404
        for path in ("/internal/route", "/v1/picked", "/v1/pick", "/v1/models"):
            client = await them.connect(port)
            await client.send(post(path))
            assert (await client.head()).status == 404
