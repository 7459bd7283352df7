"""Connections have limits of size, time and number, and every refusal has the documented shape."""

import json
import tracemalloc
from collections.abc import Iterator

import pytest
from kvbraid.ids import PodId
from kvbraid.service.config import Limits, PodConfig
from kvbraid.service.http.app import Application
from kvbraid.service.http.connection import SLICE_BYTES
from kvbraid.service.http.connection_limits import MOST_LEAVING
from kvbraid.service.registry import Service

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.wire import Wires

HEAD_BYTES = 4096
LIMITS = Limits(
    body_bytes=1 << 20, bodies_bytes=1 << 20, head_bytes=HEAD_BYTES, connections=4,
    request_s=30, idle_s=60,
)  # fmt: skip
JSON = json.dumps({"model": "m", "token_ids": [1, 2, 3]}).encode()
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"


def post(body: bytes = JSON, *headers: bytes, path: bytes = b"/v1/score") -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"host: h", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def statuses(answers: list[tuple[int, dict[bytes, bytes], bytes]]) -> list[int]:
    return [status for status, _, _ in answers]


@pytest.fixture
def held(index: FakeIndex) -> Service:
    """A service with one pod."""
    service = Service(index, FakeFeed(), limits=LIMITS)
    service.put(PodId("a"), PodConfig(model="m", endpoint="tcp://h:1"))
    return service


@pytest.fixture
def wires(held: Service) -> Iterator[Wires]:
    with Wires(Application(held)) as wires:
        yield wires


def test_a_connection_that_says_nothing_is_closed_after_the_idle_time(wires: Wires) -> None:
    silent, spoke = wires.connect(), wires.connect()
    wires.later(59)
    spoke.send(HEALTH)
    wires.later(2)
    assert (silent.closed(), bytes(silent.transport.sent)) == (True, b"")
    assert not spoke.closed()
    wires.later(59)
    assert spoke.closed()
    assert statuses(spoke.answers()) == [200]


@pytest.mark.parametrize(
    "half", [b"P", post()[:20], post()[:-1], post(path=b"/v1/explain")[:-1], post(b"")[:-1]]
)
def test_half_a_request_is_answered_and_closed_after_the_request_time(
    wires: Wires, half: bytes
) -> None:
    wire = wires.connect()
    wires.later(59)
    wire.send(half)
    wires.later(29)
    assert not wire.closed()
    wires.later(2)
    assert wire.refusal() == (408, "request_timeout")
    assert wire.closed()
    assert wires.app.connection_limits.refused["request_timeout"] == 1
    assert wires.app.connection_limits.held_bytes == 0


def test_bytes_that_trickle_in_do_not_renew_the_time(wires: Wires) -> None:
    wire = wires.connect()
    for byte in post()[:40]:
        wire.send(bytes([byte]))
        wires.later(1)
    assert wire.refusal() == (408, "request_timeout")


def test_a_request_that_is_being_answered_has_all_the_time(wires: Wires, index: FakeIndex) -> None:
    index.fail = None
    wire = wires.connect()
    wire.send(post(path=b"/v1/explain"), settle=False)
    wires.later(1000)
    wires.finish()
    assert statuses(wire.answers()) == [200]
    wires.later(61)
    assert wire.closed()


def test_half_a_request_after_one_that_is_being_answered_has_its_own_time(wires: Wires) -> None:
    wire = wires.connect()
    wire.protocol.data_received(post(path=b"/v1/explain") + b"GET /heal")
    wires.clock.now += 1000
    wires.app.connection_limits.sweep([wire.protocol], wires.clock.now)
    assert not wire.closed()
    wires.finish()
    wires.later(29)
    assert (statuses(wire.answers()), wire.closed()) == ([200], False)
    wires.later(2)
    assert statuses(wire.answers()) == [200, 408]


def test_an_answer_that_is_not_read_is_given_up(wires: Wires) -> None:
    wire = wires.connect().send(HEALTH)
    wire.transport.unread = 100
    wires.later(1)
    wire.transport.unread = 50
    wires.later(29)
    wires.later(30)
    assert not wire.closed()
    wires.later(2)
    assert wire.closed()
    assert wires.app.connection_limits.refused["unread_answer"] == 1


@pytest.mark.parametrize("size", [64, 1000, 65536])
@pytest.mark.parametrize(
    "endless", [b"GET / HTTP/1.1\r\nx: " + b"a" * (1 << 20), b"GET /" + b"a" * (1 << 20)]
)
def test_a_head_without_end_is_cut_off_at_its_limit(
    wires: Wires, endless: bytes, size: int
) -> None:
    wire, sent = wires.connect(), 0
    while not wire.closed():
        wire.send(endless[sent : sent + size], settle=False)
        sent += size
    assert sent <= HEAD_BYTES + 2 * size
    assert wire.refusal() == (431, "head_too_large")


@pytest.mark.parametrize("path", [b"/v1/score", b"/healthz"])
def test_the_limit_of_a_head_is_the_same_in_one_piece_and_in_many(
    wires: Wires, path: bytes
) -> None:
    for header, status in ((b"a" * (HEAD_BYTES - 200), 200), (b"a" * HEAD_BYTES, 431)):
        request = post(JSON, b"x: " + header, path=path)
        if path == b"/healthz":
            request = request.replace(b"POST", b"GET")
        for size in (len(request), 999):
            wire = wires.connect()
            for start in range(0, len(request), size):
                wire.send(request[start : start + size])
            wires.finish()
            assert statuses(wire.answers()) == [status]
            wire.hang_up()


def test_the_head_of_an_answer_goes_out_with_its_body(wires: Wires) -> None:
    wire = wires.connect().send(HEALTH)
    assert statuses(wire.answers()) == [200]
    assert wire.transport.num_writes == 1
    sent = wires.connect().send(HEALTH.replace(b"GET", b"HEAD")).transport.sent
    assert sent.startswith(b"HTTP/1.1 200 OK")
    assert sent.endswith(b"\r\n\r\n")


def test_many_requests_in_one_piece_are_no_large_head(wires: Wires) -> None:
    wire = wires.connect()
    wire.send(post() * 200 + post()[:20])
    wire.send(post()[20:])
    assert statuses(wire.answers()) == [200] * 201


def test_a_large_piece_is_parsed_in_slices_between_which_others_have_their_turn(
    wires: Wires,
) -> None:
    flood = post() * (4 * SLICE_BYTES // len(post()))
    greedy, other = wires.connect(), wires.connect()
    greedy.send(flood, settle=False)
    assert 0 < len(greedy.answers()) * len(post()) <= SLICE_BYTES
    assert greedy.transport.is_paused
    other.send(HEALTH, settle=False)
    wires.settle()
    assert statuses(other.answers()) == [200]
    assert statuses(greedy.answers()) == [200] * (len(flood) // len(post()))
    assert not greedy.transport.is_paused


def test_what_uvicorn_is_not_ready_for_is_not_parsed_yet(wires: Wires) -> None:
    wire = wires.connect()
    ask = post(path=b"/v1/explain")
    wire.send(ask * 3 + post() * (2 * SLICE_BYTES // len(post())) + HEALTH, settle=False)
    assert wire.answers() == []
    assert wire.transport.is_paused
    assert wire.protocol.has_unparsed()
    wires.finish()
    assert set(statuses(wire.answers())) == {200}
    assert len(wire.answers()) == 4 + 2 * SLICE_BYTES // len(post())
    assert not wire.transport.is_paused


def test_a_new_connection_takes_the_place_of_the_one_waited_for_longest(wires: Wires) -> None:
    half = wires.connect().send(post()[:-1])
    others = []
    for _ in range(3):
        wires.clock.now += 1
        others.append(wires.connect())
    wires.clock.now += 1
    newest = wires.connect().send(HEALTH)
    assert half.closed()
    assert not any(other.closed() for other in others)
    assert statuses(newest.answers()) == [200]
    assert wires.app.connection_limits.refused == {"evicted": 1}


def test_when_every_connection_is_being_answered_a_new_one_is_told_so(wires: Wires) -> None:
    busy = [wires.connect() for _ in range(4)]
    for wire in busy:
        wire.protocol.data_received(post(path=b"/v1/explain"))
    late = wires.connect()
    assert late.refusal() == (503, "too_many_connections")
    assert late.closed()
    wires.finish()
    assert [statuses(wire.answers()) for wire in busy] == [[200]] * 4


def test_who_is_refused_can_read_why_and_takes_no_place(wires: Wires) -> None:
    busy = [wires.connect() for _ in range(4)]
    for wire in busy:
        wire.protocol.data_received(post(path=b"/v1/explain"))
    refused = [wires.connect() for _ in range(MOST_LEAVING + 1)]
    assert not any(wire.transport.is_closing() for wire in refused[:-1])  # Each is only ended.
    assert refused[-1].transport.is_closing()
    refused[0].send(HEALTH)
    assert {wire.refusal() for wire in refused} == {(503, "too_many_connections")}
    busy.pop().hang_up()
    busy.append(wires.connect().send(HEALTH))
    assert statuses(busy[-1].answers()) == [200]
    limits = wires.app.connection_limits
    assert limits.refused == {"too_many_connections": MOST_LEAVING + 1}
    for wire in refused:
        wire.hang_up()
    assert limits.num_leaving == 0


@pytest.mark.parametrize("path", [b"/v1/score", b"/v1/explain"])
def test_a_body_in_tiny_pieces_costs_no_more_than_its_bytes(wires: Wires, path: bytes) -> None:
    num_pieces = 100_000
    head = b"POST %b HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n" % path
    piece = b"2\r\n  \r\n" * 1000
    wire = wires.connect().send(head)
    tracemalloc.start()
    for _ in range(num_pieces // 1000):
        wire.send(piece)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert wires.app.connection_limits.held_bytes == 2 * num_pieces
    assert grown < 4 * num_pieces
    wire.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON))
    wires.finish()
    assert statuses(wire.answers()) == [200]
    assert wires.app.connection_limits.held_bytes == 0


@pytest.mark.parametrize("path", [b"/v1/score", b"/v1/explain"])
def test_all_bodies_together_have_a_limit(wires: Wires, path: bytes) -> None:
    size = 600_000
    begun = post(bytes(size), path=path)
    first = wires.connect().send(begun[:-1])
    assert wires.app.connection_limits.held_bytes == size - 1
    second = wires.connect().send(begun[:-1])
    assert second.refusal() == (503, "overloaded")
    assert wires.app.connection_limits.held_bytes == size - 1
    first.hang_up()
    assert wires.app.connection_limits.held_bytes == 0
    third = wires.connect().send(begun[:-1])
    assert third.answers() == []


@pytest.mark.parametrize(
    "bad",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n", b"FOO BAR\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: h\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"POST /v1/explain HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"GET http://[/ HTTP/1.1\r\nhost: h\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_not_http_is_answered_in_the_one_shape_and_closed(
    wires: Wires, bad: bytes
) -> None:
    wire = wires.connect().send(bad)
    assert wire.refusal() == (400, "malformed_http")
    assert wire.closed()
    assert wires.app.connection_limits.refused == {"malformed_http": 1}
    after = wires.connect().send(HEALTH + bad)
    assert statuses(after.answers()) == [200] if b"HTTP/1.1" not in bad else [200, 400]


def test_earlier_requests_are_answered_before_a_malformed_one_ends_the_connection(
    wires: Wires,
) -> None:
    wire = wires.connect()
    wire.send(post(path=b"/v1/explain") + HEALTH + b"\x00\x01\r\n\r\n", settle=False)
    wires.finish()
    wires.settle()
    assert statuses(wire.answers()) == [200, 200]
    assert wire.closed()


@pytest.mark.parametrize("path", [b"/v1/score", b"/v1/explain", b"/v1/pods/a"])
@pytest.mark.parametrize("header", [b"content-type", b"authorization", b"host", b"origin"])
def test_a_deciding_header_that_comes_twice_is_refused_everywhere(
    wires: Wires, path: bytes, header: bytes
) -> None:
    request = post(JSON, header + b": a", header + b": a", path=path)
    if path.startswith(b"/v1/pods"):
        request = request.replace(b"POST", b"PUT")
    wire = wires.connect().send(request)
    wires.finish()
    assert wire.refusal() == (400, "malformed_http")
    assert header in wire.answers()[-1][2]


def test_a_header_that_decides_nothing_may_come_twice(wires: Wires) -> None:
    wire = wires.connect().send(post(JSON, b"x-a: 1", b"x-a: 2"))
    wires.finish()
    assert statuses(wire.answers()) == [200]


def test_what_is_refused_before_any_route_is_in_the_metrics(wires: Wires) -> None:
    wires.connect().send(b"\x00")
    wire = wires.connect().send(b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n")
    wires.finish()
    lines = wire.answers()[0][2].decode().splitlines()
    assert 'kvbraid_http_refused_total{reason="malformed_http"} 1.0' in lines
    assert "kvbraid_http_bodies_bytes 0.0" in lines


@pytest.mark.parametrize("bad", [b"\x00\x01", post(b"", b"transfer-encoding: chunked") + b"xyz"])
def test_after_a_refusal_that_waits_for_answers_nothing_is_parsed_any_more(
    wires: Wires, bad: bytes
) -> None:
    wire = wires.connect()
    wire.send(post(path=b"/v1/explain") + bad, settle=False)
    for _ in range(3):
        wire.send(b"more \x00", settle=False)
    wires.finish()
    wires.later(1)
    assert wire.closed()
    assert wires.app.connection_limits.refused == {"malformed_http": 1}
    assert 500 not in statuses(wire.answers())


def test_a_malformed_body_behind_a_request_that_is_being_answered_ends_the_connection(
    wires: Wires,
) -> None:
    wire = wires.connect()
    head = b"POST /v1/explain HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    wire.send(post(path=b"/v1/explain") + head + b"xyz\r\n", settle=False)
    wire.send(b"more", settle=False)
    wires.finish()
    wires.later(1)
    assert statuses(wire.answers()) == [200]
    assert wire.closed()
    assert wires.app.connection_limits.refused == {"malformed_http": 1}


@pytest.mark.parametrize("path", [b"/v1/score", b"/v1/explain"])
def test_whoever_waits_to_be_told_to_go_on_and_sends_rubbish_is_told_once(
    wires: Wires, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\n" % path
    wire = wires.connect().send(head + b"transfer-encoding: chunked\r\n\r\nxyz\r\n")
    assert statuses(wire.answers()) == [400]
    assert not caplog.records
