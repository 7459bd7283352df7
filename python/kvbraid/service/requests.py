"""Bytes of a request to a `Request`: JSON, or raw token ids whose other fields are known.

These are functions of bytes: how the bytes came, as a body of HTTP or otherwise, is the business
of the caller. Nothing here checks whether the model exists.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from kvbraid._native import find_token_ids
from kvbraid.fleet.request import Request, Strategy
from kvbraid.hashing import MediaItem
from kvbraid.ids import Tier
from kvbraid.service.decoding import decode_body
from kvbraid.service.errors import RefusalError
from kvbraid.service.weights import TierWeights

_FORMATS: Final[dict[int, Literal["I", "Q"]]] = {4: "I", 8: "Q"}

_Offset: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 32)]
# The decoder takes no bound above 63 bits; `_wide_tokens` checks the other end.
_TokenId: TypeAlias = Annotated[
    int, Meta(ge=0, description="Below 2**64.", extra_json_schema={"maximum": (1 << 64) - 1})
]


_RequestId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
PickEvent: TypeAlias = Literal["first_token", "end", "failed"]
"""What a data plane reports of a request that was picked."""


class MediaBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A multimodal input: its identifier, where its tokens begin, and how many there are."""

    identifier: str
    offset: _Offset
    length: _Offset


Media: TypeAlias = list[MediaBody] | None


class PromptFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a prompt is besides its tokens; null means the same as absent."""

    model: str
    lora: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    extra_keys: Media = None


class RequestFields(PromptFields, kw_only=True):
    """All fields of a request except its tokens; null means the same as absent."""

    pods: list[str] | None = None
    tiers: list[Tier] | None = None
    strategy: Strategy | None = None
    tier_weights: TierWeights | None = None


class QueryFields(RequestFields, kw_only=True):
    """What the query says of raw token ids: the fields, and the bytes of each id, 4 or 8."""

    token_bytes: int = 4


class ScoreBody(RequestFields, kw_only=True):
    """The JSON body of POST /v1/score, /v1/explain and /v1/strips."""

    token_ids: list[_TokenId]


class TokensBody(msgspec.Struct, kw_only=True):
    """The JSON body of POST /v1/tokens: that of a completion, or of a chat with its messages."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


class StripsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of GET /v1/strips: the name of a request that is kept with its prompt."""

    request: _RequestId


class RequestsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of GET /v1/requests: the name of the only one that is wanted; all if left out."""

    request: _RequestId | None = None


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of GET /v1/events: what is told of; all topics if left out."""

    topics: list[str] = []


class RoutedBody(PromptFields, kw_only=True):
    """The JSON body of POST /v1/routed: a prompt, the rank that got it, and what came back."""

    pod: str
    dp_rank: _Offset = 0
    token_ids: list[_TokenId]
    produced: list[_TokenId]


class RankBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank of a pod."""

    pod: str
    dp_rank: _Offset


Ranks: TypeAlias = list[str | RankBody] | None
"""Pods, each with all its ranks, and single ranks."""


class PickFields(PromptFields, kw_only=True):
    """All fields of a pick except the tokens; null means the same as absent."""

    request_id: _RequestId | None = None
    session: Annotated[str, Meta(max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    candidates: Ranks = None
    explain: bool | None = None


class PickQuery(PickFields, kw_only=True):
    """What the query says of raw token ids: the fields, and the bytes of each id, 4 or 8."""

    token_bytes: int = 4


class PickBody(PickFields, kw_only=True):
    """The JSON body of POST /v1/pick: a prompt, whose it is, and who may get it."""

    token_ids: list[_TokenId]


class ReportBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON body of POST /v1/picked: what has become of a pick.

    `cached_tokens` are the tokens of the prompt that the engine says it has reused, and
    `prompt_tokens` those that it says the prompt has.
    """

    pick: _RequestId
    event: PickEvent
    cached_tokens: _Offset | None = None
    prompt_tokens: _Offset | None = None


class PickRequest(NamedTuple):
    """A request that is to be sent somewhere, and what decides where."""

    request: Request
    fields: PickFields


class Routed(NamedTuple):
    """A request that a rank was sent, and the token ids that it produced."""

    pod: str
    dp_rank: int
    request: Request
    produced: memoryview


_Body = TypeVar("_Body", ScoreBody, RoutedBody, PickBody)
_SCORE: Final = msgspec.json.Decoder(ScoreBody)
_ROUTED: Final = msgspec.json.Decoder(RoutedBody)
_PICK: Final = msgspec.json.Decoder(PickBody)


def parse_json(body: bytes, *, max_tokens: int) -> Request:
    """Read a `ScoreBody` in JSON that has at most `max_tokens` tokens.

    Raises:
        RefusalError: `malformed_body` or `too_many_tokens`.
    """
    fields, tokens = _json_fields(body, _SCORE)
    return _request(fields, tokens, max_tokens)


def parse_raw(body: bytes, fields: QueryFields, *, max_tokens: int) -> Request:
    """Read a request of little-endian token ids, whose fields came separately.

    Raises:
        RefusalError: `malformed_body` or `too_many_tokens`.
    """
    return _request(fields, _raw_tokens(body, fields.token_bytes), max_tokens)


def parse_pick(body: bytes, *, max_tokens: int) -> PickRequest:
    """Read the body of POST /v1/pick.

    Raises:
        RefusalError: `malformed_body` or `too_many_tokens`.
    """
    fields, tokens = _json_fields(body, _PICK)
    return _asked(fields, tokens, max_tokens)


def parse_raw_pick(body: bytes, fields: PickQuery, *, max_tokens: int) -> PickRequest:
    """Read a pick of little-endian token ids, whose fields came separately.

    Raises:
        RefusalError: `malformed_body` or `too_many_tokens`.
    """
    return _asked(fields, _raw_tokens(body, fields.token_bytes), max_tokens)


def parse_routed(body: bytes, *, max_tokens: int) -> Routed:
    """Read the body of POST /v1/routed; `max_tokens` limits the prompt and its answer together.

    Raises:
        RefusalError: `malformed_body` or `too_many_tokens`.
    """
    fields, tokens = _json_fields(body, _ROUTED)
    produced = _wide_tokens(fields.produced, "produced")
    _check_length(len(tokens) + len(produced), max_tokens)
    return Routed(fields.pod, fields.dp_rank, _prompt(fields, tokens), produced)


def listed_ids(text: bytes) -> memoryview | None:
    """Return the ids of a JSON list as uint32; None for anything else, or ids that are wider."""
    found = find_token_ids(b'{"token_ids":%b}' % text)
    return None if found is None else memoryview(found[0]).cast("I")


def _request(fields: RequestFields, tokens: memoryview, max_tokens: int) -> Request:
    _check_length(len(tokens), max_tokens)
    return replace(
        _prompt(fields, tokens),
        pods=fields.pods,
        tiers=None if fields.tiers is None else [tier.value for tier in fields.tiers],
        strategy=fields.strategy or "exact",
        tier_weights=None if fields.tier_weights is None else fields.tier_weights.by_tier(),
    )


def _asked(fields: PickFields, tokens: memoryview, max_tokens: int) -> PickRequest:
    _check_length(len(tokens), max_tokens)
    return PickRequest(_prompt(fields, tokens), fields)


def _prompt(fields: PromptFields, tokens: memoryview) -> Request:
    return Request(
        model=fields.model,
        token_ids=tokens,
        lora=fields.lora,
        cache_salt=fields.cache_salt,
        extra_key=fields.extra_key,
        extra_keys=_media(fields.extra_keys),
    )


def _check_length(num_tokens: int, max_tokens: int) -> None:
    if num_tokens > max_tokens:
        raise RefusalError("too_many_tokens", f"{num_tokens} tokens; limit {max_tokens}")


def _json_fields(body: bytes, decoder: "msgspec.json.Decoder[_Body]") -> tuple[_Body, memoryview]:
    """Decode the fields with one placeholder for the tokens, which the core has read already.

    A body in which the core finds no tokens is decoded completely, which shows what is wrong.
    """
    found = find_token_ids(body)
    if found is None:
        parsed = decode_body(body, decoder)
        return parsed, _wide_tokens(parsed.token_ids, "token_ids")
    tokens, start, end = found
    fields = decode_body(b"%b[]%b" % (body[:start], body[end:]), decoder)
    return fields, memoryview(tokens).cast("I")


def _wide_tokens(tokens: list[int], name: str) -> memoryview:
    """The tokens of a field that the core has not read: some may need 64 bits."""
    try:
        return memoryview(array("Q", tokens))
    except OverflowError:
        at, token = next((i, t) for i, t in enumerate(tokens) if t >= 1 << 64)
        message = f"$.{name}[{at}] is {token}; expected an integer below 2**64"
        raise RefusalError("malformed_body", message) from None


def _raw_tokens(body: bytes, width: int) -> memoryview:
    if width not in _FORMATS:
        message = f"query: token_bytes is {width}; expected 4 or 8"
        raise RefusalError("malformed_body", message)
    if len(body) % width:
        message = f"{len(body)} bytes are not whole uint{8 * width} token ids"
        raise RefusalError("malformed_body", message, remedy=f"send {width} bytes per token")
    return memoryview(body).cast(_FORMATS[width])


def _media(items: Sequence[MediaBody] | None) -> list[MediaItem] | None:
    if items is None:
        return None
    return [MediaItem(identifier=i.identifier, offset=i.offset, length=i.length) for i in items]
