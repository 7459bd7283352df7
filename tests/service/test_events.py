"""GET /v1/events: whole states and differences, slow clients, and the end of either side."""

import asyncio
import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kvbraid.ids import PodId, PodState
from kvbraid.service.config import PodConfig
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.errors import RefusalError
from kvbraid.service.http.events import (
    MOST_ROWS,
    Changes,
    LadderTopic,
    RequestsTopic,
    Stream,
    pass_on,
)
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.in_process import TestClient
from tests.service.picks import Fleet, fleet_of
from tests.service.score_app import refusal
from tests.service.serving import Server, running, until

PERIOD_S = 0.01
POD = PodConfig(model="m", endpoint="tcp://h:5557")


def read(message: bytes) -> dict[str, dict[str, Any]]:
    """Return the data of a message by topic."""
    told = {}
    for event in message.decode().split("\n\n")[:-1]:
        topic, data = event.split("\n")
        told[topic.removeprefix("event: ")] = json.loads(data.removeprefix("data: "))
    return told


class Listening:
    """Streams of a service whose index is a fake."""

    def __init__(self, streams: int = 2) -> None:
        self.index = FakeIndex()
        picking = Picking(self.index, console=ConsoleOptions(streams=streams))
        self.service = Service(self.index, FakeFeed(), picking=picking)
        for pod in ("a", "b"):
            self.service.put(PodId(pod), POD)
        self.changes = Changes(self.service, period_s=PERIOD_S)

    async def next(self, stream: Stream) -> dict[str, Any]:
        return read(await asyncio.wait_for(anext(stream), timeout=10))["pods"]

    async def until_told(self, stream: Stream) -> dict[str, Any]:
        """Return the next message that tells of a change."""
        while True:
            told = await self.next(stream)
            if told["changed"] or told["gone"]:
                return told


def test_first_comes_all_and_then_what_has_changed() -> None:
    async def scenario() -> None:
        listening = Listening()
        stream = listening.changes.subscribe(["pods"])
        whole = await listening.next(stream)
        assert whole["is_whole"]
        assert [row["pod"] for row in whole["changed"]] == ["a", "b"]
        assert whole["changed"][0].keys() > {"state", "groups", "memory_bytes", "applied_s"}
        nothing = await listening.next(stream)
        assert not nothing["is_whole"]
        assert (nothing["changed"], nothing["gone"]) == ([], [])
        assert nothing["now_s"] > whole["now_s"]
        listening.index.set_state(PodId("b"), PodState.DEGRADED)
        told = await listening.until_told(stream)
        assert told["changed"] == [{"pod": "b", "dp_rank": 0, "state": "degraded"}]
        listening.service.delete(PodId("a"))
        told = await listening.until_told(stream)
        assert (told["changed"], told["gone"]) == ([], [["a", 0]])
        stream.close()

    asyncio.run(scenario())


def test_a_client_that_has_missed_messages_is_told_the_whole_state() -> None:
    async def scenario() -> None:
        listening = Listening()
        slow, quick = (listening.changes.subscribe(["pods"]) for _ in range(2))
        await listening.next(slow)
        for _ in range(3):
            await listening.next(quick)
        assert (await listening.next(slow))["is_whole"]
        assert not (await listening.next(slow))["is_whole"]
        assert not (await listening.next(quick))["is_whole"]

    asyncio.run(scenario())


def test_nothing_is_looked_at_without_clients() -> None:
    async def scenario() -> None:
        listening = Listening()
        looks: list[int] = []
        rows = listening.service.pods_answer
        listening.service.pods_answer = lambda: looks.append(1) or rows()  # type: ignore[method-assign,func-returns-value]
        stream = listening.changes.subscribe(["pods"])
        await listening.next(stream)
        stream.close()
        await asyncio.sleep(5 * PERIOD_S)
        before = len(looks)
        await asyncio.sleep(20 * PERIOD_S)
        assert len(looks) == before
        assert listening.changes._task is not None
        assert listening.changes._task.done()
        again = listening.changes.subscribe(["pods"])
        assert (await listening.next(again))["is_whole"]
        assert len(looks) > before

    asyncio.run(scenario())


def test_clients_are_limited_and_one_that_goes_makes_room() -> None:
    async def scenario() -> None:
        changes = Listening(streams=2).changes
        first, _ = changes.subscribe([]), changes.subscribe([])
        with pytest.raises(RefusalError, match="2 clients listen"):
            changes.subscribe([])
        first.close()
        first.close()
        assert changes.num_streams == 1
        changes.subscribe([])

    asyncio.run(scenario())


def test_a_look_that_fails_is_made_again() -> None:
    async def scenario() -> None:
        listening = Listening()
        rows, failures = listening.service.pods_answer, [RuntimeError("once")]

        def fails_once() -> Any:  # noqa: ANN401
            if failures:
                raise failures.pop()
            return rows()

        listening.service.pods_answer = fails_once  # type: ignore[method-assign]
        assert (await listening.next(listening.changes.subscribe(["pods"])))["is_whole"]

    asyncio.run(scenario())


def test_a_closed_server_ends_streams_and_begins_none() -> None:
    async def scenario() -> None:
        listening = Listening()
        stream = listening.changes.subscribe(["pods"])
        await listening.next(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        listening.changes.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(RefusalError, match="the server ends"):
            listening.changes.subscribe([])

    asyncio.run(scenario())


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield from fleet_of()


def test_requests_and_the_ladder_are_told_once_each(fleet: Fleet) -> None:
    requests, ladder = RequestsTopic(fleet.service), LadderTopic(fleet.service)
    assert requests.advance()["changed"] == []
    assert ladder.advance()["models"] == []
    fleet.pick(request_id="r")
    told: Any = requests.advance()
    assert [row.request for row in told["changed"]] == ["r"]
    assert told["num_changed"] == 1
    assert requests.advance()["changed"] == []
    whole: Any = requests.whole()
    assert [row.request for row in whole["changed"]] == ["r"]
    fleet.reported("r", "end", cached_tokens=0)
    told = ladder.whole()
    assert [(row.model, row.ended) for row in told["models"]] == [("m", 1)]
    assert [(row.model, row.ended) for row in told["intervals"]] == [("m", 1)]


def test_of_more_changes_than_a_message_holds_the_last_are_the_whole_state(fleet: Fleet) -> None:
    topic = RequestsTopic(fleet.service)
    for number in range(MOST_ROWS + 1):
        fleet.pick(request_id=str(number))
    told: Any = topic.advance()
    assert told["is_whole"]
    assert told["num_changed"] == MOST_ROWS + 1
    assert [row.request for row in told["changed"]] == [
        str(number) for number in range(MOST_ROWS, 0, -1)
    ]
    assert "is_whole" not in topic.advance()


def test_an_unknown_topic_is_refused(client: TestClient) -> None:
    told = refusal(client.get("/v1/events?topics=pods,x"))
    assert told == (
        400,
        "invalid_value",
        "topic 'x'; expected pods, requests, ladder, policy, config",
    )
    assert refusal(client.get("/v1/events?x=1"))[:2] == (400, "malformed_body")


def listen(server: Server) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = server.connect()
    connection.request("GET", "/v1/events?topics=pods")
    return connection, connection.getresponse()


def test_over_http_a_stream_tells_each_second_until_the_server_ends_at_once() -> None:
    with running() as server:
        _, response = listen(server)
        assert response.status == 200
        assert response.getheader("content-type") == "text/event-stream"
        assert response.getheader("cache-control") == "no-store"
        lines = [response.readline() for _ in range(6)]
        assert lines[0] == lines[3] == b"event: pods\n"
        assert json.loads(lines[1].removeprefix(b"data: "))["is_whole"]
        assert json.loads(lines[4].removeprefix(b"data: "))["changed"] == []
        begun = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - begun < 2.5, "less than what requests in flight are given"


def test_a_client_that_goes_makes_room_for_another() -> None:
    limit = ConsoleOptions().streams
    with running() as server:
        open_ones = [listen(server) for _ in range(limit)]
        assert [response.status for _, response in open_ones] == [200] * limit
        _, refused = listen(server)
        assert refused.status == 503
        assert json.loads(refused.read())["error"]["code"] == "too_many_streams"
        sock = open_ones[0][0].sock
        sock.shutdown(socket.SHUT_RDWR)
        assert until(lambda: listen(server)[1].status, lambda status: status == 200) == 200


def test_a_stream_ends_when_rights_change_so_that_a_revoked_key_hears_no_more() -> None:
    async def scenario() -> None:
        listening = Listening()
        stream, told, gone = listening.changes.subscribe(["pods"]), [], asyncio.Event()

        async def receive() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: bytes) -> None:
            told.append(message)

        await asyncio.wait_for(pass_on(stream, receive, send, lambda: len(told) < 2), timeout=10)
        assert len(told) == 2

    asyncio.run(scenario())


def test_head_has_the_headers_of_a_stream_and_no_end_to_wait_for() -> None:
    with running() as server:
        connection = server.connect()
        for _ in range(2):  # The connection is kept.
            connection.request("HEAD", "/v1/events")
            response = connection.getresponse()
            assert response.getheader("content-type") == "text/event-stream"
            assert response.read() == b""
