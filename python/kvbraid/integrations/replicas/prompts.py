"""The prompt of a call to a deployment: whatever its arguments are, they are read or go by load.

    request_token_ids=[...]       ids, as Ray Serve LLM hands them to its own router
    ids, or a text                a prompt
    a body of the OpenAI API      as a mapping, as bytes, or as an object that has its fields

The engine computes what it gets, so bodies are read as a gateway reads them. Nothing here changes
an argument.
"""

from array import array
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import msgspec

from kvbraid.gateway.choosing import BYTES_PER_TOKEN
from kvbraid.gateway.prompts import Prompt, PromptReader, WhyNoTokens
from kvbraid.gateway.tokens.reader import MOST_IDS

IDS_ARGUMENT: Final = "request_token_ids"
"""The keyword argument under which Ray Serve LLM hands over the ids of a prompt."""

_BODY_FIELDS: Final = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
}
"""The fields that make a body, and the path that they are sent to; the first one counts."""


class CallPrompt(NamedTuple):
    """A prompt, and about how many tokens it has if its ids are not known."""

    prompt: Prompt
    num_tokens: int = 0


async def read_prompt(
    args: Sequence[Any], kwargs: Mapping[str, Any], reader: PromptReader, model: str
) -> CallPrompt:
    """Return the prompt of a call, for the model that its deployment serves."""
    given = kwargs.get(IDS_ARGUMENT)
    if given is None:
        given = args[0] if args else kwargs
    if _is_ids(given):
        return _prompt_of_ids(given, model)
    fields = _fields(given)
    path = next((path for name, path in _BODY_FIELDS.items() if fields.get(name)), None)
    if path is None:
        return _unknown(model, "not_a_prompt")
    try:
        body = msgspec.json.encode({**fields, "model": model}, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError):
        return _unknown(model, "malformed")
    prompt = await reader.read(path, {}, body)
    return CallPrompt(prompt, 0 if prompt.token_ids is not None else len(body) // BYTES_PER_TOKEN)


def _is_ids(given: object) -> bool:
    """Whether it is a buffer, or a list that begins with a number."""
    if isinstance(given, (list, tuple)):
        return bool(given) and isinstance(given[0], int)
    return isinstance(given, (array, memoryview)) or hasattr(given, "__array_interface__")


def _prompt_of_ids(given: Any, model: str) -> CallPrompt:  # noqa: ANN401
    if len(given) > MOST_IDS:
        return _unknown(model, "too_many_tokens", len(given))
    try:
        ids = _buffer(given) if isinstance(given, (list, tuple)) else memoryview(given)
    except (TypeError, OverflowError):
        return _unknown(model, "malformed", len(given))
    return CallPrompt(Prompt(model=model, token_ids=ids))


def _buffer(ids: "list[int] | tuple[int, ...]") -> "array[int]":
    try:
        return array("I", ids)
    except OverflowError:  # SGLang stands media in by numbers of up to 62 bits.
        return array("Q", ids)


def _unknown(model: str, why: WhyNoTokens, num_tokens: int = 0) -> CallPrompt:
    return CallPrompt(Prompt(model=model, why_no_tokens=why), num_tokens)


def _fields(given: object) -> Mapping[str, Any]:
    """Return the fields of a body; none if it is something else."""
    if isinstance(given, Mapping):
        return given
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, SimpleNamespace):
        return vars(given)
    if isinstance(given, (bytes, bytearray)):
        try:
            found = msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
    dump = getattr(given, "model_dump", None)  # A model of pydantic, as Ray Serve LLM has.
    return dump(mode="json", exclude_unset=True) if callable(dump) else {}


def _plain(value: Any) -> object:  # noqa: ANN401
    """Return what JSON has for a value within a body."""
    for name in ("model_dump", "tolist"):
        make = getattr(value, name, None)
        if callable(make):
            return make()
    raise TypeError(f"{type(value).__name__} is no JSON")
