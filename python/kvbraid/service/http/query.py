"""A request as HTTP brings it: a body, its content type and a query, to a `Request`.

With a body the query is read only if that has raw token ids. `pods`, `tiers` and `topics` are
repeated or separated by commas; `extra_keys`, `tier_weights` and `candidates` are JSON text.
"""

from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import parse_qs

import msgspec

from kvbraid.fleet.request import Request
from kvbraid.service.decoding import describe
from kvbraid.service.errors import RefusalError
from kvbraid.service.requests import (
    Media,
    PickQuery,
    PickRequest,
    QueryFields,
    Ranks,
    parse_json,
    parse_pick,
    parse_raw,
    parse_raw_pick,
)
from kvbraid.service.weights import TierWeights

OCTET_STREAM: Final = b"application/octet-stream"
OBJECTS: Final[Mapping[str, msgspec.json.Decoder[object]]] = {
    "extra_keys": msgspec.json.Decoder(Media),
    "tier_weights": msgspec.json.Decoder(TierWeights | None),
    "candidates": msgspec.json.Decoder(Ranks),
}
"""The fields that are JSON text in a query."""
_LISTS: Final = frozenset({"pods", "tiers", "topics"})

_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def parse_call(body: bytes, content_type: bytes, query: bytes, *, max_tokens: int) -> Request:
    """Read raw token ids when the content type says octet-stream, and JSON otherwise.

    Raises:
        RefusalError: `malformed_body` or `too_many_tokens`.
    """
    if content_type.startswith(OCTET_STREAM):
        return parse_raw(body, parse_query(query, QueryFields), max_tokens=max_tokens)
    return parse_json(body, max_tokens=max_tokens)


def parse_pick_call(
    body: bytes, content_type: bytes, query: bytes, *, max_tokens: int
) -> PickRequest:
    """As `parse_call`, for a pick."""
    if content_type.startswith(OCTET_STREAM):
        return parse_raw_pick(body, parse_query(query, PickQuery), max_tokens=max_tokens)
    return parse_pick(body, max_tokens=max_tokens)


def parse_query(query: bytes, kind: type[_Fields]) -> _Fields:
    """Read a query into the fields of a struct.

    Raises:
        RefusalError: `malformed_body`.
    """
    try:
        given = parse_qs(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query))
        values = {name: _query_value(name, texts, kind) for name, texts in given.items()}
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RefusalError("malformed_body", f"query: {describe(error, kind)}") from None
    except ValueError as error:
        raise RefusalError("malformed_body", f"query: {error}") from None


def _query_value(name: str, texts: list[str], kind: type[msgspec.Struct]) -> object:
    if name in _LISTS:
        return [part for text in texts for part in text.split(",")]
    if len(texts) > 1:
        raise ValueError(f"{name} is given {len(texts)} times")
    return _query_object(name, texts[0], kind) if name in OBJECTS else texts[0]


def _query_object(name: str, text: str, kind: type[msgspec.Struct]) -> object:
    try:
        return OBJECTS[name].decode(text)
    except msgspec.ValidationError as error:
        raise RefusalError(
            "malformed_body", f"query: {describe(error, kind, under=name)}"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusalError("malformed_body", f"query: {name}: not JSON: {error}") from None
