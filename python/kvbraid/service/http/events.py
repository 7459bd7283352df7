"""GET /v1/events: what has changed, once a second, to every page that is open.

Invariant: a topic's differences are made and encoded once, whoever listens. Nothing is queued for
a client: one that has missed a message gets the whole state instead of what it missed, so a slow
client costs no more than a quick one. While nobody listens, no differences are made. The event
loop alone uses these objects, except that topics read the service on a thread.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
from anyio.to_thread import run_sync

from kvbraid.errors import shortened
from kvbraid.service.errors import RefusalError
from kvbraid.service.ladder_history import INTERVAL_S
from kvbraid.service.registry import Service

PERIOD_S: Final = 1.0
MOST_ROWS: Final = 200
"""Requests that one message tells of: the last ones."""

_logger: Final = logging.getLogger(__name__)
_encode: Final = msgspec.json.Encoder().encode


class Topic(Protocol):
    """One part of what is shown, with its last state."""

    def advance(self) -> Mapping[str, object]:
        """Look at the service anew, and return how that differs from the last state."""

    def whole(self) -> Mapping[str, object]:
        """Return the last state."""


class PodsTopic:
    """Rows of GET /v1/pods: of a row that is known only the fields that have changed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._memory_bytes = 0

    def advance(self) -> Mapping[str, object]:
        """Return the fields that have changed, and the ranks that are gone."""
        answer = self._service.pods_answer()
        rows: dict[tuple[str, int], dict[str, Any]] = {
            (row.pod, row.dp_rank): msgspec.to_builtins(row) for row in answer.pods
        }
        changed = [row for rank in rows if (row := _changed(self._rows.get(rank), rows[rank]))]
        gone = [rank for rank in self._rows if rank not in rows]
        self._rows, self._memory_bytes = rows, answer.memory_bytes
        return {"memory_bytes": answer.memory_bytes, "changed": changed, "gone": gone}

    def whole(self) -> Mapping[str, object]:
        """Return every row."""
        rows = list(self._rows.values())
        return {"memory_bytes": self._memory_bytes, "changed": rows, "gone": []}


def _changed(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any] | None:
    if old is None:
        return new
    fields = {name: value for name, value in new.items() if old[name] != value}
    return {"pod": new["pod"], "dp_rank": new["dp_rank"], **fields} if fields else None


class RequestsTopic:
    """Rows of GET /v1/requests that have changed, the last change first."""

    def __init__(self, service: Service) -> None:
        self._recent = service.picking.recent
        self._change = 0

    def advance(self) -> Mapping[str, object]:
        """Return what has changed; `num_changed` counts how often something did.

        If that is more than MOST_ROWS, the last of them are told as the whole state, since of the
        others nobody would hear how they went on.
        """
        before = self._change
        self._change, rows = self._recent.changed_after(before, MOST_ROWS)
        told = self._told(rows, num_changed=self._change - before)
        return {**told, "is_whole": True} if len(rows) == MOST_ROWS else told

    def whole(self) -> Mapping[str, object]:
        """Return the last rows."""
        _, rows = self._recent.changed_after(0, MOST_ROWS)
        return self._told(rows, num_changed=0)

    def _told(self, rows: list[Any], *, num_changed: int) -> dict[str, object]:
        prompts = self._recent.keeps_prompts
        return {"keeps_prompts": prompts, "num_changed": num_changed, "changed": rows}


class AnswerTopic:
    """A whole answer, which is told when it has changed."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._answer: object = None

    def advance(self) -> Mapping[str, object]:
        """Return the answer, or null if it is as it was."""
        before, self._answer = self._answer, self._ask()
        return {"answer": None if self._answer == before else self._answer}

    def whole(self) -> Mapping[str, object]:
        """Return the last answer."""
        return {"answer": self._answer}


class LadderTopic:
    """Sums of GET /v1/ladder, and the intervals that have changed."""

    def __init__(self, service: Service) -> None:
        self._ladder = service.picking.ladder

    def advance(self) -> Mapping[str, object]:
        """Return all sums, and the intervals that can have changed since the last message."""
        return self._told(time.monotonic() - 2 * INTERVAL_S)

    def whole(self) -> Mapping[str, object]:
        """Return all sums and all intervals."""
        return self._told(float("-inf"))

    def _told(self, since_s: float) -> Mapping[str, object]:
        intervals = self._ladder.since(since_s)
        models = self._ladder.answer().models
        return {"models": models, "interval_s": INTERVAL_S, "intervals": intervals}


TOPICS: Final[Mapping[str, Callable[[Service], Topic]]] = {
    "pods": PodsTopic,
    "requests": RequestsTopic,
    "ladder": LadderTopic,
    "policy": lambda service: AnswerTopic(service.picking.policy_answer),
    "config": lambda service: AnswerTopic(service.in_force.answer),
}
"""What a client may ask for, and what makes it."""


class Changes:
    """The streams that are open, and the one task that looks at the service for all of them."""

    def __init__(self, service: Service, *, period_s: float = PERIOD_S) -> None:
        self._service = service
        self._period_s = period_s
        self._listening: dict[object, frozenset[str]] = {}
        self._topics: dict[str, Topic] = {}
        self._differences: dict[str, bytes] = {}
        self._wholes: dict[str, bytes] = {}
        self._number = 0
        self._next = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def num_streams(self) -> int:
        """How many clients listen."""
        return len(self._listening)

    def subscribe(self, topics: Collection[str]) -> "Stream":
        """Return the stream of some topics, in the form of server-sent events.

        The stream has to be closed (`close`), whether it was read or not.

        Raises:
            RefusalError: `invalid_value`: no such topic; `too_many_streams`; `shutting_down`.
        """
        unknown = next((topic for topic in topics if topic not in TOPICS), None)
        if unknown is not None:
            told = f"topic {shortened(unknown)}; expected {', '.join(TOPICS)}"
            raise RefusalError("invalid_value", told)
        if self._is_closed:
            raise RefusalError("shutting_down", "the server ends")
        limit = self._service.picking.recent.options.streams
        if len(self._listening) >= limit:
            raise RefusalError("too_many_streams", f"{limit} clients listen to changes")
        listener = Stream(self, frozenset(topics) or frozenset(TOPICS))
        self._listening[listener] = listener.topics
        return listener

    def close(self) -> None:
        """End all streams; no other one begins."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._wake()

    def leave(self, listener: object) -> None:
        """Tell a client nothing more; without clients nothing is looked at."""
        self._listening.pop(listener, None)

    async def next_message(self, topics: frozenset[str], last: int) -> tuple[int, bytes] | None:
        """Wait for what comes after message `last`; None at the end of the server."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())
        while self._number == last or not topics <= self._differences.keys():
            await self._next.wait()
            if self._is_closed:
                return None
        told = self._differences if last == self._number - 1 else self._whole(topics)
        return self._number, b"".join(told[topic] for topic in TOPICS if topic in topics)

    def _whole(self, topics: frozenset[str]) -> Mapping[str, bytes]:
        for topic in topics - self._wholes.keys():
            self._wholes[topic] = _message(topic, self._topics[topic].whole(), is_whole=True)
        return self._wholes

    async def _look(self) -> None:
        while self._listening:
            begun = time.monotonic()
            wanted = frozenset().union(*self._listening.values())
            self._topics = {
                topic: self._topics.get(topic) or TOPICS[topic](self._service) for topic in wanted
            }
            try:
                self._differences = await run_sync(self._advance, abandon_on_cancel=True)
            except Exception:  # Pages show how old their data is; the next look may succeed.
                _logger.exception("changes could not be looked at")
            else:
                self._wholes = {}
                self._number += 1
                self._wake()
            await asyncio.sleep(max(0.0, begun + self._period_s - time.monotonic()))
        self._topics, self._differences, self._wholes = {}, {}, {}

    def _advance(self) -> dict[str, bytes]:
        return {
            name: _message(name, topic.advance(), is_whole=False)
            for name, topic in self._topics.items()
        }

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


class Stream(AsyncIterator[bytes]):
    """One client's messages; the first is a whole state."""

    def __init__(self, events: Changes, topics: frozenset[str]) -> None:
        self._events = events
        self.topics = topics
        self._last = -1

    async def __anext__(self) -> bytes:
        """Return the next message."""
        message = await self._events.next_message(self.topics, self._last)
        if message is None:
            raise StopAsyncIteration
        self._last, told = message
        return told

    def close(self) -> None:
        """Tell the client nothing more."""
        self._events.leave(self)


def _message(topic: str, told: Mapping[str, object], *, is_whole: bool) -> bytes:
    data = _encode({"is_whole": is_whole, "now_s": time.monotonic(), **told})
    return b"event: %s\ndata: %s\n\n" % (topic.encode(), data)


async def until_gone(receive: Callable[[], Any]) -> None:
    """Wait until the client of a request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def pass_on(
    stream: Stream,
    receive: Callable[[], Any],
    send: Callable[[bytes], Any],
    may_go_on: Callable[[], bool],
) -> None:
    """Send what a stream yields until it ends, may not go on, or the client goes."""
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        while True:
            coming = asyncio.ensure_future(anext(stream))
            await asyncio.wait({gone, coming}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                coming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming
                return
            try:
                message = coming.result()
            except StopAsyncIteration:
                return
            if not may_go_on():
                return
            await send(message)
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
