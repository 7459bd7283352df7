"""JSON bodies into structs, and what is wrong with them in one line that names the key.

Everyone who reaches the port can send input to this module. Hostile text can do no more than
appear, shortened, in the refusal. This module reads nothing and knows no route.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from kvbraid.errors import shown
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


_UNKNOWN_FIELD: Final = "Object contains unknown field `"
_AT: Final = " - at `$"
_LONGEST_KEY: Final = 64
_TOKENS: Final = "token_ids"
_FROM_TEXT: Final = {
    "prompt": "POST /tokenize (vLLM, SGLang) returns those of a prompt",
    "text": "POST /tokenize (vLLM, SGLang) returns those of a text",
    "messages": "POST /v1/chat/completions/render (vLLM) returns those of messages",
}
"""Keys of text, where token ids are asked for, and where an engine gives the ids."""
_STEP: Final = re.compile(r"\.?([^.\[]+)|\[[^\]]*\]")


def describe(
    error: msgspec.ValidationError, root: type[msgspec.Struct], *, under: str = ""
) -> str:
    """Say in one line which key is wrong and what would be right.

    Args:
        error: What msgspec found while decoding into `root`.
        root: The struct whose (nested) fields are the known keys.
        under: The key of the root, if that was decoded by itself.
    """
    text = str(error)
    problem, at, place = text.rpartition(_AT) if text.endswith("`") else ("", "", "")
    problem, path = (problem, (under + place[:-1]).lstrip(".")) if at else (text, under)
    if not text.startswith(_UNKNOWN_FIELD):
        return f"{path}: {problem}" if path else problem
    known = _fields_at(root, path)
    if not known:  # The key itself ends like a place.
        problem, path, known = text, under, _fields_at(root, under)
    key = problem.removeprefix(_UNKNOWN_FIELD).removesuffix("`")
    remedy = _remedy(key, known)
    name = key if len(key) <= _LONGEST_KEY else shown(key)
    return f"unknown key {f'{path}.{name}' if path else name}; {remedy}"


def _remedy(key: str, known: Sequence[str]) -> str:
    if _TOKENS in known and key in _FROM_TEXT:
        where = _FROM_TEXT[key]
        return f"send {_TOKENS}, which the engine computes: {where} (docs/tokens.md)"
    near = difflib.get_close_matches(key, known, n=1) if len(key) <= _LONGEST_KEY else []
    return f"did you mean {near[0]}?" if near else f"remove it; known: {', '.join(known)}"


def _fields_at(root: type[msgspec.Struct], path: str) -> list[str]:
    """Names of the keys that the struct at a path such as `pods[...]` knows; none elsewhere."""
    current: Sequence[msgspec.inspect.Type] = [msgspec.inspect.type_info(root)]
    for step in _STEP.finditer(path):
        current = [inner for kind in current for inner in _below(kind, step[1])]
    return [
        known.encode_name
        for kind in current
        if isinstance(kind, msgspec.inspect.StructType)
        for known in kind.fields
    ]


def _below(kind: msgspec.inspect.Type, name: str | None) -> Sequence[msgspec.inspect.Type]:
    """The types one step below: of the field with this name, or of an item without a name."""
    if isinstance(kind, msgspec.inspect.StructType):
        inner = [known.type for known in kind.fields if known.encode_name == name]
    elif isinstance(kind, msgspec.inspect.ListType) and name is None:
        inner = [kind.item_type]
    else:
        inner = []
    return [one for each in inner for one in _members(each)]


def _members(kind: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    return kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
