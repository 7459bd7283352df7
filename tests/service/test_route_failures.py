"""Pods that fail, clients that leave, and a gateway that ends: what each of them sees."""

import asyncio
import json
import threading

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import PodConfig, Serving
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.route_pods import (
    Asked,
    Behaviour,
    Fleet,
    fleet,
    get,
    greets,
    in_loop,
    never_answers,
    post,
    prompt,
    two_events,
    until,
)

FAR: float = 10_000.0
"""Seconds after which any wait is over."""


async def dies(asked: Asked) -> None:
    asked.die()


async def leaves(asked: Asked) -> None:
    asked.writer.close()


async def dies_after_its_head(asked: Asked) -> None:
    await asked.begin()
    asked.die()


async def writes_garbage(asked: Asked) -> None:
    await asked.write(b"nonsense\r\n\r\n")


async def writes_a_head_that_is_too_large(asked: Asked) -> None:
    await asked.answer(b"{}", more=f"x-long: {'x' * 70_000}\r\n")


async def is_unavailable(asked: Asked) -> None:
    await asked.answer(b'{"engine": "starts"}', "503 Service Unavailable", "retry-after: 7\r\n")


async def streams_one_event(asked: Asked) -> None:
    await asked.begin()
    await asked.event("1")
    await asked.gone.wait()


def code(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


async def answers_of(them: Fleet, number: int) -> list[int]:
    return [(await them.ask(post()))[0].status for _ in range(number)]


# ---- before the first byte ------------------------------------------------------------------


@pytest.mark.parametrize(
    "fails",
    [
        dies, leaves, dies_after_its_head, writes_garbage, writes_a_head_that_is_too_large,
        is_unavailable,
    ],
)  # fmt: skip
@in_loop
async def test_another_pod_answers_for_one_that_fails_before_the_first_byte(
    fails: Behaviour,
) -> None:
    async with fleet(fails, greets) as them:
        assert await answers_of(them, 12) == [200] * 12
        failed = len(them.engines["a"].asked)
        assert failed
        assert them.proxy.counts.retries == failed == them.reports("failed")
        assert them.reports("first_token") == them.reports("end") == 12


@in_loop
async def test_another_pod_answers_for_one_that_does_not_listen() -> None:
    async with fleet(greets) as them:
        nobody = Serving(url="http://127.0.0.1:1")
        them.service.put(PodId("b"), PodConfig(model="m", endpoint="tcp://h:1", serving=nobody))
        assert await answers_of(them, 12) == [200] * 12
        assert them.proxy.counts.failures["not_connected"] == them.proxy.counts.retries > 0


@pytest.mark.parametrize(
    ("fails", "failure", "tries"),
    [
        (dies, "disconnected", 3),
        (dies_after_its_head, "disconnected", 3),
        (writes_garbage, "not_http", 1),
        (writes_a_head_that_is_too_large, "not_http", 1),
    ],
)
@in_loop
async def test_a_client_is_told_what_its_only_pod_did(
    fails: Behaviour, failure: str, tries: int
) -> None:
    async with fleet(fails) as them:
        head, body = await them.ask(post())
        assert (head.status, code(body)) == (502, "pod_failed")
        assert b"pod a: " in body
        assert them.proxy.counts.failures == {failure: tries}
        assert head.headers["x-request-id"]


@in_loop
async def test_no_pod_gets_a_request_more_often_than_attempts_say() -> None:
    async with fleet(dies, dies, dies, dies) as them:
        head, body = await them.ask(post())
        assert (head.status, code(body)) == (502, "pod_failed")
        assert b"; 3 tries" in body
        assert sum(len(engine.asked) for engine in them.engines.values()) == 3


@in_loop
async def test_the_answer_of_a_pod_that_is_unavailable_is_passed_on_if_no_other_is_left() -> None:
    async with fleet(is_unavailable, is_unavailable) as them:
        head, body = await them.ask(post())
        assert (head.status, body) == (503, b'{"engine": "starts"}')
        assert head.headers["retry-after"] == "7"
        assert them.reports("failed") == 2
        assert not them.proxy.counts.failures


@in_loop
async def test_a_refusal_of_an_engine_leaves_nothing_booked_and_is_not_repeated() -> None:
    async def refuses(asked: Asked) -> None:
        await asked.answer(b"too long", "400 Bad Request")

    async with fleet(refuses, refuses) as them:
        head, body = await them.ask(post())
        assert (head.status, body) == (400, b"too long")
        assert them.proxy.counts.retries == 0
        assert them.reports("failed") == 1


@in_loop
async def test_a_body_that_was_not_kept_is_sent_once() -> None:
    async with fleet(dies, dies, options=ForwardingOptions(kept_bytes=16)) as them:
        assert (await them.ask(post()))[0].status == 502
        assert (await them.ask(post("/v1/files", b"x" * 64)))[0].status == 502
        assert them.proxy.counts.retries == 0


@in_loop
async def test_a_long_body_arrives_whole() -> None:
    async with fleet(greets, greets) as them:
        body = prompt(300_000)
        assert len(body) > ForwardingOptions().kept_bytes
        assert (await them.ask(post(body=body)))[0].status == 200
        [asked] = [asked for engine in them.engines.values() for asked in engine.asked]
        assert asked.body == body
        assert asked.header("content-length") == str(len(body))


# ---- time-outs ------------------------------------------------------------------------------


@in_loop
async def test_a_silent_pod_is_given_up_and_another_one_asked() -> None:
    async with fleet(never_answers, never_answers) as them:
        client = await them.connect()
        await client.send(post())
        await until(lambda: any(engine.asked for engine in them.engines.values()))
        [first] = [engine for engine in them.engines.values() if engine.asked]
        [other] = [engine for engine in them.engines.values() if not engine.asked]
        them.gateway.sweep(them.now(FAR))
        await first.asked[0].gone.wait()  # The engine stops to work for nobody.
        await other.request(1)
        them.gateway.sweep(them.now(FAR))
        head, body = await client.answer()
        assert (head.status, code(body)) == (504, "pod_silent")
        assert them.proxy.counts.failures == {"no_first_byte": 2}


@in_loop
async def test_one_silent_pod_stops_nobody_else() -> None:
    async with fleet(never_answers, greets) as them:
        clients = [await them.connect() for _ in range(16)]
        for client in clients:
            await client.send(post())
        silent, other = them.engines.values()
        await until(lambda: len(silent.asked) + len(other.asked) == 16)
        await until(lambda: them.proxy.in_flight == len(silent.asked))
        assert (await them.ask(get("/healthz")))[0].status == 200
        them.gateway.sweep(them.now(FAR))
        assert [(await client.answer())[0].status for client in clients] == [200] * 16


@in_loop
async def test_a_wait_that_is_not_over_goes_on() -> None:
    async with fleet(streams_one_event) as them:
        client, _ = await them.begin()
        await client.chunk()
        them.gateway.sweep(them.now(1.0))
        assert them.proxy.in_flight == 1
        them.gateway.sweep(them.now(FAR))
        assert b'"pod_failed"' in await client.chunk()
        assert await client.is_cut()


@in_loop
async def test_an_event_stream_that_is_quiet_gets_comments() -> None:
    go_on = asyncio.Event()
    async with fleet(two_events(go_on)) as them:
        client, _ = await them.begin()
        await client.chunk()
        for _ in range(3):
            await until(lambda: any(e.waits for e in them.proxy._exchanges))
            them.gateway.sweep(them.now(ForwardingOptions().comment_s + 1))
            assert await client.chunk() == b": waiting\n\n"
        go_on.set()
        assert await client.chunk() == b"data: 2\n\n"
        assert await client.chunk() == b""


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
@in_loop
async def test_nothing_is_put_into_the_middle_of_an_event_or_into_another_answer(
    content_type: str,
) -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin(content_type)
        await asked.chunk(b"half of ")
        await go_on.wait()
        await asked.chunk(b"it")
        await asked.end()

    go_on = asyncio.Event()
    async with fleet(streams) as them:
        client, _ = await them.begin()
        assert await client.chunk() == b"half of "
        await until(lambda: any(e.waits for e in them.proxy._exchanges))
        them.gateway.sweep(them.now(ForwardingOptions().comment_s + 1))
        go_on.set()
        assert await client.chunk() == b"it"
        assert await client.chunk() == b""


# ---- after the first byte -------------------------------------------------------------------


@in_loop
async def test_an_event_stream_that_breaks_off_says_so_and_has_no_end() -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()
        asked.die()

    go_on = asyncio.Event()
    async with fleet(streams, streams) as them:
        client, _ = await them.begin()
        assert await client.chunk() == b"data: 1\n\n"
        go_on.set()
        assert json.loads((await client.chunk()).removeprefix(b"data: "))["error"]
        assert await client.is_cut()
        await until(lambda: them.proxy.in_flight == 0)
        assert them.proxy.counts.outcomes == {"cut": 1}
        assert them.proxy.counts.retries == 0
        assert (them.reports("failed"), them.reports("end")) == (1, 0)


@in_loop
async def test_an_answer_that_breaks_off_has_no_end() -> None:
    async def answers(asked: Asked) -> None:
        await asked.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await go_on.wait()
        asked.die()

    go_on = asyncio.Event()
    async with fleet(answers) as them:
        client, head = await them.begin()
        assert head.headers["content-length"] == "9"
        assert await client.reader.readexactly(4) == b"half"
        go_on.set()
        assert await client.is_cut()


@in_loop
async def test_nothing_is_logged_of_what_pods_do_to_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def streams(asked: Asked) -> None:
        await asked.begin()
        await asked.event("1")
        await go_on.wait()
        asked.die()

    go_on = asyncio.Event()
    async with fleet(streams) as them:
        client, _ = await them.begin(post() + post())  # The second one waits, in vain.
        await client.chunk()
        go_on.set()
        await client.chunk()
        assert await client.is_cut()
        await until(lambda: them.proxy.in_flight == 0)
        assert len(them.engines["a"].asked) == 1
    assert not caplog.records


# ---- clients that leave ---------------------------------------------------------------------


@in_loop
async def test_a_client_that_leaves_while_it_waits_ends_the_work_for_it() -> None:
    async with fleet(never_answers) as them:
        client = await them.connect()
        await client.send(post())
        asked = await them.engines["a"].request(1)
        client.leave()
        await asked.gone.wait()
        await until(lambda: them.proxy.in_flight == 0)
        assert them.proxy.counts.outcomes == {"client_gone": 1}
        assert (them.reports("failed"), them.reports("end")) == (1, 0)
        assert not them.proxy.counts.failures


@in_loop
async def test_a_client_that_leaves_a_stream_ends_it_and_what_it_cached_counts() -> None:
    async with fleet(streams_one_event) as them:
        client, _ = await them.begin()
        asked = await them.engines["a"].request(1)
        await client.chunk()
        client.leave()
        await asked.gone.wait()
        await until(lambda: them.proxy.in_flight == 0)
        assert them.proxy.counts.outcomes == {"client_gone": 1}
        assert (them.reports("failed"), them.reports("end")) == (0, 1)


@in_loop
async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing() -> None:
    async with fleet(greets, options=ForwardingOptions(kept_bytes=4)) as them:
        for path in ("/v1/completions", "/v1/files"):
            client = await them.connect()
            await client.send(post(path, b"0123456789", content_length="20"))
            await until(lambda: them.proxy.in_flight == 1)
            client.leave()
            await until(lambda: them.proxy.in_flight == 0)
        assert them.proxy.counts.outcomes == {"client_gone": 2}
        assert not them.proxy.counts.failures
        assert not them.engines["a"].asked


@in_loop
async def test_a_client_that_leaves_while_its_long_prompt_is_scored_leaves_nothing_booked() -> (
    None
):
    async with fleet(greets) as them:
        them.index.hold = threading.Event()
        client = await them.connect()
        await client.send(post(body=prompt(40_000)))
        await until(them.index.held.is_set)
        client.leave()
        await until(lambda: them.proxy.in_flight == 0)
        them.index.hold.set()
        await until(lambda: them.reports("failed") == 1)
        assert not them.engines["a"].asked


# ---- a gateway that ends --------------------------------------------------------------------


@in_loop
async def test_what_is_in_flight_at_the_end_is_told_or_cut() -> None:
    async def waits_or_streams(asked: Asked) -> None:
        await (streams_one_event if b"true" in asked.body else never_answers)(asked)

    async with fleet(waits_or_streams) as them:
        waiting = await them.connect()
        await waiting.send(post())
        streaming, _ = await them.begin(post(body=prompt(stream=True)))
        await streaming.chunk()
        await them.engines["a"].request(2)
        await them.end()
        head, body = await waiting.answer()
        assert (head.status, code(body)) == (503, "shutting_down")
        assert await streaming.is_cut()
        await until(lambda: them.proxy.in_flight == 0)
        assert them.proxy.counts.outcomes == {"shut_down": 2}


# ---- pods that are left alone ---------------------------------------------------------------


@in_loop
async def test_a_pod_that_keeps_failing_rests_and_is_tried_again() -> None:
    async with fleet(dies, greets, options=ForwardingOptions(failures=2)) as them:
        broken = them.engines["a"]

        async def ask_until(is_so: bool) -> None:
            while (PodId("a") in them.proxy.fleet.resting) is not is_so:
                assert (await them.ask(post()))[0].status == 200

        await ask_until(True)
        assert len(broken.asked) == 2
        assert await answers_of(them, 12) == [200] * 12
        assert len(broken.asked) == 2
        assert b'kvbraid_gateway_resting{pod="a"} 1.0' in (await them.ask(get("/metrics")))[1]

        them.gateway.sweep(them.now(FAR))
        await ask_until(True)
        assert len(broken.asked) == 3  # One failure is enough for one that is on trial.

        them.gateway.sweep(them.now(FAR))
        broken.behaviour = greets
        while len(broken.asked) < 4:
            await them.ask(post())
        broken.behaviour = dies
        await ask_until(True)
        assert len(broken.asked) == 6  # It had been cleared.


@in_loop
async def test_while_every_pod_rests_requests_are_refused_with_the_reason_and_not_after() -> None:
    async with fleet(dies, dies, options=ForwardingOptions(failures=1)) as them:
        assert (await them.ask(post()))[0].status == 502
        head, body = await them.ask(post())
        assert (head.status, code(body)) == (503, "no_pod")
        assert b"2 not_ready" in body
        for engine in them.engines.values():
            engine.behaviour = greets
        them.gateway.sweep(them.now(FAR))
        assert await answers_of(them, 4) == [200] * 4


@in_loop
async def test_a_pod_that_was_removed_while_it_rested_is_forgotten() -> None:
    async with fleet(dies, greets, options=ForwardingOptions(failures=1)) as them:
        while PodId("a") not in them.proxy.fleet.resting:
            await them.ask(post())
        them.service.delete(PodId("a"))
        assert await answers_of(them, 2) == [200, 200]
        assert not them.proxy.fleet.resting
