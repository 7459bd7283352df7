"""Reads the log of events for the ranks that are followed, on a thread of its own.

Each rank has a consumer of its own, which begins where the rank asks. Messages are pulled, so the
server never sends more than was asked for, and nothing is pulled while much waits to be applied.
Invariant: what fails here costs the connection of the ranks that it concerns, which is made again:
they are stale meanwhile, and ask again. What nobody can have published as a batch is counted.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.extras import require
from kvbraid.service.config import FleetConfig
from kvbraid.service.replicas import EventLogState, Server, SharedTable
from kvbraid.service.shared.inbox import CAUGHT_UP, Inbox, LoggedBatch
from kvbraid.service.shared.ports import LogServer, NoServerError
from kvbraid.service.shared.stream import (
    MSG_ID,
    Consumer,
    EventStream,
    RankSubject,
    StreamError,
)
from kvbraid.service.shared.threads import on_thread

PULLED: Final = 256
"""Messages of a rank that are asked for at once."""

PULL_S: Final = 10.0
"""After which a question for messages ends and is put again."""

GRACE_S: Final = 5.0
"""In which a question must have ended that has no time left."""

AGAIN_S: Final = 1.0
"""After which a rank asks again that could not be served."""

MOST_OF_A_RANK: Final = 1 << 20
MOST_OF_ALL: Final = 64 << 20
"""Bytes that wait to be applied; above that nothing more is pulled."""

_LOOK_S: Final = 0.002
_NO_MORE: Final = frozenset({"404", "408"})
_COMPLETED: Final = "Batch Completed"
"""What newer servers say after the last message; it was counted here, and the next is asked."""

_TOO_LONG: Final = "MaxBytes"
"""What a status says if messages are left that would be more bytes than were asked for."""

_LOGGER: Final = logging.getLogger("kvbraid.shared")


@dataclass(slots=True, eq=False)
class _Follow:
    """One rank: what it asked last, and the consumer that serves it."""

    inbox: Inbox
    subject: RankSubject
    ask: int = 0
    is_caught_up: bool = False
    pulled: int = 0
    is_over: asyncio.Event | None = None  # The question for messages that is under way.
    consumer: str = ""
    problem: str = ""
    task: asyncio.Task[None] | None = None


class LogReader:
    """The log as a source; the calls of `LogSource` come from any thread.

    Attributes:
        counts: `read`, `foreign` (messages that are no batches), `asked`, `caught_up`, and
            `failed` (ranks that could not be served).
    """

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._follows: dict[Inbox, _Follow] = {}
        self._consumers: dict[str, _Follow] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stream: EventStream | None = None
        self._server: LogServer | None = None
        self._mailbox = ""
        self._connection = 0  # The number of the one that stands; 0: none.
        self._num_connections = 0
        self._problem = ""
        self.counts = Counter(read=0, foreign=0, asked=0, caught_up=0, failed=0)

    @property
    def problem(self) -> str:
        """Why no events come from the log; empty if they do."""
        told = self.server.problem or self._problem
        return f"no events come from the log {self._table.log}: {told}" if told else ""

    @property
    def server(self) -> Server:
        """The server that has the log."""
        return self._server or _NOBODY

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be applied."""
        return sum(inbox.num_bytes for inbox in list(self._follows))

    # From any thread.

    def follow(self, inbox: Inbox) -> None:
        """Serve an inbox from now on."""
        subject = RankSubject(self._table.fleet, inbox.pod, inbox.rank)
        self._follows[inbox] = _Follow(inbox, subject)
        self._soon(self._connect, inbox)

    def leave(self, inbox: Inbox) -> None:
        """Serve it no longer."""
        follow = self._follows.pop(inbox, None)
        if follow is not None:
            self._soon(self._stop, follow)

    def ask(self, inbox: Inbox, ask: int, start: str, seq: int) -> None:
        """Bring batches of a start from `seq` on; see `LogSource`."""
        self._soon(self._begin, inbox, ask, start, seq)

    def _soon(self, work: object, *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # It has ended.
                loop.call_soon_threadsafe(work, *arguments)  # type: ignore[arg-type]

    # On the loop.

    async def run(self, server: LogServer) -> None:
        """Serve until cancelled."""
        self._server = server
        self._stream = EventStream(self._table, server)
        self._loop = asyncio.get_running_loop()
        await server.run(self._ready, self._lost)

    async def _ready(self) -> None:
        assert self._server is not None
        self._mailbox = await self._server.open_mailbox(self._take)
        self._num_connections += 1
        self._connection = self._num_connections
        for inbox in list(self._follows):
            self._connect(inbox)

    def _lost(self) -> None:
        self._connection = 0
        self._consumers.clear()
        for follow in list(self._follows.values()):
            self._stop(follow)

    def _connect(self, inbox: Inbox) -> None:
        if inbox in self._follows and self._connection and not inbox.connection:
            self._num_connections += 1
            inbox.connection = self._num_connections
            inbox.wake()

    def _stop(self, follow: _Follow) -> None:
        if follow.task is not None:
            follow.task.cancel()
        self._consumers.pop(follow.consumer, None)
        follow.inbox.connection = 0
        follow.inbox.wake()

    def _begin(self, inbox: Inbox, ask: int, start: str, seq: int) -> None:
        follow = self._follows.get(inbox)
        if follow is None or not inbox.connection:
            return
        if follow.task is not None:
            follow.task.cancel()
        self._consumers.pop(follow.consumer, None)
        follow.ask, follow.is_caught_up, follow.problem = ask, False, ""
        self.counts["asked"] += 1
        follow.task = asyncio.ensure_future(self._serve(follow, start, seq))

    async def _serve(self, follow: _Follow, start: str, seq: int) -> None:
        """Answer a question, and go on with what comes later, until it is replaced."""
        assert self._stream is not None
        try:
            place = await self._stream.place_of(follow.subject, start, seq)
            consumer = await self._stream.new_consumer(follow.subject, place)
            follow.consumer = consumer.name
            self._consumers[consumer.name] = follow
            self._problem = ""
            await self._pull(follow, consumer)
        except (NoServerError, StreamError, TimeoutError) as error:
            self._fail(follow, str(error) or "the server has sent nothing in time")
        except Exception:  # The next attempt may be a better one.
            _LOGGER.exception("%s cannot be read", follow.subject.text)
            self._fail(follow, "reading it has failed, as the log lines say")

    def _fail(self, follow: _Follow, why: str) -> None:
        self.counts["failed"] += 1
        self._problem = why
        follow.task = None
        self._stop(follow)
        asyncio.get_running_loop().call_later(AGAIN_S, self._connect, follow.inbox)

    async def _pull(self, follow: _Follow, consumer: Consumer) -> None:
        assert self._stream is not None
        if consumer.num_pending == 0:
            self._catch_up(follow)
        while True:
            while follow.inbox.num_bytes > MOST_OF_A_RANK or self.waiting_bytes > MOST_OF_ALL:
                await asyncio.sleep(_LOOK_S)
            follow.pulled, follow.is_over = 0, asyncio.Event()
            await self._stream.pull(consumer.name, self._mailbox, batch=PULLED, within_s=PULL_S)
            await asyncio.wait_for(follow.is_over.wait(), PULL_S + GRACE_S)
            if follow.problem:
                raise StreamError(follow.problem)

    def _catch_up(self, follow: _Follow) -> None:
        if not follow.is_caught_up:
            follow.is_caught_up = True
            self.counts["caught_up"] += 1
            follow.inbox.put(LoggedBatch(follow.ask, "", CAUGHT_UP, b""))

    def _take(self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Take a message, or a status that ends a question for messages."""
        if not reply:
            follow = self._consumers.get(subject.rpartition(".")[2])
            if follow is not None:
                self._take_status(follow, headers)
            return
        told = reply.split(".")  # $JS.ACK, or with a domain: its consumer and what is left.
        name, num_pending = (told[3], told[8]) if len(told) == 9 else (told[5], told[10])
        follow = self._consumers.get(name)
        if follow is None:
            return
        batch_id = follow.subject.read_id(headers.get(MSG_ID))
        if batch_id is None:
            self.counts["foreign"] += 1
        else:
            self.counts["read"] += 1
            follow.inbox.put(LoggedBatch(follow.ask, batch_id.start, batch_id.seq, payload))
        if num_pending == "0":
            self._catch_up(follow)
        follow.pulled += 1
        if follow.pulled >= PULLED:
            _end(follow)

    def _take_status(self, follow: _Follow, headers: Mapping[str, str]) -> None:
        """Take what ends a question for messages before as many have come as were asked for."""
        status, told = headers.get("Status", ""), headers.get("Description", "")
        if told == _COMPLETED:
            return
        if status in _NO_MORE:
            self._catch_up(follow)  # There is nothing more, whatever was expected.
        elif _TOO_LONG not in told:
            follow.problem = f"its consumer ended: {status} {told}"
        _end(follow)


def _end(follow: _Follow) -> None:
    if follow.is_over is not None:
        follow.is_over.set()


@dataclass(frozen=True, slots=True)
class _NoServer:
    """Nobody was asked yet."""

    problem: str = "it was not asked yet"

    @property
    def counts(self) -> Mapping[str, int]:
        """Nothing has happened."""
        return {}


_NOBODY: Final = _NoServer()


@contextlib.contextmanager
def reading_log(config: FleetConfig, log: EventLogState | None) -> Iterator[None]:
    """Let a log that is read be read, on a thread of its own.

    Raises:
        InvalidValueError: The extra `nats` is not installed.
    """
    if not isinstance(log, LogReader):
        yield
        return
    try:
        require("nats", "shared.log")
    except ModuleNotFoundError as error:
        raise InvalidValueError(str(error)) from None
    from kvbraid.service.shared.nats_server import NatsServer  # Only who shares needs it.

    server = NatsServer(config.shared)

    def failed() -> None:
        server.problem = "reading has failed, as the log lines say"

    with on_thread("kvbraid-log", lambda: log.run(server), failed):
        yield
