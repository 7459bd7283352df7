"""The log of events as a stream of JetStream: one subject per rank, one message per batch.

    subject      kvbraid.FLEET.events.POD.RANK    POD is quoted: it has no dots
    Nats-Msg-Id  POD.RANK.START.SEQ               what is published twice is stored once
    payload      the bytes of the engine

START is drawn from the first batch that the relay has heard of an engine process: its number and a
digest. Batches of one start follow each other without a hole, unless the stream has lost some.
JetStream acknowledges before the disk has it, so its tail may be lost, too. Invariant: what stands
in a subject of a rank and is no such message is nobody's batch.
"""

import re
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

import msgspec

from kvbraid.ids import PodId
from kvbraid.service.replicas import SharedTable
from kvbraid.service.shared.ports import LogServer

MSG_ID: Final = "Nats-Msg-Id"
_NO_MESSAGE: Final = 10037
_NO_STREAM: Final = 10059
_MOST_STEPS: Final = 64
"""Of a search, which halves what is left in each; and messages of others that it passes."""

_NUMBERED: Final = re.compile(r"([0-9a-f]{1,16}-[0-9a-f]{16})\.([0-9]{1,18})")
_NS: Final = 1_000_000_000


class BatchId(NamedTuple):
    """Which batch of a rank it is."""

    start: str
    seq: int


class StoredBatch(NamedTuple):
    """A message of the stream: its place, what it says that it is (None: nothing), its bytes."""

    place: int
    id: BatchId | None
    payload: bytes


class Consumer(NamedTuple):
    """Who brings messages from a place on, and how many there are now."""

    name: str
    num_pending: int


class _Problem(msgspec.Struct):
    description: str = ""
    err_code: int = 0


class _Message(msgspec.Struct):
    seq: Annotated[int, msgspec.Meta(ge=0)]
    hdrs: bytes = b""
    data: bytes = b""


class _StreamAnswer(msgspec.Struct):
    """What is read of any answer."""

    error: _Problem | None = None
    message: _Message | None = None
    name: str = ""
    num_pending: int = 0
    stream: str = ""
    duplicate: bool = False


class StreamError(Exception):
    """The stream refused, or said something else than expected."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def read_answer(body: bytes) -> _StreamAnswer:
    """Return what a server has answered.

    Raises:
        StreamError: It has refused.
    """
    try:
        answer = msgspec.json.decode(body, type=_StreamAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise StreamError("no answer of JetStream; is it on in the server?") from None
    if answer.error is not None:
        raise StreamError(answer.error.description, answer.error.err_code)
    return answer


def start_of(first: int, payload: bytes) -> str:
    """Return the start of an engine process whose first known batch this is."""
    return f"{first:x}-{blake2b(payload, digest_size=8).hexdigest()}"


class RankSubject:
    """Where the batches of a rank are, and what each is called."""

    def __init__(self, fleet: str, pod: PodId, rank: int) -> None:
        self._own = f"{quote(pod, safe='').replace('.', '%2E')}.{rank}"
        self.text = f"kvbraid.{fleet}.events.{self._own}"

    def message_id(self, start: str, seq: int) -> str:
        """Return what a batch is called."""
        return f"{self._own}.{start}.{seq}"

    def read_id(self, message_id: str | None) -> BatchId | None:
        """Return which batch is called so; None: none of this rank."""
        own = len(self._own) + 1
        if message_id is None or message_id[:own] != f"{self._own}.":
            return None
        match = _NUMBERED.fullmatch(message_id, own)
        return None if match is None else BatchId(match[1], int(match[2]))


class EventStream:
    """The stream of a configuration, spoken to through a server. It keeps nothing itself.

    Every call may raise a NoServerError or a StreamError.
    """

    def __init__(self, table: SharedTable, server: LogServer) -> None:
        assert table.log is not None
        self.name = table.log
        self._table = table
        self._server = server

    async def make(self) -> None:
        """Make the stream if it is not there; one that is there keeps its own limits."""
        try:
            await self._ask(f"STREAM.INFO.{self.name}", {})
        except StreamError as error:
            if error.code != _NO_STREAM:
                raise
            table = self._table
            limits = {"max_bytes": table.log_bytes, "max_age": round(table.log_age_s * _NS)}
            window = min(120.0, table.log_age_s)
            await self._ask(
                f"STREAM.CREATE.{self.name}",
                {
                    "name": self.name,
                    "subjects": [f"kvbraid.{table.fleet}.events.>"],
                    "storage": "file",
                    "retention": "limits",
                    "discard": "old",
                    "duplicate_window": round(window * _NS),
                    **limits,
                },
            )

    async def last(self, subject: RankSubject) -> StoredBatch | None:
        """Return the last batch of a rank; messages of others that came later are passed."""
        found = await self._get(subject, {"last_by_subj": subject.text})
        step, end = 1, found.place if found else 0
        while found is not None and found.id is None and step < end:
            found = await self._at_or_after(subject, end - step)
            step *= 2
        return found if found is not None and found.id is not None else None

    async def place_of(self, subject: RankSubject, start: str, seq: int) -> int:
        """Return where to begin for batches of a start from `seq` on; no start: the last one."""
        last = await self.last(subject)
        if last is None or last.id is None:
            return 1
        start = start or last.id.start
        if last.id.start == start and last.id.seq < seq:
            return last.place + 1
        low, high = 1, last.place  # Batches of earlier starts or numbers are before `low`.
        while low < high:
            middle = (low + high) // 2
            found = await self._batch_from(subject, middle)
            if found is None or found.place > high or _is_reached(found.id, start, seq):
                high = middle
            else:
                low = found.place + 1
        return low

    async def new_consumer(self, subject: RankSubject, place: int) -> Consumer:
        """Have the messages of a rank brought from a place on, when they are asked for."""
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": place,
            "ack_policy": "none",
            "filter_subject": subject.text,
            "inactive_threshold": 60 * _NS,
            "mem_storage": True,
        }
        answer = await self._ask(
            f"CONSUMER.CREATE.{self.name}", {"stream_name": self.name, "config": config}
        )
        return Consumer(answer.name, answer.num_pending)

    async def pull(self, consumer: str, mailbox: str, *, batch: int, within_s: float) -> None:
        """Have up to a number of messages sent; if there are fewer in time, a status ends them."""
        request = {
            "batch": batch,
            "expires": round(within_s * _NS),
            "max_bytes": 2 * self._server.max_payload,
        }
        await self._server.send(
            f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{consumer}",
            msgspec.json.encode(request),
            reply=f"{mailbox}.{consumer}",
        )

    async def _batch_from(self, subject: RankSubject, place: int) -> StoredBatch | None:
        """Return the first batch of a rank at a place or later, if others have not many there."""
        found = await self._at_or_after(subject, place)
        for _ in range(_MOST_STEPS):
            if found is None or found.id is not None:
                break
            found = await self._at_or_after(subject, found.place + 1)
        return found

    async def _at_or_after(self, subject: RankSubject, place: int) -> StoredBatch | None:
        return await self._get(subject, {"seq": place, "next_by_subj": subject.text})

    async def _get(self, subject: RankSubject, which: dict[str, str | int]) -> StoredBatch | None:
        try:
            answer = await self._ask(f"STREAM.MSG.GET.{self.name}", which)
        except StreamError as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        message = answer.message
        if message is None:
            raise StreamError("an answer without a message")
        message_id = re.search(rb"\r\n" + MSG_ID.encode() + rb": *([^\r]*)\r\n", message.hdrs)
        told = message_id[1].decode(errors="replace") if message_id else None
        return StoredBatch(message.seq, subject.read_id(told), message.data)

    async def _ask(self, what: str, request: object) -> _StreamAnswer:
        body = await self._server.request(f"$JS.API.{what}", msgspec.json.encode(request))
        return read_answer(body)


def _is_reached(batch: BatchId | None, start: str, seq: int) -> bool:
    return batch is not None and batch.start == start and batch.seq >= seq
