"""The real server as a process: it answers over a socket and ends in order on a signal."""

import http.client
import json
import resource
import signal
import socket

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.service.capacity import DESCRIPTORS_PER_RANK, max_ranks
from kvbraid.service.config import FleetConfig, Limits, ServerOptions
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.server import run_server
from kvbraid.service.registry import Service

from tests.service.engines import RawEngine, seq_bytes
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.serving import running

BODY = json.dumps({"model": "m", "token_ids": [1, 2, 3]})


def post(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("POST", path, BODY, {"content-type": "application/json"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0_also_with_open_connections(
    number: signal.Signals,
) -> None:
    with running() as server:
        used, unused = server.connect(), server.connect()
        for _ in range(2):  # The second request shows that the connection was kept.
            post(used, "/v1/score")
            answer = used.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["num_tokens"] == 3
        unused.connect()
        status = server.end(number)
        assert server.process.stderr is not None
        errors = server.process.stderr.read()
    assert status == 0, errors


def test_a_request_in_flight_is_answered_before_the_end() -> None:
    with running(explain_s=0.5) as server:
        connection = server.connect()
        post(connection, "/v1/explain")
        assert server.line() == "explaining"
        server.process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["num_tokens"] == 3
        assert server.process.wait(timeout=20) == 0


def test_a_slow_call_and_half_a_request_do_not_hold_up_the_end() -> None:
    with running(explain_s=30) as server:
        halfway = server.connect()
        halfway.connect()
        halfway.sock.sendall(b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        explained = server.connect()
        post(explained, "/v1/explain")
        assert server.line() == "explaining"
        status = server.end(signal.SIGTERM)
        with explained.getresponse() as answer:
            assert answer.status == 503
            assert json.loads(answer.read())["error"]["code"] == "shutting_down"
        assert server.process.stderr is not None
        assert "Traceback" not in server.process.stderr.read()
    assert status == 0


def test_a_batch_that_never_ends_and_a_change_that_waits_for_it_do_not_hold_up_the_end() -> None:
    with RawEngine() as engine, running(stuck=(engine.endpoint, engine.replay_endpoint)) as server:
        client, _ = engine.asked()
        engine.answer(client, b"", seq_bytes(0), b"0")
        assert server.line() == "applying"
        pod = json.dumps({"model": "m", "endpoint": "tcp://127.0.0.1:1"})
        server.connect().request("PUT", "/v1/pods/b", pod, {"content-type": "application/json"})
        other = server.connect()
        other.request("GET", "/healthz")
        with other.getresponse() as answer:
            assert answer.status == 200
        status = server.end(signal.SIGTERM)
        assert server.process.stderr is not None
        errors = server.process.stderr.read()
    assert status == 0, errors
    assert "Traceback" not in errors


def test_a_long_call_does_not_hold_the_event_loop() -> None:
    with running(explain_s=10) as server:
        post(server.connect(), "/v1/explain")
        assert server.line() == "explaining"
        other = server.connect()
        other.request("GET", "/healthz")
        with other.getresponse() as answer:
            assert answer.status == 200


def test_after_the_signal_nothing_is_accepted() -> None:
    with running(explain_s=0.5) as server:
        connection = server.connect()
        post(connection, "/v1/explain")
        assert server.line() == "explaining"
        server.process.send_signal(signal.SIGTERM)
        connection.getresponse().read()
        server.process.wait(timeout=20)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((server.host, server.port), timeout=5)


def test_an_address_in_use_is_said_once_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidValueError) as refused:
            run_server(
                FleetConfig(server=ServerOptions(port=port)),
                Service(FakeIndex(), FakeFeed()),
                announce=lambda _: None,
            )
    told = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another"
    assert str(refused.value) == told


def test_most_descriptors_are_left_to_the_feeds() -> None:
    connection_limits = ConnectionLimits(Limits(connections=1 << 40))
    connection_limits.leave_descriptors()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection_limits.max_connections == limit // 4
    assert max_ranks() * DESCRIPTORS_PER_RANK + connection_limits.max_connections <= limit
    small = ConnectionLimits(Limits(connections=3))
    small.leave_descriptors()
    assert small.max_connections == 3


def test_a_running_server_closes_who_says_nothing_and_who_says_half() -> None:
    with running(patience_s=1) as server:
        address = (server.host, server.port)
        with (
            socket.create_connection(address, timeout=20) as silent,
            socket.create_connection(address, timeout=20) as half,
        ):
            half.sendall(b"POST /v1/sc")
            with half.makefile("rb") as answer:
                assert answer.read().startswith(b"HTTP/1.1 408 ")
            assert silent.recv(1) == b""
