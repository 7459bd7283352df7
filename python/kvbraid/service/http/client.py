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
from kvbraid.service.answers import (
    ErrorAnswer,
    ExplainAnswer,
    LadderAnswer,
    PickAnswer,
    PickedAnswer,
    PodsAnswer,
    ScoreAnswer,
)
from kvbraid.service.closing import Closing
from kvbraid.service.decoding import describe
from kvbraid.service.http.query import OBJECTS, OCTET_STREAM
from kvbraid.service.requests import PickBody, PickEvent, ReportBody, ScoreBody

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
        token: What changes need, if the server has a token.
        timeout_s: Seconds that one call may take.

    Raises:
        InvalidValueError: No header can carry such a token.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        if token is not None and not (token and token.isprintable()):
            msg = "the token is empty, or no header can carry it; give the one of the server"
            raise InvalidValueError(msg)
        headers = {} if token is None else {b"authorization": b"Bearer " + token.encode()}
        self._url = url
        self._http = httpx.Client(base_url=url, timeout=timeout_s, headers=headers)

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

    def pick(self, tokens: TokenBytes, query: UrlQuery) -> PickAnswer:
        """Ask which rank is to get these token ids; this books the request there."""
        return self._read(self._post("/v1/pick", tokens, query), PickAnswer)

    def picked(self, pick: str, event: PickEvent) -> PickedAnswer:
        """Report what has become of a pick."""
        body = msgspec.json.encode(ReportBody(pick=pick, event=event))
        return self._read(self._call("POST", "/v1/picked", content=body), PickedAnswer)

    def ladder(self) -> LadderAnswer:
        """Ask for the sums from prompts to what was delivered."""
        return self._read(self._call("GET", "/v1/ladder"), LadderAnswer)

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
    source: str,
    query: UrlQuery,
    *,
    raw: bool = False,
    kind: type[ScoreBody | PickBody] = ScoreBody,
) -> tuple[TokenBytes, UrlQuery]:
    """Read a request from a file, or from stdin for `-`: token ids, or the body of its route.

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
        body = _body(source, data, kind)
        fields = {name: in_query(name, value) for name, value in _fields(body).items()}
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


def _body(source: str, data: bytes, kind: type[ScoreBody | PickBody]) -> ScoreBody | PickBody:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        msg = f"{source}: not the body of a request ({describe(error, kind)})"
        raise InvalidValueError(msg) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{source}: not the body of a request ({error}); docs/api.md has its fields"
        raise InvalidValueError(msg) from None


def _fields(body: msgspec.Struct) -> dict[str, object]:
    given = msgspec.structs.asdict(body)
    return {name: given[name] for name in given if name != "token_ids"}


def in_query(name: str, value: object) -> str | list[str] | None:
    """A field of a body as the query has it: an object or a list of them is one JSON text."""
    if value is None or isinstance(value, str):
        return value
    if name in OBJECTS or not isinstance(value, list):
        return msgspec.json.encode(value).decode()
    return [str(each) for each in msgspec.to_builtins(value)]


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
