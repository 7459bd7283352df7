"""What breaks proxies of HTTP; uvicorn, our connection limits and aiohttp keep most of it away.

Each test is against the whole stack, with real sockets. Other routers have had most of these
faults, and here they must stay away whatever the libraries become.
"""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import Limits, PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.service.route_pods import (
    Asked,
    fleet,
    get,
    greets,
    in_loop,
    never_answers,
    post,
    prompt,
    two_events,
    until,
    until_still,
)

CHUNKED = (
    b"POST %b HTTP/1.1\r\nhost: gateway\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
)


def sockets() -> Iterator[socket.socket]:
    """Yield this process's TCP connections."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        with found:
            if found.family == socket.AF_INET:
                yield found


# ---- delays ---------------------------------------------------------------------------------


@in_loop
async def test_no_segment_waits_for_another_on_either_side() -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()
        await asked.end()

    go_on = asyncio.Event()
    async with fleet(streams) as them:
        client, _ = await them.begin()
        found = {"client": 0, "pod": 0}
        for each in sockets():
            try:
                local, peer = each.getsockname()[1], each.getpeername()[1]
            except OSError:
                continue
            side = {local: "client", peer: "pod"}
            for port, name in ((them.port, "client"), (them.engines["a"].port, "pod")):
                if side.get(port) == name:
                    assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                    found[name] += 1
        assert found == {"client": 1, "pod": 1}
        go_on.set()
        await client.chunk()
        assert await client.chunk() == b""


# ---- connections to pods --------------------------------------------------------------------


@in_loop
async def test_connections_to_pods_are_kept_but_not_as_long_as_engines_keep_them() -> None:
    assert ForwardingOptions().idle_s < 5
    async with fleet(greets, options=ForwardingOptions(idle_s=0.05)) as them:
        engine = them.engines["a"]
        await them.ask(post())
        await them.ask(post())
        assert engine.asked[-1].connection <= 2
        await engine.asked[-1].gone.wait()  # It is the gateway that closes.
        assert (await them.ask(post()))[0].status == 200
        assert engine.asked[-1].connection > engine.asked[-2].connection


@in_loop
async def test_a_request_on_a_connection_that_the_pod_just_closed_is_sent_again() -> None:
    async def closes_at_the_second(asked: Asked) -> None:
        if len(them.engines["a"].asked) == 2:
            asked.die()
        else:
            await asked.answer(b"{}")

    async with fleet(closes_at_the_second) as them:
        client = await them.connect()
        for _ in range(3):
            await client.send(post())
            assert (await client.answer())[0].status == 200
        assert [asked.connection for asked in them.engines["a"].asked] == [1, 1, 2, 2]
        assert them.proxy.counts.retries == 1


@in_loop
async def test_a_pod_that_closes_after_each_answer_is_asked_on_new_connections() -> None:
    async def closes(asked: Asked) -> None:
        await asked.answer(b"{}", more="connection: close\r\n")
        asked.writer.close()

    async with fleet(closes) as them:
        client = await them.connect()
        for _ in range(3):
            await client.send(post())
            head, _ = await client.answer()
            assert (head.status, head.headers.get("connection")) == (200, None)
        assert them.engines["a"].num_connections == 3
        assert them.proxy.counts.retries == 0


@in_loop
async def test_a_hundred_streams_at_once_have_a_connection_each() -> None:
    async def waits(asked: Asked) -> None:
        await all_there.wait()
        await asked.answer(b"{}")

    all_there = asyncio.Event()
    async with fleet(waits) as them:
        clients = [await them.connect() for _ in range(128)]
        for client in clients:
            await client.send(post())
        await them.engines["a"].request(128)  # More than a pool of the usual size holds.
        all_there.set()
        for client in clients:
            assert (await client.answer())[0].status == 200


# ---- bodies ---------------------------------------------------------------------------------


@in_loop
async def test_a_client_that_expects_100_is_told_to_go_on() -> None:
    async with fleet(greets) as them:
        client, body = await them.connect(), prompt()
        await client.send(post(body=body, expect="100-continue").removesuffix(body))
        assert (await client.head()).status == 100
        await client.send(body)
        assert (await client.answer())[0].status == 200
        [asked] = them.engines["a"].asked
        assert (asked.body, asked.header("expect")) == (body, None)


@in_loop
async def test_a_client_that_expects_100_is_told_first_that_its_body_is_too_large() -> None:
    async with fleet(greets, limits=Limits(body_bytes=16)) as them:
        client, body = await them.connect(), prompt()
        await client.send(post(body=body, expect="100-continue").removesuffix(body))
        assert (await client.answer())[0].status == 413
        assert await client.is_cut()
        assert not them.engines["a"].asked


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/files"])
@in_loop
async def test_a_body_in_chunks_arrives(path: bytes) -> None:
    async with fleet(greets) as them:
        assert (await them.ask(CHUNKED % path))[0].status == 200
        assert them.engines["a"].asked[0].body == b"hello world"


@in_loop
async def test_a_body_in_chunks_that_is_not_kept_arrives() -> None:
    async with fleet(greets, options=ForwardingOptions(kept_bytes=2)) as them:
        assert (await them.ask(CHUNKED % b"/v1/files"))[0].status == 200
        [asked] = them.engines["a"].asked
        assert (asked.body, asked.header("transfer-encoding")) == (b"hello world", "chunked")


@in_loop
async def test_a_body_in_chunks_that_is_too_large_is_refused() -> None:
    async with fleet(greets, limits=Limits(body_bytes=8)) as them:
        assert (await them.ask(CHUNKED % b"/v1/completions"))[0].status == 413
        assert not them.engines["a"].asked


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 5",
        b"content-length: 5\r\ncontent-length: 6",
        b"content-length: +5",
        b"transfer-encoding: chunked, identity",
        b"transfer-encoding : chunked",
    ],
)
@in_loop
async def test_a_request_of_two_lengths_is_refused(headers: bytes) -> None:
    async with fleet(greets) as them:
        smuggled = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
        request = b"POST /v1/files HTTP/1.1\r\nhost: g\r\n" + headers + b"\r\n\r\n" + smuggled
        client = await them.connect()
        await client.send(request)
        assert (await client.answer())[0].status == 400
        assert await client.is_cut()
        assert not them.engines["a"].asked


# ---- heads ----------------------------------------------------------------------------------


@in_loop
async def test_a_head_that_is_too_large_is_refused() -> None:
    async with fleet(greets) as them:
        head, _ = await them.ask(post(x_long="x" * 70_000))
        assert head.status == 431
        assert not them.engines["a"].asked


@in_loop
async def test_a_client_of_http_1_0_is_told_what_to_send() -> None:
    async with fleet(greets) as them:
        head, body = await them.ask(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert head.status == 505
        assert b"proxy_http_version 1.1" in body
        assert (await them.ask(get("/healthz").replace(b"1.1", b"1.0")))[0].status == 200


@in_loop
async def test_a_client_that_wants_its_connection_closed_gets_that() -> None:
    async with fleet(greets) as them:
        client = await them.connect()
        await client.send(post(connection="close"))
        head, body = await client.answer()
        assert (head.headers["connection"], body) == ("close", b'{"choices": []}')
        assert await client.is_cut()
        assert them.engines["a"].asked[0].header("connection") in (None, "keep-alive")


@in_loop
async def test_requests_that_come_together_are_answered_in_order() -> None:
    async def answers(asked: Asked) -> None:
        if b"first" in asked.body:
            await go_on.wait()
        await asked.answer(asked.body)

    go_on = asyncio.Event()
    async with fleet(answers) as them:
        client = await them.connect()
        first, second = prompt(user="first"), prompt(user="second")
        await client.send(post(body=first) + post(body=second))
        await them.engines["a"].request(1)
        go_on.set()
        assert [(await client.answer())[1] for _ in range(2)] == [first, second]


@in_loop
async def test_what_a_request_was_is_forgotten_without_a_collection() -> None:
    def kept() -> int:
        return sum(isinstance(it, RequestResponseCycle) for it in gc.get_objects())

    async with fleet(greets) as them:
        client = await them.connect()
        gc.disable()
        try:
            before = kept()
            for _ in range(5):
                await client.send(post())
                assert (await client.answer())[0].status == 200
            assert kept() <= before + 1  # A connection has its last one.
        finally:
            gc.enable()


@in_loop
async def test_answers_without_a_body_have_none() -> None:
    async def answers(asked: Asked) -> None:
        if asked.line.startswith("HEAD"):
            await asked.write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n")
        else:
            await asked.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with fleet(answers) as them:
        client = await them.connect()
        for _ in range(2):
            await client.send(get("/v1/responses/1").replace(b"GET", b"HEAD"))
            assert (await client.head()).headers["content-length"] == "7"
            await client.send(get("/v1/responses/1").replace(b"GET", b"DELETE"))
            assert (await client.head()).status == 204


@in_loop
async def test_an_answer_that_ends_with_its_connection_arrives_whole() -> None:
    async def answers(asked: Asked) -> None:
        await asked.write(b"HTTP/1.1 200 OK\r\n\r\nuntil ")
        await asked.write(b"the end")
        asked.writer.close()

    async with fleet(answers) as them:
        client, head = await them.begin()
        assert head.headers["transfer-encoding"] == "chunked"
        body = b""
        while piece := await client.chunk():
            body += piece
        assert body == b"until the end"


@in_loop
async def test_what_is_compressed_stays_so() -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(b"\x1f\x8bnot really", more="content-encoding: gzip\r\n")

    async with fleet(answers) as them:
        head, body = await them.ask(post())
        assert (head.headers["content-encoding"], body) == ("gzip", b"\x1f\x8bnot really")


@in_loop
async def test_a_redirection_is_for_the_client() -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(b"", "307 Temporary Redirect", "location: http://elsewhere/\r\n")

    async with fleet(answers) as them:
        head, _ = await them.ask(post())
        assert (head.status, head.headers["location"]) == (307, "http://elsewhere/")


@in_loop
async def test_cookies_of_one_client_are_not_sent_for_another() -> None:
    async def answers(asked: Asked) -> None:
        await asked.answer(b"{}", more="set-cookie: a=1\r\nset-cookie: b=2\r\n")

    async with fleet(answers) as them:
        head, _ = await them.ask(post())
        assert head.headers["set-cookie"]
        await them.ask(post())
        assert them.engines["a"].asked[1].header("cookie") is None


# ---- who is slow ----------------------------------------------------------------------------


@in_loop
async def test_a_client_that_does_not_read_stops_its_pod() -> None:
    size, number = 64 << 10, 512
    written = 0

    async def streams(asked: Asked) -> None:
        nonlocal written
        await asked.begin("application/octet-stream")
        for _ in range(number):
            await asked.chunk(b"x" * size)
            written += 1
        await asked.end()

    async with fleet(streams) as them:
        client, _ = await them.begin()
        await until_still(lambda: written)
        assert written < number
        read = 0
        while piece := await client.chunk():
            read += len(piece)
        assert read == size * number
        await until(lambda: them.proxy.in_flight == 0)


@in_loop
async def test_a_pod_that_does_not_read_stops_its_client() -> None:
    async with slow_pod() as (port, go_on), fleet() as them:
        serving = Serving(url=f"http://127.0.0.1:{port}")
        them.service.put(PodId("a"), PodConfig(model="m", endpoint="tcp://h:1", serving=serving))
        client, size = await them.connect(), 100 << 20
        await client.send(post("/v1/files", b"", content_length=str(size)))
        sent = 0

        async def upload() -> None:
            nonlocal sent
            for _ in range(size >> 16):
                await client.send(bytes(1 << 16))
                sent += 1 << 16

        task = asyncio.ensure_future(upload())
        await until_still(lambda: sent)
        assert 0 < sent < size
        kept = ForwardingOptions().kept_bytes
        assert kept < them.gateway.connection_limits.held_bytes < 2 * kept
        go_on.set()
        await task
        assert (await client.answer())[1] == str(size).encode()


@in_loop
async def test_a_body_that_does_not_arrive_in_time_ends_its_request_at_the_pod() -> None:
    async with fleet(greets, options=ForwardingOptions(kept_bytes=4)) as them:
        for path in ("/v1/completions", "/v1/files"):
            client = await them.connect()
            await client.send(post(path, b"0123456789", content_length="20"))
            await until(lambda: them.proxy.in_flight == 1)
            await asyncio.sleep(0)
            them.sweep_clients(Limits().request_s + 1)
            assert (await client.answer())[0].status == 408
            assert await client.is_cut()
            await until(lambda: them.proxy.in_flight == 0)
        assert not them.proxy.counts.failures


@in_loop
async def test_a_stream_may_last_longer_than_any_time_of_connections() -> None:
    go_on = asyncio.Event()
    async with fleet(two_events(go_on)) as them:
        client, _ = await them.begin()
        await client.chunk()
        them.sweep_clients(10_000)
        go_on.set()
        assert await client.chunk() == b"data: 2\n\n"
        assert await client.chunk() == b""


@in_loop
async def test_a_client_that_ends_its_side_has_left() -> None:
    async with fleet(never_answers) as them:
        client = await them.connect()
        await client.send(post())
        asked = await them.engines["a"].request(1)
        client.writer.write_eof()
        await asked.gone.wait()


@asynccontextmanager
async def slow_pod() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """An engine that reads no body until it is told to, and answers its length."""
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        for _ in range(length >> 16):
            await reader.readexactly(1 << 16)
        body = str(length).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], go_on
    finally:
        server.close()
