"""What a front asks of a shard and what that answers, to bytes and back: POST /v1/shard.

    score     MessagePack  ["score", 1, PROMPT…, tiers, pods, with_seen]
    promise   MessagePack  ["promise", 1, PROMPT…, promise, pod, dp_rank, junction, sparse_windows]
    withdraw  MessagePack  ["withdraw", 1, [promise, …]]

    PROMPT    model, tokens, token_bytes, lora, cache_salt, extra_key,
              [[identifier, offset, length], …]
    answer    MessagePack  [1, [[pod, dp_rank], …], states, rows, [seen…] or nil]

`tokens` and rows are little-endian, of `token_bytes` (4 or 8) and of 4 bytes for each number. A
state is the byte that is its place in `STATES`. A row has the numbers of one rank, as `NUMBERS`
orders them. Invariant: what was read is bounded, and has a row for each of its ranks.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.fleet import Columns, Request
from kvbraid.fleet.answer import Seen
from kvbraid.fleet.fields import refuse_request
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId, PodState, Tier
from kvbraid.policy import Promisable
from kvbraid.policy.view import RankId
from kvbraid.service.shards.kept import Kept

VERSION: Final = 1

MESSAGE_PACK: Final = "application/msgpack"
"""The content type of a question and its answer."""

STATES: Final = (PodState.EXACT, PodState.REBUILDING, PodState.DEGRADED, PodState.STALE)

NUMBERS: Final = (
    "lower", "upper", "expected", "present", "soon", "expected_soon", "present_soon",
)  # fmt: skip
"""The columns of `Columns` that are numbers, in the order in which a row has them."""

ROW_BYTES: Final = 4 * len(NUMBERS)

MOST_WITHDRAWN: Final = 4096
"""Promises that one message ends."""

_Name = Annotated[str, Meta(max_length=512)]
_AskedPod = Annotated[str, Meta(min_length=1, max_length=128)]
_Uint32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
_PromiseName = Annotated[str, Meta(min_length=1, max_length=64)]


class WrongAnswerError(KvbraidError):
    """Bytes that are no answer to a question."""


class _Prompt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields of a request that decide its keys."""

    version: Literal[1]
    model: _Name
    tokens: bytes
    token_bytes: Literal[4, 8]
    lora: _Name | None
    cache_salt: _Name | None
    extra_key: _Name | None
    media: list[tuple[str, _Uint32, _Uint32]] | None

    @property
    def num_tokens(self) -> int:
        """How many tokens there are."""
        return len(self.tokens) // self.token_bytes

    @property
    def is_sound(self) -> bool:
        """Whether the tokens are whole ones."""
        return len(self.tokens) % self.token_bytes == 0

    def request(
        self, tiers: Sequence[Tier] | None = None, pods: Sequence[str] | None = None
    ) -> Request:
        """Return the request; numbers of another machine's byte order are read, too."""
        media = self.media
        return Request(
            model=self.model,
            token_ids=_of_little(self.tokens, "I" if self.token_bytes == _NARROW else "Q"),
            lora=self.lora,
            cache_salt=self.cache_salt,
            extra_key=self.extra_key,
            extra_keys=None if media is None else [MediaItem(*item) for item in media],
            pods=pods,
            tiers=None if tiers is None else [tier.value for tier in tiers],
        )


class ScoreQuestion(_Prompt, frozen=True, array_like=True, tag="score"):
    """How much could each rank of the shard reuse?"""

    tiers: list[Tier] | None
    pods: list[_AskedPod] | None
    with_seen: bool


class PromiseQuestion(_Prompt, frozen=True, array_like=True, tag="promise"):
    """A prompt is on its way to a rank; the front calls this by a name of its own."""

    promise: _PromiseName
    pod: _AskedPod
    dp_rank: _Uint32
    junction: _Uint32
    sparse_windows: bool | None


class WithdrawQuestion(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="withdraw"
):
    """These prompts are not on their way any more."""

    version: Literal[1]
    promises: Annotated[list[_PromiseName], Meta(max_length=MOST_WITHDRAWN)]

    num_tokens = 0
    is_sound = True


ShardQuestion: TypeAlias = ScoreQuestion | PromiseQuestion | WithdrawQuestion


class _RowsAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    ranks: msgspec.Raw
    states: bytes
    rows: bytes
    seen: tuple[_Uint32, Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]] | None


class Roster(NamedTuple):
    """The ranks of an answer, and two masks of its rows in a line, read as one number.

    `ones` has a 1 for each number, and `firsts` all bits of the first one of each row.
    """

    ranks: tuple[RankId, ...]
    ones: int
    firsts: int


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The answer of one shard; `read_roster` reads the roster, of as many ranks as there are rows.

    `rows` are as they were sent; `numbers_of` reads them.
    """

    roster: bytes
    states: tuple[PodState, ...]
    rows: bytes
    seen: Seen | None


_NARROW: Final = 4
_QUESTION: Final = msgspec.msgpack.Decoder(ShardQuestion)
_ANSWER: Final = msgspec.msgpack.Decoder(_RowsAnswer)
_RANKS: Final = msgspec.msgpack.Decoder(list[tuple[_AskedPod, _Uint32]])
_encode: Final = msgspec.msgpack.Encoder().encode


def prompt_of(request: Request) -> tuple[object, ...]:
    """Return the fields of a prompt as they stand in a question."""
    tokens, width = _to_little(request)
    media = None if request.extra_keys is None else [tuple(item) for item in request.extra_keys]
    names = (request.lora, request.cache_salt, request.extra_key)
    return (VERSION, request.model, tokens, width, *names, media)


def score_question(
    prompt: tuple[object, ...], request: Request, pods: Sequence[str] | None, *, with_seen: bool
) -> bytes:
    """Ask for the columns of a shard; `pods` are those of the request that it has."""
    return _encode(("score", *prompt, request.tiers, pods, with_seen))


def promise_question(
    prompt: tuple[object, ...],
    name: str,
    rank: RankId,
    junction: int,
    sparse_windows: bool | None,
) -> bytes:
    """Tell of a prompt that is on its way."""
    return _encode(("promise", *prompt, name, *rank, junction, sparse_windows))


def withdraw_question(names: Sequence[str]) -> bytes:
    """Tell of prompts that are not on their way any more."""
    return _encode(("withdraw", VERSION, names))


def json_question(request: Request, pods: Sequence[str] | None) -> bytes:
    """Return the JSON body of a /v1/score or /v1/explain call about these pods."""
    fields = {
        "pods": pods,
        "tiers": request.tiers,
        "strategy": request.strategy,
        "tier_weights": request.tier_weights,
    }
    return msgspec.json.encode(_json_prompt(request) | fields)


def routed_question(request: Request, rank: RankId, produced: Sequence[int]) -> bytes:
    """Return the JSON body of a /v1/routed call."""
    pod, dp_rank = rank
    fields = {"pod": pod, "dp_rank": dp_rank, "produced": list(produced)}
    return msgspec.json.encode(_json_prompt(request) | fields)


def _json_prompt(request: Request) -> dict[str, object]:
    media = request.extra_keys
    return {
        "model": request.model,
        "token_ids": list(request.token_ids),
        "lora": request.lora,
        "cache_salt": request.cache_salt,
        "extra_key": request.extra_key,
        "extra_keys": None if media is None else [MediaItem(*item)._asdict() for item in media],
    }


def read_question(body: bytes) -> ShardQuestion:
    """Read a question; whoever calls bounds its length.

    Raises:
        WrongAnswerError: It is something else.
    """
    try:
        question: ShardQuestion = _QUESTION.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WrongAnswerError(f"no question of version {VERSION}: {error}") from None
    if not question.is_sound:
        raise WrongAnswerError("its tokens are not whole ones")
    return question


def answer(scores: Promisable) -> bytes:
    """Return the answer of a shard to a score question."""
    columns, seen = scores.columns(), scores.seen
    return _encode(
        (
            VERSION,
            columns.ranks,
            bytes(map(STATES.index, columns.states)),
            _rows(columns),
            None if seen is None else tuple(seen),  # type: ignore[arg-type]
        )
    )


def read_answer(num_tokens: int, body: bytes) -> ShardRows:
    """Read the answer to a question about so many tokens; whoever calls bounds its length.

    Raises:
        WrongAnswerError: The bytes are no answer, or a number in it is impossible.
    """
    try:
        told = _ANSWER.decode(body)
        roster = bytes(told.ranks)
        ranks, ones, firsts = read_roster(roster)
        states = read_states(told.states)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, IndexError) as error:
        raise WrongAnswerError(f"no answer of version {VERSION}: {error}") from None
    if len(states) != len(ranks) or len(told.rows) != ROW_BYTES * len(ranks):
        raise WrongAnswerError("other numbers of states and rows than of ranks")
    given = int.from_bytes(told.rows, "little")
    if not are_at_most(given, num_tokens * ones, ones):
        raise WrongAnswerError(f"numbers above the {num_tokens} tokens that were asked for")
    if not are_at_most(given & firsts, given >> 32 & firsts, ones):
        raise WrongAnswerError("a lower bound above its upper one")
    seen = None if told.seen is None else Seen._make(told.seen)
    return ShardRows(roster, states, told.rows, seen)


def are_at_most(given: int, limits: int, ones: int) -> bool:
    """Whether each number, of 4 bytes, is at most its limit, which is below 2**31.

    Both have their numbers in a line, read as one number, and `ones` has a 1 for each of them. So
    one subtraction compares all of them, since none borrows from the next one:

        1 limit     the top bit, which no limit has, stays
      - 0 number    where the number is not above it
    """
    tops = ones << 31
    return not given & tops and ((limits | tops) - given) & tops == tops


def numbers_of(rows: bytes) -> memoryview:
    """Return the numbers of rows in a line; those of a column are `len(NUMBERS)` apart."""
    return _of_little(rows, "I")


def _read_states(told: bytes) -> tuple[PodState, ...]:
    return tuple(map(STATES.__getitem__, told))


def _read_roster(told: bytes) -> Roster:
    ranks = tuple((PodId(pod), rank) for pod, rank in _RANKS.decode(told))
    num = len(ranks)
    if len(set(ranks)) < num:
        raise msgspec.ValidationError("a rank is there twice")
    ones = int.from_bytes(b"\1\0\0\0" * len(NUMBERS) * num, "little")
    firsts = int.from_bytes(b"\xff\xff\xff\xff".ljust(ROW_BYTES, b"\0") * num, "little")
    return Roster(ranks, ones, firsts)


def roster_bytes(told: bytes, num: int) -> int:
    """Return what a roster of so many ranks takes in memory at most.

    A character of a name may take 4 bytes in place of one; 256 are for the objects of a rank.
    """
    return 6 * len(told) + 256 * num


read_roster: Final = Kept(_read_roster, lambda told, made: roster_bytes(told, len(made.ranks)))
"""Reads the ranks of a shard, which are the same until one of its pods comes or goes."""

read_states: Final = Kept(_read_states, lambda told, made: 256 + len(told) + 8 * len(made))


def _to_little(request: Request) -> tuple[bytes, int]:
    """Return token ids as bytes, and how many bytes one takes.

    Raises:
        InvalidValueError: A token id does not exist.
    """
    ids = request.token_ids
    try:
        if isinstance(ids, memoryview | array) and memoryview(ids).format in ("I", "Q"):
            given = memoryview(ids)
        else:
            given = memoryview(array("Q", ids))
    except (TypeError, ValueError, OverflowError):
        refuse_request(request)
        raise InvalidValueError("token_ids are no numbers from 0 to 2**64 - 1") from None
    return _little(given), given.itemsize


def _rows(columns: Columns) -> bytes:
    rows = memoryview(bytearray(ROW_BYTES * len(columns.ranks))).cast("I")
    for at, name in enumerate(NUMBERS):
        column = getattr(columns, name)
        is_ready = isinstance(column, memoryview) and column.format == "I"
        rows[at :: len(NUMBERS)] = column if is_ready else array("I", column)
    return _little(rows)


def _little(numbers: memoryview) -> bytes:
    return _swapped(numbers).tobytes() if sys.byteorder == "big" else numbers.tobytes()


def _of_little(data: bytes, width: Literal["I", "Q"]) -> memoryview:
    numbers = memoryview(data).cast(width)
    return _swapped(numbers) if sys.byteorder == "big" else numbers


def _swapped(numbers: memoryview) -> memoryview:
    swapped = array(numbers.format, numbers)
    swapped.byteswap()
    return memoryview(swapped)
