"""JSON bodies into structs, and what is wrong with them in one line that names the key.

Everyone who reaches the port can send input to this module. Hostile text can do no more than
appear, shortened, in the refusal. This module reads nothing and knows no route.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec

from kvbraid.errors import one_line, shortened
from kvbraid.reading import LONGEST_KEY, Fault, fault_of
from kvbraid.service.errors import RefusalError

_Body = TypeVar("_Body", bound=msgspec.Struct)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[_Body]) -> _Body:
    """Decode a JSON body into the decoder's struct.

    Raises:
        RefusalError: `malformed_body`, with the key or the place.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RefusalError("malformed_body", describe(error, decoder.type)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError("malformed_body", f"not JSON: {error}") from None


_TOKENS: Final = "token_ids"
_FROM_TEXT: Final = {
    "prompt": "POST /tokenize (vLLM, SGLang) returns those of a prompt",
    "text": "POST /tokenize (vLLM, SGLang) returns those of a text",
    "messages": "POST /v1/chat/completions/render (vLLM) returns those of messages",
}
"""Keys of text, where token ids are asked for, and where an engine gives the ids."""


def describe(
    error: msgspec.ValidationError,
    root: type[msgspec.Struct],
    *,
    under: str = "",
    within: str = "",
) -> str:
    """Say in one line which key is wrong and what would be right.

    Args:
        error: What msgspec found while decoding into `root`.
        root: The struct whose (nested) fields are the known keys.
        under: The key of the root, if that was decoded by itself.
        within: Where the root itself is in a larger document.
    """
    fault = fault_of(error, root, under=under)
    is_field = within and fault.path and not fault.path.startswith("[")
    path = f"{within}{'.' if is_field else ''}{fault.path}"
    if fault.key is None:
        return f"{path}: {fault.problem}" if path else fault.problem
    name = fault.key if len(fault.key) <= LONGEST_KEY else shortened(fault.key)
    return f"unknown key {f'{path}.{name}' if path else name}; {_remedy(fault)}"


def every_fault(value: object, kind: Any, within: str = "") -> Iterator[str]:  # noqa: ANN401
    """Say what is wrong with each part of a parsed document, a line each; nothing if it fits.

    Args:
        value: The document, or a part of it.
        kind: What it is to be: a struct, or the type of one's field.
        within: Where the part is.
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        found = list(_faults_of_parts(value, kind, within))
        yield from found or [describe(error, kind, within=within)]


def _faults_of_parts(value: object, kind: Any, within: str) -> Iterator[str]:  # noqa: ANN401
    """Say what is wrong with what a table or a list consists of."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(value, list) and get_origin(kind) is list:
        for number, item in enumerate(value):
            yield from every_fault(item, get_args(kind)[0], f"{within}[{number}]")
    elif isinstance(value, dict) and get_origin(kind) is dict:
        for name, item in value.items():
            yield from every_fault(item, get_args(kind)[1], f"{within}.{one_line(name)}")
    elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from _faults_of_table(value, kind, within)


def _faults_of_table(
    table: dict[str, Any], kind: type[msgspec.Struct], within: str
) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, item in table.items():
        if name in fields:
            place = f"{within}.{name}" if within else name
            yield from every_fault(item, fields[name].type, place)
        else:
            try:
                msgspec.convert({name: None}, kind)
            except msgspec.ValidationError as error:
                yield describe(error, kind, within=within)
    for name, field in fields.items():
        if field.required and name not in table:
            yield f"{within}: Object missing required field `{name}`"


def _remedy(fault: Fault) -> str:
    if _TOKENS in fault.known and fault.key in _FROM_TEXT:
        where = _FROM_TEXT[fault.key]
        return f"send {_TOKENS}, which the engine computes: {where} (docs/tokens.md)"
    near = fault.near()
    return f"did you mean {near}?" if near else f"remove it; known: {', '.join(fault.known)}"
