"""JSON bodies into structs, and what is wrong with them in one line that names the key.

Everyone who reaches the port can send input to this module. Hostile text can do no more than
appear, shortened, in the refusal. This module reads nothing and knows no route.
"""

from typing import Final, TypeVar

import msgspec

from kvbraid.errors import shortened
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
    error: msgspec.ValidationError, root: type[msgspec.Struct], *, under: str = ""
) -> str:
    """Say in one line which key is wrong and what would be right.

    Args:
        error: What msgspec found while decoding into `root`.
        root: The struct whose (nested) fields are the known keys.
        under: The key of the root, if that was decoded by itself.
    """
    fault = fault_of(error, root, under=under)
    if fault.key is None:
        return f"{fault.path}: {fault.problem}" if fault.path else fault.problem
    name = fault.key if len(fault.key) <= LONGEST_KEY else shortened(fault.key)
    return f"unknown key {f'{fault.path}.{name}' if fault.path else name}; {_remedy(fault)}"


def _remedy(fault: Fault) -> str:
    if _TOKENS in fault.known and fault.key in _FROM_TEXT:
        where = _FROM_TEXT[fault.key]
        return f"send {_TOKENS}, which the engine computes: {where} (docs/tokens.md)"
    near = fault.near()
    return f"did you mean {near}?" if near else f"remove it; known: {', '.join(fault.known)}"
