"""Requests to prompts: whose tokens are known, why others are not, and that all is counted."""

import asyncio
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.gateway.prompts import REASONS, Prompt, PromptReader
from kvbraid.gateway.tokens import BodyReader, TokenizerFiles, Tokenizers
from tokenizers import Tokenizer

from tests.unit.gateway.model_folders import TEMPLATES, tokenizer_text, write_model

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@cache
def tokens() -> Tokenizers:
    with TemporaryDirectory() as folder:
        files = {
            name: TokenizerFiles(folder=write_model(Path(folder) / name, text))
            for name, text in TEMPLATES.items()
        }
        return Tokenizers.of(files)


def reader() -> PromptReader:
    return BodyReader(tokens(), {"adapter": "turns", "stranger": "unknown"})


def read(path: str, body: bytes | dict[str, Any], **headers: str) -> Prompt:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(reader().read(path, headers, data))


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"z": 1}'}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"model": "turns", "messages": [user("Hello")]},
            "<|start|>user\nHello<|end|>\n<|start|>assistant\n",
        ),
        (
            {"model": "turns", "messages": [user("a")], "add_generation_prompt": False},
            "<|start|>user\na<|end|>\n",
        ),
        (
            {
                "model": "turns",
                "messages": [user("a"), assistant("so ")],
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
            "<|start|>user\na<|end|>\n<|start|>assistant\nso ",
        ),
        (
            {
                "model": "parts",
                "messages": [user("a"), assistant([{"type": "text", "text": "so "}])],
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
            "<s><|start|>user\na<|end|>\n<|start|>model\nso",
        ),
        (
            {"model": "turns", "messages": [user("a")], "reasoning_effort": "none"},
            "<|start|>user\na<|end|>\n<|start|>assistant\n()\n",
        ),
        (
            {"model": "turns", "messages": [user("a")], "add_special_tokens": True},
            "<s><|start|>user\na<|end|>\n<|start|>assistant\n",
        ),
        (
            {
                "model": "turns",
                "messages": [
                    {"role": "system", "content": "s"},
                    user("q"),
                    assistant(None, tool_calls=[CALL]),
                    {"role": "tool", "content": "r", "tool_call_id": "1"},
                ],
                "tools": [TOOL],
            },
            "<|start|>system\ns\n\nTools:\n"
            '{"type": "function", "function": {"name": "f", "description": null, '
            '"parameters": {"b": 1, "a": "é"}}}<|end|>\n'
            "<|start|>user\nq<|end|>\n<|start|>assistant\n\n"
            '<|tool|>{"name": "f", "arguments": {"z": 1}}<|end|>\n<|tool|>r<|end|>\n'
            "<|start|>assistant\n",
        ),
        (
            {
                "model": "headers",
                "messages": [user(" a ")],
                "documents": [{"title": "T", "text": "x"}],
                "chat_template_kwargs": {"date_string": "2 May"},
            },
            "<s><|start|>system\n\nToday: 2 May\n<|end|>T: x\n"
            "<|start|>user\n\na<|end|><|start|>assistant\n\n",
        ),
        (
            {"model": "turns", "messages": [{"role": "developer", "content": "d"}, user("a")]},
            "<|start|>system\nd<|end|>\n<|start|>user\na<|end|>\n<|start|>assistant\n",
        ),
        (
            {"model": "macro", "messages": [{"role": "developer", "content": "d"}]},
            "<|start|>developer\n[d]<|end|><|start|>assistant\n",
        ),
    ],
)
def test_a_chat_has_the_tokens_of_its_text(body: dict[str, Any], text: str) -> None:
    prompt = read(CHATS, body)
    assert prompt.why_no_tokens == ""
    assert prompt.token_ids is not None
    true = Tokenizer.from_str(tokenizer_text())
    assert list(prompt.token_ids) == true.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/embeddings"])
def test_a_text_has_the_special_tokens_of_its_file_unless_told_otherwise(path: str) -> None:
    field = "prompt" if path == COMPLETIONS else "input"
    true = Tokenizer.from_str(tokenizer_text())
    for said, special in (({}, True), ({"add_special_tokens": False}, False)):
        prompt = read(path, {"model": "turns", field: "Hello", **said})
        assert prompt.token_ids is not None
        assert list(prompt.token_ids) == true.encode("Hello", add_special_tokens=special).ids


def test_ids_need_no_tokenizer() -> None:
    prompt = read(COMPLETIONS, {"model": "other", "prompt": [3, 2, 1]})
    assert prompt.token_ids is not None
    assert (prompt.model, list(prompt.token_ids)) == ("other", [3, 2, 1])


def test_what_else_decides_is_read_too() -> None:
    said = {"stream": True, "priority": -3, "cache_salt": "s", "extra_key": "k"}
    body = {"model": "turns", "prompt": "a", "session_id": "of the body", **said}
    prompt = read(COMPLETIONS, body)
    assert prompt._replace(token_ids=None) == Prompt(
        model="turns", session="of the body", stream=True, priority=-3, cache_salt="s",
        extra_key="k", lacks_usage=True,
    )  # fmt: skip
    asks = {"stream_options": {"include_usage": False}}
    assert not read(COMPLETIONS, body | asks).lacks_usage
    assert not read("/v1/responses", body).lacks_usage
    assert read(COMPLETIONS, body, **{"x-session-id": "of the head"}).session == "of the head"
    nothing = dict.fromkeys(("stream", "priority", "cache_salt", "extra_key", "session_id"))
    prompt = read(COMPLETIONS, {"model": "turns", "prompt": "a", **nothing})
    assert prompt._replace(token_ids=None) == Prompt(model="turns")


def test_an_adapter_is_a_model_to_its_clients() -> None:
    prompt, base = (
        read(CHATS, {"model": m, "messages": [user("a")]}) for m in ("adapter", "turns")
    )
    assert (prompt.model, prompt.lora) == ("turns", "adapter")
    assert (base.model, base.lora) == ("turns", None)
    assert prompt.token_ids == base.token_ids


def chat(**fields: object) -> dict[str, Any]:
    return {"model": "turns", "messages": [user("a")], **fields}


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (COMPLETIONS, {"model": "other", "prompt": "a"}, "no_tokenizer"),
        (COMPLETIONS, {"model": "stranger", "prompt": "a"}, "no_tokenizer"),
        (COMPLETIONS, {"model": "turns", "prompt": ["a", "b"]}, "several_prompts"),
        (COMPLETIONS, {"model": "turns", "prompt": "", "prompt_embeds": "AAAA"}, "not_text"),
        (COMPLETIONS, {"model": "turns", "prompt": "a", "truncate_prompt_tokens": 9}, "truncated"),
        (COMPLETIONS, {"model": "turns", "prompt": [0] * ((1 << 20) + 1)}, "too_many_tokens"),
        (COMPLETIONS, {"model": "turns"}, "malformed"),
        (COMPLETIONS, b"no json", "malformed"),
        ("/v1/embeddings", chat(), "not_a_prompt"),
        ("/v1/responses", {"model": "turns", "input": "a"}, "not_a_prompt"),
        ("/v1/audio/transcriptions", b"--boundary", "not_a_prompt"),
        (CHATS, chat(truncate_prompt_tokens=-1), "truncated"),
        (CHATS, chat(chat_template="{{ 1 }}"), "own_template"),
        (CHATS, chat(chat_template_kwargs={"chat_template": "{{ 1 }}"}), "failed"),
        (CHATS, chat(chat_template_kwargs={"messages": []}), "failed"),
        (CHATS, chat(messages=[]), "failed"),
        (CHATS, chat(messages=[{"content": "of nobody"}]), "malformed"),
        (CHATS, chat(messages=[user([{"type": "image_url", "image_url": {}}])]), "not_text"),
        (CHATS, chat(tools=[{"type": "web_search"}]), "malformed"),
        (CHATS, chat(continue_final_message=True), "failed"),
        (CHATS, chat(model="headers", messages=[user("a"), user("b")]), "failed"),
        (
            CHATS,
            chat(
                messages=[user("a"), assistant([])],
                model="parts",
                continue_final_message=True,
                add_generation_prompt=False,
            ),
            "failed",
        ),
        (
            CHATS,
            chat(
                messages=[user("a"), {"role": "unknown", "content": "b"}],
                continue_final_message=True,
                add_generation_prompt=False,
            ),
            "failed",
        ),
    ],
)
def test_what_has_no_tokens_has_a_reason_and_is_counted(
    path: str, body: bytes | dict[str, Any], why: str
) -> None:
    counting = BodyReader(tokens(), {"adapter": "turns", "stranger": "unknown"})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    prompt = asyncio.run(counting.read(path, {}, data))
    assert (prompt.token_ids, prompt.why_no_tokens) == (None, why)
    assert why in REASONS
    assert counting.counts == {why: 1}
    if isinstance(body, dict):
        assert prompt.model == {"stranger": "unknown"}.get(body["model"], body["model"])


def test_a_malformed_body_may_still_name_its_model() -> None:
    prompt = read(COMPLETIONS, {"model": "adapter", "prompt": "a", "stream": 5})
    assert (prompt.model, prompt.lora, prompt.why_no_tokens) == ("turns", "adapter", "malformed")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
fields = st.sampled_from(
    ["messages", "tools", "documents", "prompt", "input", "chat_template_kwargs", "stream",
     "continue_final_message", "add_generation_prompt", "reasoning_effort", "priority"]
)  # fmt: skip
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"])},
        optional={"content": values, "tool_calls": values, "tools": values, "name": values},
    ),
    max_size=3,
)


@given(
    path=st.sampled_from([COMPLETIONS, CHATS, "/v1/embeddings"]),
    model=st.sampled_from([*TEMPLATES, "other"]),
    body=st.dictionaries(fields, values, max_size=4),
    chats=st.none() | messages,
)
def test_no_body_raises(path: str, model: str, body: dict[str, Any], chats: object) -> None:
    body = {**body, "model": model} | ({} if chats is None else {"messages": chats})
    prompt = read(path, body)
    assert prompt.model == model
    assert (prompt.token_ids is None) == (prompt.why_no_tokens in REASONS)


@given(body=st.binary(max_size=50))
def test_no_bytes_raise(body: bytes) -> None:
    assert read(COMPLETIONS, body).why_no_tokens in {"malformed", "no_tokenizer"}
