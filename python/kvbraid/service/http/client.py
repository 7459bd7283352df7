"""A client of a running server, for the command line and for scripts.

Answers come back as the structs of `answers.py`; every failure is a ServiceError of one line.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import httpx
import msgspec

from kvbraid.errors import InvalidValueError, ServiceError
from kvbraid.service.answers import ErrorAnswer, ExplainAnswer, PodsAnswer, ScoreAnswer
from kvbraid.service.closing import Closing
from kvbraid.service.decoding import describe
from kvbraid.service.http.query import OCTET_STREAM
from kvbraid.service.requests import ScoreBody

_TOKEN_BYTES: Final = 4
_NEVER_IN_TEXT: Final = bytes(set(range(32)) - set(b"\t\n\v\f\r"))
_FROM_TEXT: Final = (
    "text, not token ids, which the engine computes: POST /tokenize returns those of a text, and "
    "docs/tokens.md says more; --raw takes the bytes as uint32"
)
_Answer = TypeVar("_Answer", bound=msgspec.Struct)

UrlQuery = Mapping[str, str | Sequence[str] | None]
"""The fields of a request except its tokens, by the API's names; None is left out."""


class TokenBytes(NamedTuple):
    """Token ids as little-endian integers of `width` bytes each, 4 or 8."""

    data: bytes
    width: int = _TOKEN_BYTES


class Client(Closing):
    """Calls one server; use it as a context manager.

    Args:
        url: Base URL of the server.
        timeout_s: Seconds that one call may take.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self._url = url
        self._http = httpx.Client(base_url=url, timeout=timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def score(self, tokens: TokenBytes, query: UrlQuery) -> ScoreAnswer:
        """Ask how many of these token ids each pod could reuse.

        Raises:
            ServiceError: The server refused or could not be reached. Every method may raise it.
        """
        return self._read(self._post("/v1/score", tokens, query), ScoreAnswer)

    def explain(self, tokens: TokenBytes, query: UrlQuery) -> ExplainAnswer:
        """Ask for the reasons of each pod's answer."""
        return self._read(self._post("/v1/explain", tokens, query), ExplainAnswer)

    def pods(self) -> PodsAnswer:
        """Ask for every registered pod and rank."""
        return self._read(self._call("GET", "/v1/pods"), PodsAnswer)

    def _post(self, path: str, tokens: TokenBytes, query: UrlQuery) -> bytes:
        given = {name: value for name, value in query.items() if value}
        if tokens.width != _TOKEN_BYTES:
            given["token_bytes"] = str(tokens.width)
        headers = {"content-type": OCTET_STREAM.decode()}
        return self._call("POST", path, content=tokens.data, params=given, headers=headers)

    def _call(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        params: Mapping[str, str | Sequence[str] | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        try:
            response = self._http.request(
                method, path, content=content, params=dict(params or {}), headers=headers
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            msg = f"no answer from {self._url} ({error}); start `kvbraid serve`, or give --url"
            raise ServiceError(msg) from None
        if response.is_success:
            return response.content
        refusal = self._read(response.content, ErrorAnswer).error
        raise ServiceError(f"{refusal.code}: {refusal.message}; {refusal.remedy}")

    def _read(self, body: bytes, kind: type[_Answer]) -> _Answer:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            msg = f"{self._url} does not answer as a kvbraid server; check --url"
            raise ServiceError(msg) from None


def read_request(
    source: str, query: UrlQuery, *, raw: bool = False
) -> tuple[TokenBytes, UrlQuery]:
    """Read a request from a file, or from stdin for `-`: token ids, or the body of POST /v1/score.

    Token ids are a JSON list of integers below 2**64, or raw little-endian uint32. Where both
    `query` and a body have a field, `query` decides. Text is JSON or refused, unless the input is
    said to be `raw`: ids below 2**24 have a zero byte each, which no text has.

    Raises:
        InvalidValueError: It cannot be read, it is neither, or nobody says which model.
    """
    data = _read(source)
    fields: dict[str, str | Sequence[str] | None] = {}
    is_text = not raw and _is_text(data)
    if is_text and data.lstrip()[:1] == b"{":
        body = _body(source, data)
        fields = {
            "model": body.model,
            "lora": body.lora,
            "cache_salt": body.cache_salt,
            "extra_key": body.extra_key,
            "extra_keys": _text(body.extra_keys),
            "pods": body.pods,
            "tiers": None if body.tiers is None else [tier.value for tier in body.tiers],
            "strategy": body.strategy,
            "tier_weights": _text(body.tier_weights),
        }
        tokens = _as_bytes(source, body.token_ids)
    else:
        tokens = _listed(source, data) if is_text else _raw(source, data)
    fields |= {name: value for name, value in query.items() if value}
    if not fields.get("model"):
        msg = f"{source} has no model; give --model, or the body of a request with its `model`"
        raise InvalidValueError(msg)
    return tokens, fields


def _read(source: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        msg = f"{source}: {error.strerror}; give a file of token ids, or - for stdin"
        raise InvalidValueError(msg) from None


def _body(source: str, data: bytes) -> ScoreBody:
    try:
        return msgspec.json.decode(data, type=ScoreBody)
    except msgspec.ValidationError as error:
        msg = f"{source}: not the body of a request ({describe(error, ScoreBody)})"
        raise InvalidValueError(msg) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{source}: not the body of a request ({error}); see POST /v1/score"
        raise InvalidValueError(msg) from None


def _text(field: object) -> str | None:
    """An object or a list of them as the query has it: one JSON text."""
    return None if field is None else msgspec.json.encode(field).decode()


def _is_text(data: bytes) -> bool:
    return bool(data) and len(data.translate(None, _NEVER_IN_TEXT)) == len(data)


def _listed(source: str, data: bytes) -> TokenBytes:
    """Read text: a JSON list, or nothing that has token ids."""
    if data.lstrip()[:1] != b"[":
        raise InvalidValueError(f"{source}: {_FROM_TEXT}")
    try:
        return _as_bytes(source, msgspec.json.decode(data, type=list[int]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValueError(f"{source}: not a JSON list of token ids ({error})") from None


def _raw(source: str, data: bytes) -> TokenBytes:
    if not data or len(data) % _TOKEN_BYTES:
        msg = f"{source}: {len(data)} bytes are neither JSON nor whole uint32 token ids"
        raise InvalidValueError(msg)
    return TokenBytes(data)


def _as_bytes(source: str, numbers: Sequence[int]) -> TokenBytes:
    try:
        tokens = array("Q" if max(numbers, default=0) >= 1 << 32 else "I", numbers)
    except OverflowError as error:
        raise InvalidValueError(f"{source}: not a JSON list of token ids ({error})") from None
    if sys.byteorder == "big":
        tokens.byteswap()
    return TokenBytes(tokens.tobytes(), tokens.itemsize)


def to_json(answer: msgspec.Struct) -> str:
    """Return an answer as one line of JSON."""
    return msgspec.json.encode(answer).decode()
