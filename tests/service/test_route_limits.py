"""What a gateway does for the others when some clients are many, large or slow."""

import asyncio
import json

import pytest
from kvbraid.service.config import Limits

from tests.service.route_pods import (
    Asked,
    fleet,
    get,
    greets,
    in_loop,
    never_answers,
    post,
    prompt,
    until,
    until_still,
)

MOST = 40
"""Connections of the gateways here."""
MANY = 10 * MOST


@in_loop
async def test_who_comes_while_all_connections_are_served_is_told_so_and_counted() -> None:
    async with fleet(never_answers, limits=Limits(connections=MOST)) as them:
        served = [await them.connect() for _ in range(MOST)]
        for client in served:
            await client.send(post())
        await until(lambda: them.proxy.in_flight == MOST)
        for _ in range(MANY):
            late = await them.connect()
            head, body = await late.answer()
            assert (head.status, json.loads(body)["error"]["code"]) == (
                503,
                "too_many_connections",
            )
            assert await late.is_cut()
        assert them.gateway.connection_limits.refused == {"too_many_connections": MANY}
        assert them.proxy.in_flight == MOST
        for client in served:
            client.leave()
        await until(lambda: them.proxy.in_flight == 0)
        assert (await them.ask(get("/healthz")))[0].status == 200


@in_loop
async def test_connections_that_say_nothing_make_room_for_those_that_do() -> None:
    async with fleet(greets, limits=Limits(connections=MOST)) as them:
        silent = [await them.connect() for _ in range(MANY)]
        assert (await them.ask(post()))[0].status == 200
        assert them.gateway.connection_limits.refused["evicted"] >= MANY - MOST
        assert await silent[0].is_cut()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
@in_loop
async def test_a_prompt_of_100_megabytes_is_refused_and_others_are_served(path: str) -> None:
    limits = Limits(body_bytes=1 << 20)
    async with fleet(greets, limits=limits) as them:
        client, most = await them.connect(), 0
        await client.send(post(path, b"", content_length=None, transfer_encoding="chunked"))

        async def upload() -> None:
            nonlocal most
            for _ in range((100 << 20) >> 16):
                await client.send(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                most = max(most, them.gateway.connection_limits.held_bytes)

        sending = asyncio.ensure_future(upload())
        head, body = await client.answer()
        assert (head.status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
        assert (await them.ask(post()))[0].status == 200
        client.leave()
        await asyncio.gather(sending, return_exceptions=True)
        assert most <= 2 * limits.body_bytes
        assert not them.engines["a"].asked[1:]


@in_loop
async def test_a_client_that_reads_slowly_makes_none_of_fifty_others_wait() -> None:
    written = 0

    async def streams(asked: Asked) -> None:
        nonlocal written
        await asked.begin()
        for number in range(512 if b"slow" in asked.body else 20):
            await asked.event(str(number) * (1 << 16 if b"slow" in asked.body else 1))
            written += 1
        await asked.end()

    async with fleet(streams) as them:
        slow, _ = await them.begin(post(body=prompt(user="slow")))
        await until_still(lambda: written)
        answers = await asyncio.gather(*(them.ask(post()) for _ in range(50)))
        assert {(head.status, body.count(b"data: ")) for head, body in answers} == {(200, 20)}
        assert them.proxy.in_flight == 1
        slow.leave()
        await until(lambda: them.proxy.in_flight == 0)
