"""How much CPU does a query over HTTP cost the server?

64 pods hold 200 000 blocks of the mixed stream. The first 87.5 % of each prompt are a session's
prefix. There are 16 keep-alive connections with one request each in flight (a closed loop).
"""

import contextlib
import socket
from collections.abc import Callable, Iterator

import numpy as np

from bench.fleet.ours import Server
from bench.fleet.publishers import Publishers, wait_applied
from bench.fleet.rival import Indexer
from bench.fleet.streams import Mix, Tokens, queries
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process

NUM_CONNECTIONS = 16
NUM_PROMPTS = 32


def json_query(service: type[Server] | type[Indexer], tokens: Tokens) -> bytes:
    """Return the whole HTTP request with a JSON body."""
    kind, body = service.query_body(tokens.tolist())
    return http_request(service.query_path, kind, body)


def binary_query(service: type[Server] | type[Indexer], tokens: Tokens) -> bytes:
    """Return the whole HTTP request with raw little-endian uint32 token ids."""
    body = tokens.astype("<u4").tobytes()
    return http_request(f"{service.query_path}?model=model", "application/octet-stream", body)


def http_request(path: str, content_type: str, body: bytes) -> bytes:
    """Return the bytes of an HTTP/1.1 POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_answer(connection: socket.socket) -> bytes:
    """Read one answer with a Content-Length; refuse anything but 200."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.split(b" ", 2)[1] == b"200", head
    lengths = [
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    while len(body) < lengths[0]:
        body += connection.recv(1 << 16)
    return body


def ask(port: int, requests: list[bytes], count: int) -> list[bytes]:
    """Send `count` requests, one in flight on each connection; return the last round's answers."""
    answers: list[bytes] = []
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(NUM_CONNECTIONS)
        ]
        for round_number in range(count // NUM_CONNECTIONS):
            for offset, connection in enumerate(connections):
                connection.sendall(requests[(round_number + offset) % len(requests)])
            answers = [read_answer(connection) for connection in connections]
    return answers


def cpu_per_query(
    service: type[Server] | type[Indexer],
    num_tokens: int,
    count: int,
    spell: Callable[[type[Server] | type[Indexer], Tokens], bytes] = json_query,
) -> Side:
    """The CPU per query of a service that holds the mixed stream."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        mix = Mix(200_000)
        batches = list(mix)
        prompts = queries(mix.sessions, num_tokens, count=NUM_PROMPTS)
        requests = [spell(service, np.asarray(prompt)) for prompt in prompts]
        with service.running() as running, Publishers.bound() as publishers:
            publishers.connect(running)
            publishers.publish(batches)
            wait_applied(running, service.expected(batches))
            port = running.client.base_url.port
            assert port is not None  # `running` has set it.
            answers = ask(port, requests, 10 * NUM_CONNECTIONS)
            found = max(service.longest_match(answer) for answer in answers)
            assert found == num_tokens * 7 // 8, f"the best pod matches {found} tokens"

            def sample() -> float:
                begin = cpu_us_of_process(running.pid)
                ask(port, requests, count)
                return (cpu_us_of_process(running.pid) - begin) / count

            yield sample

    return side


ROWS = (
    Row(
        name="http_2k_json",
        question="2 048 tokens, JSON",
        unit="us CPU per query",
        ours=cpu_per_query(Server, 2_048, 6_400),
        rival=cpu_per_query(Indexer, 2_048, 6_400),
        target=Target(ratio=1),
        samples=5,
    ),
    Row(
        name="http_32k_json",
        question="32 768 tokens, JSON",
        unit="us CPU per query",
        ours=cpu_per_query(Server, 32_768, 1_600),
        rival=cpu_per_query(Indexer, 32_768, 1_600),
        target=Target(ratio=2),
        samples=5,
    ),
    Row(
        name="http_32k_binary",
        question="32 768 tokens, raw uint32 against the rival's JSON",
        unit="us CPU per query",
        ours=cpu_per_query(Server, 32_768, 1_600, binary_query),
        rival=cpu_per_query(Indexer, 32_768, 1_600),
        target=Target(ratio=4),
        samples=5,
    ),
)
