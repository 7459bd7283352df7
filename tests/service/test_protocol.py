"""The shortcut for scores on a raw socket: whatever the framing, the answers are the same."""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.service.serving import Server, running

JSON = json.dumps({"model": "m", "token_ids": [1, 2, 3]}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def wire(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection((server.host, server.port), timeout=20) as wire:
        yield wire


def post(body: bytes, *headers: str, path: str = "/v1/score", version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: h", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read(wire: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer, byte by byte up to its body: what follows belongs to the next."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = wire.recv(1)
        assert byte, head
        head += byte
    status, *lines = head.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = b""
    while len(body) < int(headers["content-length"]):
        body += wire.recv(int(headers["content-length"]) - len(body))
    return int(status.split()[1]), headers, body


def num_tokens(answer: tuple[int, dict[str, str], bytes]) -> int:
    status, headers, body = answer
    assert (status, headers["content-type"]) == (200, "application/json")
    number: int = json.loads(body)["num_tokens"]
    return number


def test_pipelined_requests_are_answered_in_order(wire: socket.socket) -> None:
    health = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"
    raw = post(bytes(8), "content-type: application/octet-stream", path="/v1/score?model=m")
    wire.sendall(post(JSON) + health + post(JSON) + raw + post(b"{") + post(JSON))
    assert num_tokens(read(wire)) == 3
    assert json.loads(read(wire)[2]) == {"status": "ok"}
    assert num_tokens(read(wire)) == 3
    assert num_tokens(read(wire)) == 2
    assert read(wire)[0] == 400
    assert num_tokens(read(wire)) == 3


def test_a_request_may_arrive_byte_by_byte(wire: socket.socket) -> None:
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in post(JSON):
        wire.sendall(bytes([byte]))
    assert num_tokens(read(wire)) == 3


def test_a_chunked_body_is_read(wire: socket.socket) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (JSON[:9], JSON[9:]))
    head = b"POST /v1/score HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    wire.sendall(head + chunks + b"0\r\n\r\n" + post(JSON))
    assert num_tokens(read(wire)) == 3
    assert num_tokens(read(wire)) == 3


def test_a_long_request_takes_uvicorns_path_and_the_connection_goes_on(
    wire: socket.socket,
) -> None:
    long = json.dumps({"model": "m", "token_ids": [123456] * 200_000}).encode()
    wire.sendall(post(long))
    assert num_tokens(read(wire)) == 200_000
    wire.sendall(post(JSON))
    assert num_tokens(read(wire)) == 3


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_it_is_whole(
    wire: socket.socket, chunked: bool
) -> None:
    size = (16 << 20) + 1
    if chunked:
        head = b"POST /v1/score HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.sendall(head + b"%x\r\n" % (size + 9) + bytes(size))
    else:
        wire.sendall(b"POST /v1/score HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % size)
    status, headers, body = read(wire)
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(body)["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    "request_bytes",
    [post(JSON, "connection: close"), post(JSON, version="1.0")],
    ids=["close", "1.0"],
)
def test_a_client_that_wants_the_end_gets_it(wire: socket.socket, request_bytes: bytes) -> None:
    wire.sendall(request_bytes)
    assert num_tokens(read(wire)) == 3
    assert wire.recv(1) == b""


def test_a_client_that_asks_first_is_told_to_go_on(wire: socket.socket) -> None:
    wire.sendall(post(JSON, "expect: 100-continue")[: -len(JSON)])
    assert wire.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.sendall(JSON)
    assert num_tokens(read(wire)) == 3


def test_a_client_that_leaves_halfway_harms_nobody(server: Server, wire: socket.socket) -> None:
    with socket.create_connection((server.host, server.port), timeout=20) as other:
        other.sendall(post(JSON)[:-5])
    wire.sendall(post(JSON))
    assert num_tokens(read(wire)) == 3


def test_what_is_not_http_is_refused(wire: socket.socket) -> None:
    wire.sendall(b"\x00\x01\x02\r\n\r\n")
    assert wire.recv(12) == b"HTTP/1.1 400"


def test_a_client_that_goes_on_sending_after_its_refusal_still_reads_it(
    wire: socket.socket,
) -> None:
    wire.sendall(b"GET /healthz HTTP/1.1\r\nhost: h\r\nx: " + b"a" * (8 << 20))
    status, headers, body = read(wire)
    assert (status, headers["connection"]) == (431, "close")
    assert json.loads(body)["error"]["code"] == "head_too_large"
    assert wire.recv(1) == b""
