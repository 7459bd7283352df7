"""The files in deploy/envoy, run by a real Envoy before engines and a picker."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvbraid.ids import PodId

from tests.gateway.envoy import ENVOY, command, envoy, plane, pod
from tests.gateway.programs import config_of, free_port, listens, program, silent
from tests.service.route_pods import (
    Asked,
    Behaviour,
    Connection,
    Engine,
    greets,
    in_loop,
    new_posts,
    post,
    prompt,
    two_events,
    until,
)
from tests.service.serving import MAIN

pytestmark = pytest.mark.skipif(ENVOY is None, reason="needs envoy")

CLUSTERS = ("original_dst", "override_host")
USAGE: dict[str, Any] = {
    "usage": {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}
}
USUAL = "request_body_mode: BUFFERED, response_header_mode: SKIP"
STREAMED = (USUAL, "request_body_mode: BUFFERED, response_body_mode: STREAMED")
DUPLEX = (
    USUAL,
    "request_body_mode: FULL_DUPLEX_STREAMED, response_body_mode: FULL_DUPLEX_STREAMED, "
    "request_trailer_mode: SEND, response_trailer_mode: SEND",
)
_ROUTE = "route: {cluster: picked, timeout: 0s, idle_timeout: 300s}"
FAIL_OPEN = ("direct_response: {status: 503", f"{_ROUTE}\n                #: {{")
IMPATIENT = ("message_timeout: 5s", "message_timeout: 0.2s")
_EXT_PROC = "          - name: envoy.filters.http.ext_proc\n"
_HEADERS = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
_HINTS = "metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset"
HINTED = (
    _EXT_PROC,
    f"""\
          - name: envoy.filters.http.header_to_metadata
            typed_config:
              "@type": {_HEADERS}
              request_rules: [{{header: x-subset, on_header_present: {{{_HINTS}}}}}]
{_EXT_PROC}""",
)


# ---- the files --------------------------------------------------------------------------------


def test_this_is_the_version_for_which_the_files_are_written() -> None:
    said = subprocess.run([str(ENVOY), "--version"], capture_output=True, text=True, check=True)
    assert "/1.40.0/" in said.stdout


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("change", [(USUAL, USUAL), STREAMED, DUPLEX, FAIL_OPEN, HINTED])
def test_envoy_takes_the_files(tmp_path: Path, cluster: str, change: tuple[str, str]) -> None:
    parts = command(tmp_path, change, cluster=cluster, ports=(1,))
    done = subprocess.run([*parts, "--mode", "validate"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- requests and their ends ------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [(), (STREAMED,), (DUPLEX,)], ids=["usual", "streamed", "duplex"]
)
@pytest.mark.parametrize("cluster", CLUSTERS)
@in_loop
async def test_events_pass_one_by_one_and_their_usage_is_joined_to_the_pick(
    tmp_path: Path, cluster: str, changes: tuple[tuple[str, str], ...]
) -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        for _ in range(4):
            await asked.event(await told.get())
        await asked.end()

    told: asyncio.Queue[str] = asyncio.Queue()
    async with plane(tmp_path, streams, cluster=cluster, changes=changes) as them:
        client = await them.connect()
        await client.send(post("/v1/completions?a=b", x_request_id="theirs"))
        for number, event in enumerate(["{}", "{}", json.dumps(USAGE)]):
            told.put_nowait(event)
            if not number:
                assert (await client.head()).headers["content-type"] == "text/event-stream"
            assert await client.chunk() == f"data: {event}\n\n".encode()
            assert them.num_booked == 1
        told.put_nowait("[DONE]")
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""
        await until(lambda: not them.num_booked)
        assert them.reports("end") == 1
        assert them.app.picker.counts.usage == {"counted": 1}
        [asked] = them.engines["a"].asked
        assert (asked.line, asked.body) == ("POST /v1/completions?a=b HTTP/1.1", prompt())
        assert asked.header("x-request-id") != "theirs"


@pytest.mark.parametrize("cluster", CLUSTERS)
@in_loop
async def test_the_usage_of_a_whole_answer_is_joined_to_the_pick(
    tmp_path: Path, cluster: str
) -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(json.dumps(USAGE).encode())

    async with plane(tmp_path, answers, cluster=cluster) as them:
        assert await them.ask(post()) == (200, json.dumps(USAGE).encode())
        await until(lambda: them.reports("end") == 1)
        assert them.app.picker.counts.usage == {"counted": 1}


EVENTS = [
    "1", "null", "[]", '"x"', "{", "", '{"usage": null}', '{"usage": 5}', "\x00",
    '{"usage": {"prompt_tokens": "x"}}', '{"usage": {"prompt_tokens": 1' + "0" * 400 + "}}",
    '{"text": "\\"prompt_tokens\\": 7"}',
]  # fmt: skip


@in_loop
async def test_nothing_that_an_engine_says_of_usage_ends_envoy(tmp_path: Path) -> None:
    async def says(asked: Asked) -> None:
        said = EVENTS[len(them.engines["a"].asked) // 2 % len(EVENTS)]
        if len(them.engines["a"].asked) % 2:
            await asked.answer(said.encode())
        else:
            await asked.begin()
            await asked.event(said)
            await asked.end()

    async with plane(tmp_path, says) as them:
        for _ in range(2 * len(EVENTS)):
            assert (await them.ask(post()))[0] == 200
        await until(lambda: them.reports("end") == 2 * len(EVENTS))
        assert not them.app.picker.counts.usage["counted"]


@in_loop
async def test_no_header_of_a_client_chooses_a_pod(tmp_path: Path) -> None:
    async with plane(tmp_path, greets, greets) as them:
        port = them.engines["b"].port
        them.service.put(PodId("b"), pod(port, drain=True))
        spoofed = {
            "x_gateway_destination_endpoint": f"127.0.0.1:{port}",
            "x_kvbraid_model": "z", "x_data_parallel_rank": "7",
        }  # fmt: skip
        assert (await them.ask(post("/v1/completions", None, **spoofed)))[0] == 200
        [asked] = them.engines["a"].asked
        assert asked.header("x-gateway-destination-endpoint") == f"127.0.0.1:{asked_port(them)}"
        assert asked.header("x-kvbraid-model") is None
        assert asked.header("x-data-parallel-rank") is None
        assert not them.engines["b"].asked


def asked_port(them: Any) -> int:  # noqa: ANN401
    port: int = them.engines["a"].port
    return port


@in_loop
async def test_candidates_may_be_handed_over(tmp_path: Path) -> None:
    async with plane(tmp_path, greets, greets, changes=(HINTED,)) as them:
        port = them.engines["b"].port
        for _ in range(8):
            assert (await them.ask(post(x_subset=f"10.0.0.1:80,127.0.0.1:{port}")))[0] == 200
        assert len(them.engines["b"].asked) == 8
        assert (await them.ask(post(x_subset="10.0.0.1:80")))[0] == 503


LARGE = ("buffer_limit_bytes: 16777216", "buffer_limit_bytes: 33554432")


@pytest.mark.parametrize("changes", [(LARGE,), (DUPLEX,)], ids=["usual", "duplex"])
@in_loop
async def test_a_body_of_20_mb_passes_whole(
    tmp_path: Path, changes: tuple[tuple[str, str], ...]
) -> None:
    async with plane(tmp_path, greets, changes=changes) as them:
        body = prompt(2_700_000)
        assert len(body) > 20 << 20
        assert (await them.ask(post(body=body)))[0] == 200
        [asked] = them.engines["a"].asked
        assert asked.body == body


@pytest.mark.parametrize(
    ("num_tokens", "body_bytes"),
    [(5000, 5000), (2_700_000, 1 << 25)],
    ids=["kvbraid's", "Envoy's"],
)
@in_loop
async def test_a_body_above_a_limit_is_a_413(
    tmp_path: Path, num_tokens: int, body_bytes: int
) -> None:
    async with plane(tmp_path, greets, body_bytes=body_bytes) as them:
        # Whoever goes on sending what nobody reads loses the connection, and the answer with it.
        beginning = post(body=prompt(num_tokens))[: 17 << 20]
        assert (await them.ask(beginning))[0] == 413
        assert not them.engines["a"].asked


# ---- bad days ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "changes", "status"),
    [
        ("original_dst", (), 503),
        ("override_host", (), 503),
        ("override_host", (FAIL_OPEN,), 200),
        ("original_dst", (FAIL_OPEN,), 503),  # Without a destination there is nowhere to go.
    ],
)
@pytest.mark.parametrize("picker", ["away", "silent"])
@in_loop
async def test_without_a_picker_the_configuration_decides(
    tmp_path: Path,
    cluster: str,
    changes: tuple[tuple[str, str], ...],
    status: int,
    picker: str,
) -> None:
    async with Engine().running() as engine, silent() as port:
        number = port if picker == "silent" else free_port()
        async with envoy(
            tmp_path, *changes, IMPATIENT, cluster=cluster, picker=number, ports=[engine.port]
        ) as clients:
            client = Connection(*await asyncio.open_connection("127.0.0.1", clients))
            await client.send(post())
            assert (await client.head()).status == status
            assert bool(engine.asked) == (status == 200)
            client.leave()


@in_loop
async def test_the_picker_may_be_killed_and_started_again(tmp_path: Path) -> None:
    async def status() -> int:
        client = Connection(*await asyncio.open_connection("127.0.0.1", port))
        await client.send(post())
        found = (await client.head()).status
        client.leave()
        return found

    go_on, number = asyncio.Event(), free_port()
    async with Engine(two_events(go_on)).running() as engine:
        config = config_of(tmp_path, {"a": engine})
        told = ("--config", str(config), "--port", "0", "--grpc-port", str(number))
        picker = (sys.executable, "-c", MAIN, "pick-serve", *told)
        async with envoy(tmp_path, picker=number) as port:
            client = Connection(*await asyncio.open_connection("127.0.0.1", port))
            async with program(*picker, is_ready=lambda _: listens(number)):
                await client.send(post())
                assert (await client.head()).status == 200
                assert await client.chunk() == b"data: 1\n\n"
            assert await status() == 503
            go_on.set()
            assert await client.chunk() == b"data: 2\n\n"
            async with program(*picker, is_ready=lambda _: listens(number)):
                assert await status() == 200
            client.leave()


@in_loop
async def test_a_dead_pod_is_a_503_where_envoy_knows_no_other(tmp_path: Path) -> None:
    async with plane(tmp_path, dead=1) as them:
        assert (await them.ask(post()))[0] == 503
        await until(lambda: them.reports("failed") == 1)


async def dies(asked: Asked) -> None:
    asked.die()


@pytest.mark.parametrize(("behaviours", "dead"), [((greets,), 1), ((greets, dies), 0)])
@in_loop
async def test_a_fallback_gets_what_a_pod_does_not_take_and_that_pod_is_left_alone(
    tmp_path: Path, behaviours: tuple[Behaviour, ...], dead: int
) -> None:
    async with plane(
        tmp_path, *behaviours, cluster="override_host", dead=dead, fallbacks=1
    ) as them:
        number, posts = 0, new_posts()
        while not them.app.picker.fleet.resting:
            assert await them.ask(next(posts)) == (200, b'{"choices": []}')
            number += 1
            assert len(them.engines["a"].asked) == number
        # What another pod has served is no end of what was booked at the chosen one.
        await until(lambda: them.reports("end") + them.reports("failed") == number)
        assert them.app.picker.fleet.resting <= {"b", "z0"}


@in_loop
async def test_a_pod_that_dies_in_a_stream_cuts_it(tmp_path: Path) -> None:
    async def dies_late(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()
        asked.die()

    go_on = asyncio.Event()
    async with plane(tmp_path, dies_late) as them:
        client = await them.connect()
        await client.send(post())
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        go_on.set()
        assert await client.is_cut()
        await until(lambda: not them.num_booked)
        assert them.reports("failed") == 1


@in_loop
async def test_a_client_that_leaves_ends_its_booking_and_the_work_for_it(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def waits(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()

    async with plane(tmp_path, waits) as them:
        client = await them.connect()
        await client.send(post())
        await client.head()
        client.leave()
        await (await them.engines["a"].request(1)).gone.wait()
        await until(lambda: not them.num_booked)
