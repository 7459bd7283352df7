"""A running kvbraid that has followed the same pods for longer, and what it knows of each of them.

Invariant: a neighbour costs time that is limited, and nothing else. It is asked for pods that are
registered in the first minute of a server; the first question without a whole answer in time is
the last one. What it sends is as a file of snapshots is: bytes that the index reads or refuses.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import quote

import httpx
import msgspec

from kvbraid.errors import one_line, shortened
from kvbraid.ids import PodId
from kvbraid.service.answers import ErrorAnswer

ASK_S: Final = 60.0
"""So long after its start a server asks, in seconds."""

ANSWER_S: Final = 10.0
"""A whole answer has so long, in seconds: its pod is saved first."""

MOST_BYTES: Final = 1 << 29
"""Of one answer: some 25 million blocks."""

WhyNone: TypeAlias = Literal["failed", "slow", "refused", "too_long"]
"""Why there was no snapshot."""

_LAST: Final[frozenset[WhyNone]] = frozenset({"failed", "slow"})
"""After these nothing more is asked."""


class NoSnapshotError(Exception):
    """The neighbour gave no snapshot of a pod; `why` is what is counted."""

    def __init__(self, why: WhyNone, text: str) -> None:
        super().__init__(one_line(text))
        self.why = why


class Neighbour:
    """Asks one server; one thread at a time uses it, and none on which an event loop runs.

    Args:
        url: Of the server, as operators write it.
        key: With the right `snapshot`, if the server needs one.
        clock: Returns the time in seconds; it never runs backwards.
    """

    def __init__(
        self, url: str, *, key: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {"accept-encoding": "identity"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._tls = ssl.create_default_context() if url.startswith("https:") else False
        self._clock = clock
        self._ends_at = clock() + ASK_S

    def snapshot(self, pod: PodId) -> bytes | None:
        """Return what it knows of a pod; None if it is not asked any more.

        Raises:
            NoSnapshotError: There was no whole answer, or a refusal.
        """
        if self._clock() >= self._ends_at:
            return None
        try:
            return asyncio.run(self._ask(pod))
        except NoSnapshotError as error:
            if error.why in _LAST:
                self._ends_at = self._clock()
            raise

    async def _ask(self, pod: PodId) -> bytes:
        url = f"{self.url}/v1/pods/{quote(pod)}/snapshot"
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                httpx.AsyncClient(verify=self._tls, timeout=ANSWER_S, trust_env=False) as client,
                client.stream("GET", url, headers=self._headers) as answer,
            ):
                return await _whole(answer)
        except (TimeoutError, httpx.TimeoutException):
            raise NoSnapshotError("slow", f"no whole answer in {ANSWER_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NoSnapshotError("failed", str(error) or type(error).__name__) from None


async def _whole(answer: httpx.Response) -> bytes:
    body = bytearray()
    read = cast("AsyncGenerator[bytes, None]", answer.aiter_raw())
    async with contextlib.aclosing(read) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > MOST_BYTES:
                raise NoSnapshotError("too_long", f"more than {MOST_BYTES} bytes")
    if answer.status_code != httpx.codes.OK:
        raise NoSnapshotError("refused", f"{answer.status_code}: {_refusal(bytes(body))}")
    return bytes(body)


def _refusal(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=ErrorAnswer).error.message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return shortened(body[:80].decode(errors="replace"))
