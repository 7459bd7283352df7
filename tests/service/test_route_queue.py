"""Requests for which no pod has room: who waits, who is sent, and what the others are told."""

import asyncio
import json

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.route_pods import (
    Asked,
    Behaviour,
    Connection,
    Fleet,
    fleet,
    get,
    greets,
    in_loop,
    post,
    prompt,
    until,
)


def in_turn(*gates: asyncio.Event) -> Behaviour:
    """Answer the first requests when their gates open, and all others at once."""
    left = list(gates)

    async def answers(asked: Asked) -> None:
        if left:
            await left.pop(0).wait()
        await greets(asked)

    return answers


async def queued(them: Fleet, number: int, request: bytes) -> Connection:
    """Send a request, and wait until so many wait for room."""
    client = await them.connect()
    await client.send(request)
    await until(lambda: len(them.proxy.queue) == number)
    return client


async def held(them: Fleet, number: int = 1) -> list[Connection]:
    """Send requests that take all room there is."""
    clients = [await them.connect() for _ in range(number)]
    for client in clients:
        await client.send(post())
    await until(lambda: them.num_booked == number)
    return clients


def code(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


@in_loop
async def test_a_request_waits_until_a_pod_has_room() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    async with fleet(in_turn(gates[0]), in_turn(gates[1]), max_running=1) as them:
        first = await held(them, 2)
        waits = await queued(them, 1, post())
        assert b"kvbraid_gateway_queue 1.0" in (await them.ask(get("/metrics")))[1]
        gates[1].set()
        assert (await waits.answer())[0].status == 200
        assert len(them.engines["b"].asked) == 2
        gates[0].set()
        assert [(await client.answer())[0].status for client in first] == [200, 200]
        assert them.proxy.queue.outcomes == {"sent": 1}
        them.proxy.queue.check_integrity()


@in_loop
async def test_the_most_urgent_is_sent_first_and_equals_in_their_order() -> None:
    gate = asyncio.Event()
    async with fleet(in_turn(gate), max_running=1) as them:
        await held(them)
        names = {"late": 5, "soon": 0, "now": -1, "later": 5, "soon too": 0}
        for number, (name, priority) in enumerate(names.items(), 1):
            body = prompt(priority=priority, user=name)
            await queued(them, number, post(body=body))
        gate.set()
        await them.engines["a"].request(6)
        order = [json.loads(asked.body)["user"] for asked in them.engines["a"].asked[1:]]
        assert order == ["now", "soon", "soon too", "late", "later"]
        await until(lambda: them.proxy.in_flight == 0)


@in_loop
async def test_a_client_that_leaves_waits_no_longer() -> None:
    gate = asyncio.Event()
    async with fleet(in_turn(gate), max_running=1) as them:
        [first] = await held(them)
        leaves = await queued(them, 1, post())
        stays = await queued(them, 2, post())
        leaves.leave()
        await until(lambda: len(them.proxy.queue) == 1)
        gate.set()
        assert (await stays.answer())[0].status == 200
        assert (await first.answer())[0].status == 200
        assert len(them.engines["a"].asked) == 2
        assert them.proxy.queue.outcomes == {"left": 1, "sent": 1}


@in_loop
async def test_whoever_waits_too_long_is_told_to_come_again() -> None:
    gate = asyncio.Event()
    options = ForwardingOptions(queued_s=5.0)
    async with fleet(in_turn(gate), max_running=1, options=options) as them:
        [first] = await held(them)
        waits = await queued(them, 1, post())
        them.gateway.sweep(them.now(4.0))
        assert len(them.proxy.queue) == 1
        them.gateway.sweep(them.now(6.0))
        head, body = await waits.answer()
        assert (head.status, code(body)) == (429, "too_many_requests")
        assert head.headers["retry-after"] == "1"
        assert b"every pod was full for 5 s" in body
        gate.set()
        assert (await first.answer())[0].status == 200


@pytest.mark.parametrize("limit", [{"queued": 1}, {"queued_bytes": 400}])
@in_loop
async def test_a_full_queue_refuses_at_once(limit: dict[str, int]) -> None:
    gate = asyncio.Event()
    options = ForwardingOptions(**limit)  # type: ignore[arg-type]
    async with fleet(in_turn(gate), max_running=1, options=options) as them:
        [first] = await held(them)
        waits = await queued(them, 1, post())
        head, body = await them.ask(post(body=prompt(80)))
        assert (head.status, code(body)) == (429, "too_many_requests")
        assert b"every pod is full, and 1 requests with" in body
        gate.set()
        assert (await waits.answer())[0].status == 200
        assert (await first.answer())[0].status == 200


@in_loop
async def test_room_that_nobody_tells_of_is_found() -> None:
    gate = asyncio.Event()
    async with fleet(in_turn(gate), max_running=1) as them:
        [first] = await held(them)
        waits = [await queued(them, 1, post()), await queued(them, 2, post())]
        url = them.engines["a"].url
        more = PodConfig(model="m", endpoint="tcp://h:1", serving=Serving(url=url, max_running=3))
        them.service.put(PodId("a"), more)
        them.gateway.sweep(them.now())
        assert [(await client.answer())[0].status for client in waits] == [200, 200]
        gate.set()
        assert (await first.answer())[0].status == 200


@in_loop
async def test_nobody_waits_for_pods_that_may_get_nothing() -> None:
    gate = asyncio.Event()
    async with fleet(in_turn(gate), max_running=1) as them:
        [first] = await held(them)
        waits = await queued(them, 1, post())
        url = them.engines["a"].url
        drained = Serving(url=url, max_running=1, drain=True)
        them.service.put(PodId("a"), PodConfig(model="m", endpoint="tcp://h:1", serving=drained))
        head, body = await them.ask(post())
        assert (head.status, code(body)) == (503, "no_pod")
        them.gateway.sweep(them.now())
        head, body = await waits.answer()
        assert (head.status, code(body)) == (503, "no_pod")
        gate.set()
        assert (await first.answer())[0].status == 200
