"""Messages and tools, as vLLM hands them to a template; tests/vllm compares with vLLM itself."""

from copy import deepcopy
from typing import Any

import pytest
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import Chat
from kvbraid.gateway.tokens.messages import (
    conversation_of,
    tools_of,
    with_developers_as_system,
)

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("given", "as_string", "as_parts"),
    [
        ("a", "a", [text("a")]),
        ([text("a"), text("b")], "a\nb", [text("a"), text("b")]),
        (["a", text("b")], "a\nb", [text("a"), text("b")]),
        ([{"type": "refusal", "refusal": "no"}], "no", [text("no")]),
        ([{"type": "thinking", "thinking": "hm"}], "hm", [text("hm")]),
        ([{"type": "text", "text": None}, text("b")], "b", [text("b")]),
        ([{**text("a"), "cache_control": {"type": "ephemeral"}}], "a", [text("a")]),
        (None, "", []),
        ([], "", []),
    ],
)
def test_contents_are_joined_or_wrapped(given: object, as_string: str, as_parts: object) -> None:
    messages: Chat = [{"role": "user", "content": given}]
    assert conversation_of(messages, "string") == [{"role": "user", "content": as_string}]
    assert conversation_of(messages, "openai") == [{"role": "user", "content": as_parts}]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user", "content": [PICTURE]}, "not_text"),
        ({"role": "user", "content": [text("what is this?"), PICTURE]}, "not_text"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "not_text"),
        ({"role": "user", "content": [{"text": "of no type"}]}, "not_text"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "not_text"),
        ({"role": "user", "content": [{**text("a"), "uuid": "1"}]}, "not_text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "malformed"),
        ({"role": "user", "content": [5]}, "malformed"),
        ({"role": "user", "content": 5}, "malformed"),
        ({"content": "a"}, "malformed"),
        ({"role": "assistant", "tool_calls": ["f"]}, "malformed"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, "malformed"),
        ({"role": "assistant", "tool_calls": {"function": {}}}, "malformed"),
        ({"role": "developer", "content": "", "tools": [{"function": None}]}, "malformed"),
    ],
)
def test_what_is_no_text_has_a_reason(message: dict[str, Any], why: str) -> None:
    with pytest.raises(NoTokensError) as refused:
        conversation_of([message], "string")
    assert refused.value.why == why


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1, "b": [NaN]}', '{"a": 1, "b": [nan]}'),
        ({"a": 1}, '{"a": 1}'),
        ("", "{}"),
        (None, "{}"),
        ("nonsense", "{}"),
        ("[1]", "{}"),
        ("[" * 100_000, "{}"),
    ],
)
def test_arguments_of_tool_calls_are_objects(arguments: object, expected: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}, "id": "1"}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    before = deepcopy(messages)
    (message,) = conversation_of(messages, "string")
    (read,) = message["tool_calls"]
    assert str(read["function"]["arguments"]).replace("'", '"') == expected
    assert list(read) == ["id", "function", "type"]
    assert list(read["function"]) == ["arguments", "name"]
    assert messages == before


def test_each_role_keeps_its_own_fields_and_no_others() -> None:
    everything: dict[str, Any] = {
        "name": "n",
        "task": "t",
        "reasoning_content": "r",
        "tool_calls": [],
        "tool_call_id": "1",
        "tools": None,
        "unknown": 1,
    }
    named: dict[str, Any] = {"content": "a", "name": "n", "task": "t"}
    expected = {
        "user": named,
        "assistant": {**named, "reasoning": "r", "reasoning_content": "r"},
        "tool": {**named, "tool_call_id": "1"},
        "developer": {**named, "tools": None},
    }
    for role, kept in expected.items():
        message = {"role": role, "content": "a", **everything}
        assert conversation_of([message], "string") == [{"role": role, **kept}]


def test_what_a_tool_says_is_one_text_whatever_the_template_takes() -> None:
    (message,) = conversation_of([{"role": "tool", "content": [text("a"), text("b")]}], "openai")
    assert message["content"] == "a\nb"


def test_tools_have_the_fields_of_the_api_in_its_order() -> None:
    given: Chat = [
        {
            "function": {"parameters": {"b": 1, "a": 2}, "name": "f", "other": 1},
            "type": "function",
        },
        {"type": "function", "function": {"strict": True, "name": "g"}, "defer_loading": False},
    ]
    first, second = tools_of(given)
    function = {"name": "f", "description": None, "parameters": {"b": 1, "a": 2}}
    assert first == {"type": "function", "function": function}
    assert [list(first), list(first["function"])] == [["type", "function"], list(function)]
    assert second["function"] == {
        "name": "g",
        "description": None,
        "parameters": None,
        "strict": True,
        "defer_loading": False,
    }
    assert second["defer_loading"] is False


@pytest.mark.parametrize("tool", [{}, {"function": 1}, {"function": {}}])
def test_a_tool_without_a_name_is_malformed(tool: dict[str, Any]) -> None:
    with pytest.raises(NoTokensError):
        tools_of([tool])


def test_developers_become_one_system_message_at_the_head() -> None:
    user = {"role": "user", "content": "q"}
    developer = {"role": "developer", "content": "d", "tools": None}
    alone = with_developers_as_system([developer, user])
    assert alone == [{"role": "system", "content": "d"}, user]
    system = {"role": "system", "content": [text("s"), text("t")]}
    later = with_developers_as_system([system, user, developer])
    assert later == [{"role": "system", "content": "s\nt\n\nd"}, user]
    assert with_developers_as_system([user, system]) == [user, system]
