"""Clients of every kind: each act sends something to the gateway and says how it was answered.

An outcome that no client may see is blamed on the gateway. Times are here only to end a soak that
would wait for ever.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, Final, TypeAlias

from tests.service.route_pods import Connection, Head, post
from tests.soak_router.findings import Findings
from tests.soak_router.gateway_process import GatewayProcess
from tests.soak_router.pods import SoakPod

PATIENCE_S: Final = 60.0
"""A request without an end after this is stuck: its pod may take 3 s, and there are few tries."""
REFUSALS: Final = frozenset({400, 404, 405, 408, 413, 429, 502, 503, 504})
"""Statuses of clean errors. 500 is none."""

_PREFIXES: Final = 24
_MODEL: Final = "gpt-oss-sim"


class Prompts:
    """Prompts of some families, each with a beginning of its own."""

    def __init__(self, random: Random) -> None:
        self._random = random
        lengths = [random.randrange(64, 1024) for _ in range(_PREFIXES)]
        self._families = [_tokens(random, length) for length in lengths]

    def draw(self, model: str = _MODEL) -> dict[str, Any]:
        """Return the body of a request."""
        beginning = self._random.choice(self._families)
        cut = self._random.randrange(16, len(beginning) + 1)
        prompt = beginning[:cut] + _tokens(self._random, self._random.randrange(1, 200))
        return {"model": model, "prompt": prompt, "max_tokens": self._random.randrange(1, 12)}


class Clients:
    """Clients of one gateway, drawn from one seed."""

    def __init__(
        self,
        gateway: GatewayProcess,
        pods: Mapping[str, SoakPod],
        random: Random,
        findings: Findings,
    ) -> None:
        self.gateway = gateway
        self.random = random
        self.findings = findings
        self.prompts = Prompts(random)
        self._pods = pods
        self._names = (f"soak-{number}" for number in count())
        self._quiet: dict[str, tuple[int, int, int]] = {}

    def note_quiet(self) -> None:
        """Remember the pods' state at a moment at which the gateway knows all of it."""
        self._quiet = {name: _state(pod) for name, pod in self._pods.items()}

    async def act(self) -> None:
        """Do one thing that a client may do; count how it ended."""
        act = self.random.choices(list(ACTS), [weight for _, weight in ACTS.values()])[0]
        connection = await self.gateway.connect()
        try:
            outcome = await asyncio.wait_for(ACTS[act][0](self, connection), PATIENCE_S)
        except TimeoutError:
            self.findings.blame("stuck", f"{act}: no end within {PATIENCE_S:g} s")
            outcome = "stuck"
        except (asyncio.IncompleteReadError, ConnectionError):
            outcome = "cut"
        finally:
            connection.leave()
        self.findings.outcomes[f"{act} {outcome}"] += 1

    async def ask(self, connection: Connection, body: dict[str, Any]) -> tuple[Head, str]:
        """Send a prompt; return the head of what comes, and the request's own name."""
        name = next(self._names)
        sent = json.dumps(body).encode()
        await connection.send(post(body=sent, x_request_id=name, x_kvbraid_explain="1"))
        return await connection.head(), name

    # ---- what clients do --------------------------------------------------------------------

    async def unary(self, connection: Connection) -> str:
        """Ask for one answer after the other over one connection."""
        outcome = "answered"
        for _ in range(self.random.randrange(1, 4)):
            head, name = await self.ask(connection, self.prompts.draw())
            body = await connection.reader.readexactly(int(head.headers["content-length"]))
            outcome = self._judge(head, body, name)
            if outcome != "answered":
                break
        return outcome

    async def stream(self, connection: Connection, pause_s: float = 0.0) -> str:
        """Read a stream to its end."""
        body = {**self.prompts.draw(), "stream": True}
        head, name = await self.ask(connection, body)
        if head.status != 200:
            refusal = await connection.reader.readexactly(int(head.headers["content-length"]))
            return self._judge(head, refusal, name)
        told = b""
        while chunk := await connection.chunk():
            told += chunk
            await asyncio.sleep(pause_s)
        events = [event for event in told.split(b"\n\n") if event.startswith(b"data: ")]
        if not events or events[-1] != b"data: [DONE]":
            self.findings.blame("no_end", f"{name}: a stream ended well after {events[-1:]!r}")
            return "no_end"
        return self._judge(head, events[-2].removeprefix(b"data: "), name)

    async def read_slowly(self, connection: Connection) -> str:
        """Read a stream with pauses."""
        return await self.stream(connection, 0.1)

    async def leave_while_waiting(self, connection: Connection) -> str:
        """Ask and leave."""
        await connection.send(post(body=json.dumps(self.prompts.draw()).encode()))
        await asyncio.sleep(self.random.uniform(0, 0.05))
        return "left"

    async def leave_a_stream(self, connection: Connection) -> str:
        """Leave a stream after some of its events."""
        body = {**self.prompts.draw(), "stream": True}
        head, name = await self.ask(connection, body)
        if head.status != 200:
            refusal = await connection.reader.readexactly(int(head.headers["content-length"]))
            return self._judge(head, refusal, name)
        for _ in range(self.random.randrange(3)):
            if not await connection.chunk():
                break
        return "left"

    async def send_half(self, connection: Connection) -> str:
        """Leave in the middle of a body."""
        await connection.send(post(body=b'{"model": "', content_length="4000"))
        await asyncio.sleep(self.random.uniform(0, 0.05))
        return "left"

    async def send_a_lot(self, connection: Connection) -> str:
        """Send a prompt of hundreds of thousands of tokens, which engines refuse."""
        prompt = _tokens(self.random, 1000) * self.random.randrange(40, 300)
        head, name = await self.ask(connection, {"model": _MODEL, "prompt": prompt})
        body = await connection.reader.readexactly(int(head.headers["content-length"]))
        return self._judge(head, body, name)

    async def send_a_wrong_body(self, connection: Connection) -> str:
        """Send a body that is no request."""
        body = self.random.choice((b"{nope", b"[]", b'{"model": "nobody"}', b'{"prompt": -1}'))
        path = self.random.choice(("/v1/completions", "/v1/chat/completions", "/v1/files", "/no"))
        await connection.send(post(path, body))
        head, answer = await connection.answer()
        return self._judge(head, answer, "")

    async def send_garbage(self, connection: Connection) -> str:
        """Send bytes that are no HTTP."""
        await connection.send(self.random.randbytes(self.random.randrange(1, 400)) + b"\r\n\r\n")
        connection.writer.write_eof()
        await connection.reader.read()
        return "ended"

    # ---- what they make of it ---------------------------------------------------------------

    def _judge(self, head: Head, body: bytes, name: str) -> str:
        try:
            told = json.loads(body)
        except ValueError:
            self.findings.blame("not_json", f"{head.status} {body[:100]!r}")
            return "not_json"
        if head.status == 200:
            if told["id"] != name:
                self.findings.blame("mixed_up", f"{name} got the answer of {told['id']}")
            self._compare(head, told["usage"])
            return "answered"
        if head.status not in REFUSALS or "error" not in told:
            self.findings.blame("status", f"{head.status} {body[:200]!r}")
        code = told.get("error", {}).get("code", "of engine")
        return f"{head.status} {code}"

    def _compare(self, head: Head, usage: dict[str, Any]) -> None:
        """Count what was promised and what was delivered while others ask and pods fail."""
        pod = head.headers["x-kvbraid-pod"]
        lower, upper = map(int, head.headers["x-kvbraid-predicted"].split("-"))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        before, now = self._quiet[pod], _state(self._pods[pod])
        self.findings.predictions[classified(lower, upper, cached, before, now)] += 1
        if lower > cached and before == now:
            told = f"{pod}: at least {lower} tokens, delivered {cached}"
            self.findings.blame("overpromised", told)


def classified(
    lower: int, upper: int, cached: int, before: Sequence[int], now: Sequence[int]
) -> str:
    """Say how a prediction compares with what was delivered, and why it may be too high."""
    if cached > upper:
        return "more: cached meanwhile"
    if lower <= cached:
        return "exact" if lower == upper else "within"
    reasons = ("restarted", "cut off", "evicted")
    for reason, was, is_now in zip(reasons, before, now, strict=True):
        if was != is_now:
            return f"less: {reason} meanwhile"
    return "less: overpromised"


def _state(pod: SoakPod) -> tuple[int, int, int]:
    return pod.generation, pod.cuts, pod.removed_blocks


def _tokens(random: Random, number: int) -> list[int]:
    return [random.randrange(50_000) for _ in range(number)]


Act: TypeAlias = Callable[[Clients, Connection], Awaitable[str]]

ACTS: Final[Mapping[str, tuple[Act, float]]] = {
    "unary": (Clients.unary, 6),
    "stream": (Clients.stream, 6),
    "slow_reader": (Clients.read_slowly, 0.5),
    "leaves_waiting": (Clients.leave_while_waiting, 1),
    "leaves_stream": (Clients.leave_a_stream, 1),
    "half_body": (Clients.send_half, 0.5),
    "big_body": (Clients.send_a_lot, 0.1),
    "wrong_body": (Clients.send_a_wrong_body, 1),
    "garbage": (Clients.send_garbage, 0.5),
}
"""What clients do, and how often."""
