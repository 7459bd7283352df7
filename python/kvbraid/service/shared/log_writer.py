"""Writes batches to the log of events; a relay's feeds bring them, rank by rank, in order.

Feeds wait while too much is under way, and while there is no connection: then the engines keep
what they publish. Invariant: after each batch that the stream did not acknowledge, and after each
connection, a rank goes on where the stream ends, so no hole is left that an engine could fill.
Nothing is kept here but what is under way.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.errors import KvbraidError
from kvbraid.events.digest import Digests
from kvbraid.events.sequence import Settled
from kvbraid.ids import PodId
from kvbraid.service.replicas import Server, SharedTable
from kvbraid.service.shared.ports import LogServer, NoServerError
from kvbraid.service.shared.stream import (
    MSG_ID,
    BatchId,
    EventStream,
    RankSubject,
    StoredBatch,
    StreamError,
    read_answer,
    start_of,
)

MOST_BATCHES: Final = 512
MOST_BYTES: Final = 8 << 20
"""That are under way; above that no further run of batches is taken."""

ACK_S: Final = 5.0
"""In which the stream must have acknowledged a batch."""

_BEGIN: Final = Settled(-1, None, -1, False, "the log has nothing")
_LOOK_S: Final = 0.5
_FETCH_S: Final = 2.0


class LogError(KvbraidError):
    """The log did not take a batch: the rank goes on where the log ends."""


class _UnderWay(NamedTuple):
    """A batch that is not acknowledged yet."""

    rank: "_Relayed"
    id: BatchId
    payload: bytes
    sent_at: float


def _nobody() -> None:
    """There is no feed yet."""


@dataclass(slots=True, eq=False)
class _Relayed:
    """One rank, as far as the log has it."""

    subject: RankSubject
    start: str | None = None  # Of the next batch; None: it begins one.
    first: int = 0  # The number of the next batch to be taken.
    last: BatchId | None = None  # What the log has acknowledged last.
    digest: int = 0
    problem: str = "the log was not reached yet"  # Why the rank must go on where the log ends.
    is_known: bool = False  # `last` is what the log has.
    wake: Callable[[], None] = _nobody
    attempt: int = 0  # What was taken in an earlier one is not sent any more.


class LogWriter:
    """The log as the end of a relay's feeds.

    Attributes:
        counts: `published`, `stored`, `duplicate`, `refused` (by the stream), `late`, `too_long`
            (for the server), and `lost` (under way when a connection was).
    """

    def __init__(self, table: SharedTable, server: LogServer, digests: Digests) -> None:
        self._fleet, self._name = table.fleet, table.log
        self._server = server
        self._stream = EventStream(table, server)
        self._digests = digests
        self._changed = threading.Condition()
        self._ranks: dict[tuple[PodId, int], _Relayed] = {}
        self._queue: deque[tuple[_Relayed, int, BatchId, Sequence[bytes]]] = deque()
        self._under_way: dict[int, _UnderWay] = {}
        self._waiting = 0
        self._waiting_bytes = 0
        self._number = 0
        self._mailbox = ""
        self._is_connected = False
        self._problem = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_asked = asyncio.Event()
        self.counts = Counter(
            published=0, stored=0, duplicate=0, refused=0, late=0, too_long=0, lost=0
        )

    @property
    def problem(self) -> str:
        """Why no batches go into the log; empty if they do."""
        told = self._server.problem or self._problem
        return f"nothing goes into the log {self._name}: {told}" if told else ""

    @property
    def server(self) -> Server:
        """The server that has the log."""
        return self._server

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be acknowledged."""
        return self._waiting_bytes

    # From the threads of feeds.

    def progress(self, pod: PodId, rank: int) -> Settled | None:
        """Return how far the log has a rank, which goes on there; None: it begins."""
        with self._changed:
            relayed = self._rank(pod, rank)
            if not relayed.is_known:
                return None
            relayed.problem = ""
            if relayed.last is None:
                return None
            relayed.start = relayed.last.start
            return Settled(relayed.last.seq, relayed.digest, -1, True, "")

    def fetch(self, pod: PodId, num_ranks: int) -> list[Settled]:
        """Return how far the log has each rank of a pod; nothing if it does not say so in time."""
        ranks = [self._rank(pod, rank) for rank in range(num_ranks)]
        if self._loop is not None and self._is_connected:
            fetching = asyncio.run_coroutine_threadsafe(self._look(ranks), self._loop)
            with contextlib.suppress(LateError, NoServerError, StreamError):
                fetching.result(_FETCH_S)
        if not all(rank.is_known for rank in ranks):
            return []  # They begin again when it says so.
        return [self.progress(pod, rank) or _BEGIN for rank in range(num_ranks)]

    def is_there(self, within_s: float) -> bool:
        """Wait for the log, and return whether it is there in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_connected, within_s)

    def at(self, pod: PodId, rank: int, first: int) -> None:
        """Say which number the next batch has."""
        self._rank(pod, rank).first = first

    def wake_with(self, pod: PodId, rank: int, wake: Callable[[], None]) -> None:
        """Call this, from another thread, when `check` must be called."""
        self._rank(pod, rank).wake = wake

    def check(self, pod: PodId, rank: int) -> None:
        """Raise a LogError if the rank must go on where the log ends; then that is known."""
        relayed = self._rank(pod, rank)
        if relayed.problem and relayed.is_known:
            raise LogError(relayed.problem)

    def take(self, pod: PodId, rank: int, payloads: Sequence[bytes], budget_s: float) -> int:
        """Take a run of batches, or none of it if there is no room in time; return how many."""
        relayed = self._rank(pod, rank)
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(relayed), budget_s):
                return 0
            if relayed.start is None:
                relayed.start = start_of(relayed.first, payloads[0])
            first = BatchId(relayed.start, relayed.first)
            self._queue.append((relayed, relayed.attempt, first, payloads))
            self._waiting += len(payloads)
            self._waiting_bytes += sum(map(len, payloads))
        self._wake()
        return len(payloads)

    def break_off(self, pod: PodId, rank: int) -> None:
        """Note that the next batch does not follow the last one."""
        self._rank(pod, rank).start = None

    def leave(self, pod: PodId) -> None:
        """Forget a pod."""
        with self._changed:
            self._ranks = {key: rank for key, rank in self._ranks.items() if key[0] != pod}

    def _has_room(self, rank: _Relayed) -> bool:
        is_full = self._waiting >= MOST_BATCHES or self._waiting_bytes >= MOST_BYTES
        return self._is_connected and not rank.problem and not is_full

    def _rank(self, pod: PodId, rank: int) -> _Relayed:
        key = pod, rank
        with self._changed:
            if key not in self._ranks:  # Replaced, never changed in place: the loop reads it.
                made = _Relayed(RankSubject(self._fleet, pod, rank))
                self._ranks = {**self._ranks, key: made}
            return self._ranks[key]

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # It has ended.
                self._loop.call_soon_threadsafe(self._is_asked.set)

    # On the loop.

    async def run(self) -> None:
        """Write until cancelled."""
        self._loop = asyncio.get_running_loop()
        await asyncio.gather(
            self._server.run(self._ready, self._lost), self._publish(), self._watch()
        )

    async def _ready(self) -> None:
        try:
            await self._stream.make()
            self._mailbox = await self._server.open_mailbox(self._acknowledge)
            await self._look(list(self._ranks.values()))
        except StreamError as error:
            self._problem = str(error)
            raise
        self._problem = ""
        with self._changed:
            self._is_connected = True
            self._changed.notify_all()

    def _lost(self) -> None:
        with self._changed:
            self._is_connected = False
            self.counts["lost"] += self._waiting
            self._queue.clear()
            self._under_way.clear()
            self._waiting = self._waiting_bytes = 0
            for rank in self._ranks.values():
                self._break(rank, "the connection to the log was lost")

    async def _look(self, ranks: Sequence[_Relayed]) -> None:
        """Ask the log what it has of ranks."""
        for rank in ranks:
            found = await self._stream.last(rank.subject)
            with self._changed:
                self._note(rank, found)
                self._changed.notify_all()
            rank.wake()

    def _note(self, rank: _Relayed, found: StoredBatch | None) -> None:
        rank.last = found.id if found else None
        rank.digest = self._digests.of(found.payload) if found else 0
        rank.is_known = True

    async def _publish(self) -> None:
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            while self._queue:
                rank, attempt, (start, first), payloads = self._queue.popleft()
                for seq, payload in enumerate(payloads, first):
                    if rank.attempt == attempt:
                        await self._send(rank, BatchId(start, seq), payload)
                    else:
                        self._forget(payload)

    async def _send(self, rank: _Relayed, batch: BatchId, payload: bytes) -> None:
        if len(payload) > self._server.max_payload:
            self.counts["too_long"] += 1
            self._forget(payload)  # A hole, which readers ask the engine for.
            return
        self._number += 1
        self._under_way[self._number] = _UnderWay(rank, batch, payload, time.monotonic())
        headers = {MSG_ID: rank.subject.message_id(*batch)}
        reply = f"{self._mailbox}.{self._number}"
        self.counts["published"] += 1
        with contextlib.suppress(NoServerError):  # Then it is not acknowledged.
            await self._server.send(rank.subject.text, payload, reply=reply, headers=headers)

    def _acknowledge(
        self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str]
    ) -> None:
        del reply
        number = subject.rpartition(".")[2]
        sent = self._under_way.pop(int(number), None) if number.isdecimal() else None
        if sent is None:
            return
        self._forget(sent.payload)
        try:
            if headers:
                raise StreamError("no stream takes it")
            answer = read_answer(payload)
            if answer.stream != self._stream.name:
                raise StreamError(f"the stream {answer.stream} takes its subjects")
        except StreamError as error:
            self._fail(sent.rank, "refused", str(error))
            return
        self.counts["duplicate" if answer.duplicate else "stored"] += 1
        self._problem = ""
        with self._changed:
            if sent.rank.is_known:
                sent.rank.last, sent.rank.digest = sent.id, self._digests.of(sent.payload)

    def _forget(self, payload: bytes) -> None:
        with self._changed:
            self._waiting = max(self._waiting - 1, 0)
            self._waiting_bytes = max(self._waiting_bytes - len(payload), 0)
            self._changed.notify_all()

    def _fail(self, rank: _Relayed, what: str, why: str) -> None:
        self.counts[what] += 1
        self._problem = why
        with self._changed:
            self._break(rank, why)

    def _break(self, rank: _Relayed, why: str) -> None:
        """Let a rank go on where the log ends, once that is known."""
        if not rank.problem:
            rank.attempt += 1
        rank.problem, rank.is_known = why, False

    async def _watch(self) -> None:
        """Give up batches that are not acknowledged in time; ask what the log has of ranks."""
        while True:
            await asyncio.sleep(_LOOK_S)
            late = time.monotonic() - ACK_S
            for number, sent in list(self._under_way.items()):
                if sent.sent_at > late:
                    break
                del self._under_way[number]
                self._forget(sent.payload)
                self._fail(sent.rank, "late", "the stream has not acknowledged in time")
            if self._is_connected:
                with contextlib.suppress(NoServerError, StreamError):  # The next look may do.
                    await self._look([r for r in self._ranks.values() if not r.is_known])
