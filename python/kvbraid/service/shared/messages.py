"""What replicas say to each other, to bytes and back.

    load  MessagePack  [1, run, number, at_s, [[pod, dp_rank, running, running_tokens, waiting,
                                                waiting_tokens, wait_us], …]]
    sent  MessagePack  [1, run, number, at_s, pod, dp_rank, lasts_s, model, tokens, lora,
                        cache_salt, extra_key]

Of which kind a message is and whose says its subject, which a server's permissions can tie to a
user. `run` is drawn at the start of a process, `number` counts its messages, and `at_s` is its own
clock, which begins anywhere. `tokens` are 32-bit numbers, little-endian. Invariant: what was read
has every number within its bounds, and each rank once.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from kvbraid.errors import KvbraidError
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.policy import RankLoad, RankLoads
from kvbraid.policy.view import RankId

MOST_BYTES: Final = 1 << 20
"""Of a message: a NATS server takes no longer one unless it is told to."""

MOST_ROWS: Final = 8192
"""Of a load: about as many fit in a message."""

MOST_TOKENS: Final = (MOST_BYTES - (8 << 10)) // 4
"""Of a prompt that is told of."""

_MOST: Final = RankLoad(1 << 20, 1 << 40, 1 << 20, 1 << 40, 3_600_000_000)

_PodName = Annotated[str, Meta(min_length=1, max_length=128)]
_RankNumber = Annotated[int, Meta(ge=0, lt=1 << 32)]
_ShortName = Annotated[str, Meta(max_length=512)]


class _Heading(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What every message begins with."""

    version: Literal[1]
    run: Annotated[str, Meta(min_length=1, max_length=32)]
    number: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    at_s: Annotated[float, Meta(ge=0, le=1e12)]


class LoadMessage(_Heading, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All that one replica has booked at a moment; the rows as in `RankLoad`."""

    rows: Annotated[
        Sequence[tuple[_PodName, _RankNumber, int, int, int, int, int]], Meta(max_length=8192)
    ]

    @property
    def loads(self) -> RankLoads:
        """The rows as the router takes them."""
        return {(PodId(pod), rank): RankLoad(*load) for pod, rank, *load in self.rows}

    @property
    def is_sound(self) -> bool:
        """Whether numbers are within their bounds and agree, and each rank is there once."""
        loads = self.loads
        return len(loads) == len(self.rows) and all(map(_is_possible, loads.values()))


class SentMessage(_Heading, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request that a replica has sent to a rank, and how long it counts as on its way."""

    pod: _PodName
    dp_rank: _RankNumber
    lasts_s: Annotated[float, Meta(ge=0, le=3600)]
    model: _ShortName
    tokens: Annotated[bytes, Meta(min_length=4)]
    lora: _ShortName | None
    cache_salt: _ShortName | None
    extra_key: _ShortName | None

    @property
    def sent(self) -> "SentRequest":
        """The request as the router takes it."""
        request = Request(
            model=self.model,
            token_ids=_from_little(self.tokens),
            lora=self.lora,
            cache_salt=self.cache_salt,
            extra_key=self.extra_key,
        )
        return SentRequest((PodId(self.pod), self.dp_rank), request, self.lasts_s)

    @property
    def is_sound(self) -> bool:
        """Whether the tokens are whole ones."""
        return len(self.tokens) % 4 == 0


class SentRequest(NamedTuple):
    """A request, the rank that it was sent to, and how long it counts as on its way."""

    rank: RankId
    request: Request
    lasts_s: float


MessageKind: TypeAlias = Literal["load", "sent"]
WrongMessage: TypeAlias = Literal["too_long", "malformed"]


class WrongMessageError(KvbraidError):
    """Bytes that are no message of their kind; `why` is a word for a metric."""

    def __init__(self, why: WrongMessage) -> None:
        super().__init__(why)
        self.why: WrongMessage = why


class Speaker:
    """Numbers what one process says."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._number = -1

    def load(self, loads: RankLoads, at_s: float) -> bytes:
        """Return what is booked: of very many ranks the first, and no number above its bound."""
        rows = [
            (pod, rank, *map(min, load, _MOST))
            for (pod, rank), load in list(loads.items())[:MOST_ROWS]
        ]
        return msgspec.msgpack.encode((1, self._run, self._next(), at_s, rows))

    def sent(self, sent: SentRequest, at_s: float) -> bytes | None:
        """Return a request; None if it cannot be told of: it has media, or is too long."""
        (pod, rank), request, lasts_s = sent
        if request.extra_keys or not 0 < len(request.token_ids) <= MOST_TOKENS:
            return None
        try:
            tokens = _to_little(request)
        except OverflowError:  # Numbers that stand in for media.
            return None
        what = (pod, rank, min(lasts_s, 3600.0), request.model, tokens)
        names = (request.lora, request.cache_salt, request.extra_key)
        return msgspec.msgpack.encode((1, self._run, self._next(), at_s, *what, *names))

    def _next(self) -> int:
        self._number += 1
        return self._number


def from_bytes(kind: MessageKind, payload: bytes) -> LoadMessage | SentMessage:
    """Read a message.

    Raises:
        WrongMessageError: It is too long, or something else, or contradicts itself.
    """
    if len(payload) > MOST_BYTES:
        raise WrongMessageError("too_long")
    try:
        message = _DECODERS[kind].decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise WrongMessageError("malformed") from None
    if not message.is_sound:
        raise WrongMessageError("malformed")
    return message


def _is_possible(load: RankLoad) -> bool:
    fits = all(0 <= number <= most for number, most in zip(load, _MOST, strict=True))
    return fits and load.waiting <= load.running and load.waiting_tokens <= load.running_tokens


def _to_little(request: Request) -> bytes:
    tokens = array("I", request.token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def _from_little(tokens: bytes) -> "array[int]":
    read = array("I", tokens)
    if sys.byteorder == "big":
        read.byteswap()
    return read


_DECODERS: Final[Mapping[MessageKind, msgspec.msgpack.Decoder[LoadMessage | SentMessage]]] = {
    "load": msgspec.msgpack.Decoder(LoadMessage),
    "sent": msgspec.msgpack.Decoder(SentMessage),
}
