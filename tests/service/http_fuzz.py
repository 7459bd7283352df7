"""Hostile HTTP from a seed: requests, and bytes that are nearly requests.

`Draw` makes them. `Session` sends them to a real application in process, in pieces, pipelined, cut
off and abandoned, and asserts: whatever arrives, every answer is complete and has a documented
status, every refusal has the documented JSON shape and none is a 500, nothing is logged as an
error, and the bytes of all bodies are released.

    python -m tests.service.http_fuzz SEED STEPS
"""

import contextlib
import json
import logging
import random
import re
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx
import msgspec
from kvbraid.fleet.index import FleetIndex
from kvbraid.service.config import Limits, PodBody, ServerOptions
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.errors import ERRORS
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.http.routes import ROUTES
from kvbraid.service.picking import Picking
from kvbraid.service.registry import Service
from kvbraid.service.requests import (
    MediaBody,
    PickBody,
    ReportBody,
    RoutedBody,
    ScoreBody,
    TokensBody,
)
from kvbraid.spec import SpecKind

from tests.service.fakes import FakeFeed
from tests.service.wire import Wire, Wires

LIMITS = Limits(
    body_bytes=1 << 16, bodies_bytes=1 << 18, head_bytes=1 << 13, tokens=2048, pods=8,
    connections=16, request_s=30, idle_s=60,
)  # fmt: skip
STATUSES: Final = frozenset({100, 200, 201} | {kind.status for kind in ERRORS.values()} - {500})
PODS: Final = ("a", "b", "ns/c")
REQUESTS: Final = ("1", "2", "r\u0000")
GROWTH_BYTES: Final = 256 << 20
_WORDS: Final = (
    "", "m", "gpu", "exact", "weighted_blocks", "tcp://h:1", "tcp://-:1", "tcp://[::1]:9", "null",
    "\n", "\x00", "\u202e", "`", "a` - at `$.b", "é", "\U0001f600", "localhost", "-1", "x" * 99,
)  # fmt: skip
_NUMBERS: Final = (
    0, 1, 2, 16, 255, 1024, 65535, 65537, 65539, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 10**30, -1,
    0.5, 1e308, -0.0,
)  # fmt: skip


class Draw:
    """Requests as bytes, one after the other, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.chance = self._random.random
        self.among = self._random.choice
        self.below = self._random.randrange

    def request(self) -> bytes:
        """One request, mostly well-formed; sometimes with bytes changed."""
        request = self._well_formed()
        if self.chance() < 0.3:
            request = self._mutated(request)
        return request

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes as they may arrive."""
        if self.chance() < 0.6:
            return [data]
        most = self.among((1, 7, 100, 4096))
        pieces: list[bytes] = []
        while data and len(pieces) < 200:
            size = 1 + self.below(most)
            pieces.append(data[:size])
            data = data[size:]
        return [*pieces, data] if data else pieces

    def _well_formed(self) -> bytes:
        route = self.among(ROUTES)
        method = route.method if self.chance() < 0.95 else self.among(("PATCH", "OPTIONS", "PUT"))
        path = route.path.replace("{id}", self.among((*PODS, "%00", "a%20b", "é", "x" * 130)))
        body, headers = b"", ["host: localhost"]
        if route.query is not None and self.chance() < 0.3:
            path += "?" + self._query(route.query)
            body = bytes(self.below(256) for _ in range(4 * self.below(20) + self.below(2)))
            headers.append("content-type: application/octet-stream")
        elif route.body is not None:
            body = self._json(route.body)
        headers += self._headers()
        if self.chance() < 0.15:
            headers.append("transfer-encoding: chunked")
            body = self._chunked(body)
        elif body or self.chance() < 0.5:
            headers.append(f"content-length: {len(body)}")
        version = "1.1" if self.chance() < 0.97 else self.among(("1.0", "0.9", "2.0"))
        head = "\r\n".join([f"{method} {path} HTTP/{version}", *headers, "", ""])
        return head.encode("utf-8", "surrogatepass") + body

    def _headers(self) -> list[str]:
        given = []
        while self.chance() < 0.25:
            name = self.among(
                ("host", "origin", "content-type", "authorization", "connection", "upgrade",
                 "expect", "x", "content-length", "transfer-encoding", "accept")
            )  # fmt: skip
            value = self.among(
                ("localhost", "evil.example", "http://localhost", "null", "close", "upgrade", "",
                 "h2c", "websocket", "100-continue", "application/json", "5", "chunked",
                 "y" * 9000)
            )  # fmt: skip
            given.append(f"{name}: {value}")
        return given

    def _query(self, kind: type[msgspec.Struct]) -> str:
        parts = []
        for name in kind.__struct_fields__:
            if self.chance() < 0.4 or name == "model":
                parts.append(
                    f"{name}={self.among(('m', 'a,b', '%ff', '[]', 'null', '[{}]', '='))}"
                )
        return self.among(("&", ";", "&&")).join(parts)

    def _json(self, kind: type[msgspec.Struct]) -> bytes:
        tokens = [self.below(9) for _ in range(self.below(70))]
        name, event = self.among(REQUESTS), self.among(("first_token", "end", "failed"))
        bodies: dict[type[msgspec.Struct], dict[str, Any]] = {
            ScoreBody: {"model": "m", "token_ids": tokens},
            PodBody: {"model": "m", "endpoint": f"tcp://h:{1 + self.below(9)}"},
            PickBody: {"model": "m", "token_ids": tokens, "request_id": name},
            TokensBody: {"model": "m", "prompt": name},
            ReportBody: {"pick": name, "event": event},
            RoutedBody: {
                "model": "m", "pod": self.among(PODS), "token_ids": tokens, "produced": tokens[:9],
            },
        }  # fmt: skip
        body = bodies[kind]
        for name in kind.__struct_fields__:
            if self.chance() < 0.15:
                body[name] = self._plausible(name)
        while self.chance() < 0.2:
            body[self.among((*kind.__struct_fields__, *_WORDS))] = self._value(0)
        text = json.dumps(body)
        if self.chance() < 0.1:
            text = text.replace("[]", "[" * 990 + "]" * 990, 1)
        return text.encode()

    def _plausible(self, name: str) -> object:
        group = {
            "kind": self.among([kind.value for kind in SpecKind]),
            "block_size": self.among((1, 16, 48, 65537)),
            "window": self.among((None, 1, 64)),
        }
        return {
            "pods": [self.among(PODS) for _ in range(self.below(3))],
            "tiers": ["gpu", "cpu"][: self.below(3)],
            "strategy": self.among((None, "exact", "weighted_blocks")),
            "tier_weights": {self.among(("gpu", "cpu", "hbm")): self._number()},
            "extra_keys": [
                {field: self._number() for field in MediaBody.__struct_fields__}
                | {"identifier": "i"}
            ],
            "topology": {"groups": [group] * self.below(3), "hash_block_size": self._number()},
            "dp_size": self.below(10),
            "dp_rank": self.below(3),
            "loras": {"l": "/l"},
            "model_config": {"model_type": "llama4_text", "num_hidden_layers": self._number()},
            "bind": self.chance() < 0.5,
            "drain": self.chance() < 0.5,
            "url": self.among(("http://h:1", "https://[::1]/v1", "http://u@h", "ftp://h")),
            "candidates": [self.among((*PODS, {"pod": "a", "dp_rank": self.below(3)}))],
            "cached_tokens": self.below(99),
            "session": self.among(_WORDS),
            "priority": self.below(9) - 4,
            "explain": self.chance() < 0.5,
        }.get(name, self._value(0))

    def _number(self) -> float | None:
        return self.among(_NUMBERS) if self.chance() < 0.7 else None

    def _value(self, depth: int) -> object:
        kinds: list[Callable[[], object]] = [
            lambda: None,
            lambda: self.among(_WORDS),
            self._number,
            lambda: self.chance() < 0.5,
        ]
        if depth < 3:
            kinds += [
                lambda: [self._value(depth + 1) for _ in range(self.below(3))],
                lambda: {self.among(_WORDS): self._value(depth + 1) for _ in range(self.below(3))},
            ]
        return self.among(kinds)()

    def _chunked(self, body: bytes) -> bytes:
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in self.pieces(body) if p)
        return chunks + b"0\r\n\r\n"

    def _mutated(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(1 + self.below(4)):
            at = self.below(len(changed) + 1)
            match self.below(5):
                case 0:
                    changed[at:at] = bytes([self.below(256)])
                case 1:
                    del changed[at : at + 1 + self.below(8)]
                case 2:
                    changed[at : at + 1] = bytes([self.below(256)])
                case 3:
                    changed[at:at] = changed[at : at + self.below(50)]
                case _:
                    del changed[at:]
        return bytes(changed)


class Session:
    """A real application over a real index, and what it must keep to."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.counts: Counter[int] = Counter()
        self._errors = _Errors()
        index = FleetIndex()
        picking = Picking(index, console=ConsoleOptions(streams=0))  # None would ever end.
        self._service = Service(index, FakeFeed(), limits=LIMITS, picking=picking)
        app = Application(self._service, access=Access.of(ServerOptions()))
        self._wires = Wires(app)
        self._open: list[Wire] = []

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._errors)
        self._wires.__enter__()
        self._wires.loop.set_exception_handler(lambda _, context: self._errors.note(context))
        return self

    def __exit__(self, *_: object) -> None:
        self._wires.__exit__()
        logging.getLogger().removeHandler(self._errors)

    def step(self) -> None:
        """One connection's worth of bytes, and what has to hold afterwards."""
        draw = self.draw
        wire = self._wires.connect()
        self._open.append(wire)
        data = b"".join(draw.request() for _ in range(1 + draw.below(3)))
        for piece in draw.pieces(data):
            wire.send(piece, settle=draw.chance() < 0.2)
        if draw.chance() < 0.1:
            self._wires.later(draw.among((1, 31, 61)))
        if draw.chance() < 0.7:
            self._finish()

    def check_at_rest(self) -> None:
        """Close everything: nothing is held any more, and the service answers."""
        self._finish()
        assert self._wires.app.connection_limits.held_bytes == 0
        assert self._service.num_ranks <= LIMITS.pods
        self._errors.check()
        healthy = self._wires.connect().send(b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n")
        assert [answer[0] for answer in healthy.answers()] == [200]
        healthy.hang_up()

    def _finish(self) -> None:
        self._wires.answer()
        for wire in self._open:
            wire.transport.close()
        self._wires.finish()
        self._errors.check()
        for wire in self._open:
            self._check(wire)
        self._open.clear()

    def _check(self, wire: Wire) -> None:
        for status, headers, body in wire.answers():
            self.counts[status] += 1
            assert status in STATUSES, (status, body)
            if status >= 400:
                error = json.loads(body)["error"]
                assert headers[b"content-type"] == b"application/json"
                assert set(error) == {"code", "message", "remedy"}
                assert ERRORS[error["code"]].status == status
                assert len(error["message"]) <= 8000
                assert error["message"].isprintable()


class _Errors(logging.Handler):
    """Keeps what is logged as an error, by anybody."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(self.format(record))

    def note(self, context: dict[str, Any]) -> None:
        self._seen.append(repr(context))

    def check(self) -> None:
        assert not self._seen, "\n".join(self._seen)


def run(seed: int, steps: int) -> Counter[int]:
    """Send so many connections' worth of hostile bytes; return the answers by status."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Session(seed) as session:
        for number in range(steps):
            session.step()
            if number % 1000 == 999:
                session.check_at_rest()
        session.check_at_rest()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < GROWTH_BYTES, grown
    return session.counts


def storm(url: str, draw: Draw, connections: int) -> Counter[int]:
    """Throw so many connections' worth at a real server; return the statuses seen."""
    address = urlsplit(url)
    seen: Counter[int] = Counter()
    for _ in range(connections):
        pieces = draw.pieces(draw.request())
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection((address.hostname, address.port), timeout=10) as wire,
        ):
            for piece in pieces:
                wire.sendall(piece)
            wire.shutdown(socket.SHUT_WR)
            with wire.makefile("rb") as answer:
                statuses = re.findall(rb"^HTTP/1\.1 (\d{3})", answer.read(), re.MULTILINE)
                seen.update(map(int, statuses))
    return seen


def is_well(url: str) -> bool:
    """Whether a server answers, follows and counts."""
    paths = ("/healthz", "/readyz", "/v1/pods", "/metrics")
    return all(httpx.get(url + path).status_code in {200, 503} for path in paths)


def main() -> None:
    """Report how far it got, every thousand steps or so: a long run may be stopped."""
    seed, steps = int(sys.argv[1]), int(sys.argv[2])
    start_s = time.monotonic()
    total: Counter[int] = Counter()
    part = min(steps, 10_000)
    for done in range(0, steps, part):
        total += run(seed + done, part)
        taken_s = time.monotonic() - start_s
        answers = " ".join(f"{status}:{count}" for status, count in sorted(total.items()))
        sys.stdout.write(f"{done + part} steps in {taken_s:.0f} s; answers {answers}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
