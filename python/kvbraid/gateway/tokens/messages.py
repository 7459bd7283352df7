"""Messages and tools of a chat, as the engine hands them to its chat template.

Engines do not pass on what a client wrote: they drop unknown fields, join or wrap texts, and read
the arguments of tool calls. One difference changes every later token, so this follows vLLM 0.32
(`renderers/chat_utils.py`, `renderers/hf.py`), which `tests/vllm` compares with. Media are left to
the engine. The client's objects are never changed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import Chat

ContentFormat: TypeAlias = Literal["string", "openai"]
"""What a template takes as the content of a message: one text, or a list of parts."""

_TEXT_FIELDS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The kinds of parts that are text, and the field that has it."""

_NAMES: Final = ("name", "task")
_TOOL_FIELDS: Final = ("name", "description", "parameters")
_OPTIONAL_TOOL_FIELDS: Final = ("strict", "defer_loading")


def conversation_of(messages: Chat, content_format: ContentFormat) -> Chat:
    """Return the messages that the template gets.

    Raises:
        NoTokensError: `not_text`, or `malformed`.
    """
    return [_message(each, content_format) for each in messages]


def tools_of(tools: Chat) -> Chat:
    """Return the tools that the template gets: the fields that the API has, in its order.

    Raises:
        NoTokensError: `malformed`.
    """
    return [_tool(each) for each in tools]


def with_developers_as_system(conversation: Chat) -> Chat:
    """Return the conversation for a template that does not know the role of developers.

    Its system messages become one, the first, as many such templates take only one.
    """
    if all(each["role"] != "developer" for each in conversation):
        return conversation
    conversation = [
        {**{k: v for k, v in each.items() if k != "tools"}, "role": "system"}
        if each["role"] == "developer"
        else each
        for each in conversation
    ]
    system = [each for each in conversation if each["role"] == "system"]
    if system == conversation[:1]:
        return conversation
    text = "\n\n".join(text for each in system if (text := _text_of(each["content"])))
    others = [each for each in conversation if each["role"] != "system"]
    return [{"role": "system", "content": text}, *others]


def _message(given: Mapping[str, Any], content_format: ContentFormat) -> dict[str, Any]:
    role = given.get("role")
    if not isinstance(role, str):
        raise NoTokensError("malformed")
    texts = list(_texts(given.get("content")))
    joined = content_format == "string" or role == "tool"
    message = {
        "role": role,
        "content": "\n".join(texts) if joined else [{"type": "text", "text": t} for t in texts],
        **_EXTRAS.get(role, _no_extras)(given),
    }
    message |= {name: given[name] for name in _NAMES if isinstance(given.get(name), str)}
    return message


def _texts(content: object) -> Iterator[str]:
    if content is None:
        return
    for part in [content] if isinstance(content, str) else _list(content):
        text = part if isinstance(part, str) else _text_of_part(part)
        if text is not None:
            yield text


def _text_of_part(part: object) -> str | None:
    """The text of a part; None says that the engine skips it."""
    given = _object(part)
    kind = given.get("type")
    field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None or given.get("uuid") is not None:
        raise NoTokensError("not_text")
    text = given.get(field)
    if not isinstance(text, str | None):
        raise NoTokensError("malformed")
    return text


def _text_of(content: str | Chat) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def _no_extras(_given: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _of_assistant(given: Mapping[str, Any]) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if given.get("tool_calls"):  # An empty list would lead templates astray.
        extras["tool_calls"] = [_tool_call(each) for each in _list(given["tool_calls"])]
    reasoning = given.get("reasoning")
    if reasoning is None:
        reasoning = given.get("reasoning_content")
    if reasoning is not None:
        extras["reasoning"] = extras["reasoning_content"] = reasoning
    return extras


def _of_tool(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool_call_id": given["tool_call_id"]} if "tool_call_id" in given else {}


def _of_developer(given: Mapping[str, Any]) -> dict[str, Any]:
    tools = given.get("tools")
    return {"tools": None if tools is None else [_declared(each) for each in _list(tools)]}


def _declared(tool: object) -> dict[str, Any]:
    """A tool of a developer's message: every field, in the order of vLLM's types."""
    given = _object(tool)
    function = _in_order(_object(given.get("function")), (*_TOOL_FIELDS, "strict"))
    return _in_order({**given, "function": function}, ("function", "type"))


_EXTRAS: Final = {"assistant": _of_assistant, "tool": _of_tool, "developer": _of_developer}
"""What a message has besides its content, by the role of who speaks."""


def _tool_call(call: object) -> dict[str, Any]:
    """A call, in the order of vLLM's types, with arguments that are an object, if an empty one."""
    given = _object(call)
    function = _object(given.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)  # As vLLM: NaN and large numbers too.
        except (ValueError, RecursionError):
            arguments = None
    arguments = arguments if isinstance(arguments, dict) else {}
    function = _in_order({**function, "arguments": arguments}, ("arguments", "name"))
    return _in_order({**given, "function": function}, ("id", "function", "type"))


def _in_order(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields with these names before all others: templates print whole objects."""
    first = {name: given[name] for name in names if name in given}
    return first | {name: value for name, value in given.items() if name not in first}


def _tool(given: Mapping[str, Any]) -> dict[str, Any]:
    function = _object(given.get("function"))
    if not isinstance(function.get("name"), str):
        raise NoTokensError("malformed")
    defer = given.get("defer_loading")
    if defer is not None and function.get("defer_loading") is None:
        function = {**function, "defer_loading": defer}
    optional = [name for name in _OPTIONAL_TOOL_FIELDS if function.get(name) is not None]
    tool = {
        "type": "function",
        "function": {name: function.get(name) for name in (*_TOOL_FIELDS, *optional)},
    }
    return tool if defer is None else {**tool, "defer_loading": defer}


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NoTokensError("malformed")
    return value


def _list(value: object) -> Sequence[Any]:
    if not isinstance(value, list):
        raise NoTokensError("malformed")
    return value
