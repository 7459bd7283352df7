"""Bodies of the OpenAI API: every shape of a prompt, and nothing that can harm the reader."""

import pytest
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import chat_of, is_given, one_prompt, read_body


def prompt(body: str) -> str | list[int]:
    found = one_prompt(read_body(body.encode()).prompt)
    return found if isinstance(found, str) else list(found)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"prompt": "a\\u00e9"}', "aé"),
        ('{"prompt": ["a"]}', "a"),
        ('{"prompt":\n [1, 4294967295]}', [1, 2**32 - 1]),
        ('{"prompt": []}', []),
        ('{"prompt": [ [1,2] ], "n": 4}', [1, 2]),
        ('{"model": "m", "max_tokens": 5, "prompt": [7], "x": {"prompt": "no"}}', [7]),
        ('{"prompt": "first", "prompt": "last"}', "last"),
    ],
)
def test_a_prompt_is_a_text_or_ids_or_a_list_of_one(body: str, expected: str | list[int]) -> None:
    assert prompt(body) == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"prompt": ["a", "b"]}', "several_prompts"),
        ('{"prompt": [[1], [2]]}', "several_prompts"),
        ("{}", "malformed"),
        ('{"prompt": null}', "malformed"),
        ('{"prompt": [-1]}', "malformed"),
        ('{"prompt": [4294967296]}', "malformed"),
        ('{"prompt": [1.5]}', "malformed"),
        ('{"prompt": [true]}', "malformed"),
        ('{"prompt": [1, "a"]}', "malformed"),
        ('{"prompt": [[]', "malformed"),
        ('{"prompt": [[[1]]]}', "malformed"),
        ('{"prompt": "\\ud800"}', "malformed"),
        ('{"prompt": "a", "stream": "yes"}', "malformed"),
        ("[]", "malformed"),
        ("", "malformed"),
        ("--boundary", "malformed"),
    ],
)
def test_what_is_no_single_prompt_has_a_reason(body: str, why: str) -> None:
    with pytest.raises(NoTokensError) as refused:
        prompt(body)
    assert refused.value.why == why


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "\xff"}',
        b'{"model": "\xff"}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"other": ' + b'{"a":' * 100_000,
        b'{"prompt": "' + b"a" * 1_000_000,
    ],
)
def test_bytes_that_are_no_json_are_malformed(body: bytes) -> None:
    with pytest.raises(NoTokensError) as refused:
        one_prompt(read_body(body).prompt)
    assert refused.value.why == "malformed"


def test_null_is_the_same_as_absent() -> None:
    fields = read_body(b'{"tools": null, "messages": [], "chat_template": ""}')
    assert not is_given(fields.tools)
    assert not is_given(fields.documents)
    assert is_given(fields.messages)
    assert is_given(fields.chat_template)


@pytest.mark.parametrize("messages", ['"hello"', "[1]", "{}", "null"])
def test_messages_are_objects(messages: str) -> None:
    with pytest.raises(NoTokensError):
        chat_of(read_body(b'{"messages": %b}' % messages.encode()).messages)
