"""Bodies of the OpenAI API, as far as they decide what an engine computes.

A body is read in two steps: its names and flags at once, its prompt only where somebody can turn
it into tokens. Unknown fields are ignored, because engines have many. Nothing here judges a
value: the engine does, and gets the body as the client sent it.
"""

import re
from array import array
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from kvbraid.gateway.prompts import NoTokensError
from kvbraid.service.requests import listed_ids

TextOrIds: TypeAlias = "str | memoryview"
"""A prompt: text, or ids as a buffer of uint32."""

Chat: TypeAlias = list[dict[str, Any]]
"""The messages, tools or documents of a chat, as JSON has them."""

_ABSENT: Final = Raw(b"null")


class PromptBody(msgspec.Struct, kw_only=True):
    """The fields that engines take of a body; null means the same as absent, as there.

    What is long or has several shapes is left as it is, until it is needed.
    """

    model: str = ""
    prompt: Raw = _ABSENT
    input: Raw = _ABSENT
    messages: Raw = _ABSENT
    tools: Raw = _ABSENT
    documents: Raw = _ABSENT
    prompt_embeds: Raw = _ABSENT
    chat_template: Raw = _ABSENT
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    stream: bool | None = None
    stream_options: Raw = _ABSENT
    priority: int | None = None
    session_id: str | None = None


_T = TypeVar("_T")
_BODY: Final = msgspec.json.Decoder(PromptBody)
_IDS: Final = msgspec.json.Decoder(list[int])
_LISTS_OF_IDS: Final = msgspec.json.Decoder(list[list[int]])
_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_CHAT: Final = msgspec.json.Decoder(Chat)

_OPENING: Final = re.compile(rb"[\s\[]*")


def read_body(body: bytes) -> PromptBody:
    """Read what a body asks for.

    Raises:
        NoTokensError: `malformed`.
    """
    return _decoded(_BODY, body)


def is_given(raw: Raw) -> bool:
    """Whether a field is there, and not null."""
    return memoryview(raw) != memoryview(_ABSENT)


def one_prompt(raw: Raw) -> TextOrIds:
    """Return the only prompt of a field that may be a text, ids, or a list of these.

    Raises:
        NoTokensError: `malformed`, `several_prompts`.
    """
    opening = _OPENING.match(raw)
    assert opening is not None  # It also matches nothing.
    depth, is_text = opening[0].count(b"["), raw_at(raw, opening.end()) == b'"'
    if depth == 0:
        return _decoded(_TEXT, raw)
    if is_text:
        return _only(_decoded(_TEXTS, raw))
    if depth > 1:
        return _ids(_only(_decoded(_LISTS_OF_IDS, raw)))
    ids = listed_ids(bytes(raw))
    return _ids(_decoded(_IDS, raw)) if ids is None else ids


def chat_of(raw: Raw) -> Chat:
    """Return the objects of a list, such as messages.

    Raises:
        NoTokensError: `malformed`.
    """
    return _decoded(_CHAT, raw)


def raw_at(raw: Raw, place: int) -> bytes:
    """Return one byte of a field, without a copy of it."""
    return bytes(memoryview(raw)[place : place + 1])


def _only(prompts: list[_T]) -> _T:
    only, *others = prompts  # What opens a list of lists or texts has one of them.
    if others:
        raise NoTokensError("several_prompts")
    return only


def _ids(ids: list[int]) -> memoryview:
    try:
        return memoryview(array("I", ids))
    except OverflowError:
        raise NoTokensError("malformed") from None


def _decoded(decoder: "msgspec.json.Decoder[_T]", text: bytes | Raw) -> _T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoTokensError("malformed") from None
