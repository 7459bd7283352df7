"""Our ids of chats and texts, beside those of vLLM's own renderer on the same model's files."""

import asyncio
import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kvbraid.gateway.tokens import BodyReader, TokenizerFiles, Tokenizers

from tests.unit.gateway.model_folders import CONFIG, TEMPLATES, write_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Its dependencies' own.
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers import hf
    from vllm.renderers.chat_utils import parse_chat_messages

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated"),  # vLLM reads it itself.
]


def said(role: str, content: object, **fields: object) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def user(content: object = "Why?") -> dict[str, Any]:
    return said("user", content)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


PARAMETERS: Final = {"properties": {"b": {"type": "string"}, "a": {"enum": ["é<>&"]}}, "x": 1}
TOOL: Final = {
    "type": "function",
    "function": {"parameters": PARAMETERS, "name": "f", "description": "does <it>"},
}
OTHER_TOOL: Final = {"function": {"strict": True, "name": "g"}, "type": "function"}
CALL: Final = {
    "type": "function",
    "function": {"name": "f", "arguments": '{"z": 1.0, "a": "ü"}'},
    "id": "1",
    "further": 5,
}
BROKEN_CALL: Final = {**CALL, "function": {"name": "g", "arguments": "nonsense"}}
CALLED: Final = [
    user(),
    said("assistant", None, tool_calls=[CALL]),
    said("tool", parts("r1", "r2"), tool_call_id="1"),
]
CLOSED: Final = {"add_generation_prompt": False}
CONTINUED: Final = {**CLOSED, "continue_final_message": True}

BODIES: Final[tuple[Mapping[str, Any], ...]] = (
    {"messages": [user()]},
    {"messages": [user()], **CLOSED},
    {
        "messages": [
            said("system", " be kind "),
            user(" Hello \n"),
            said("assistant", "Hi "),
            user(),
        ]
    },
    {
        "messages": [
            said("system", parts("a", "b")),
            user(parts("c", "d ")),
            said("assistant", "e"),
        ]
    },
    {"messages": [user(["plain", *parts("part")])]},
    {"messages": [user("<|end|> 👩‍👩‍👧 </s>\r\n\t<|start|>")]},
    {"messages": [user("")]},
    {"messages": [said("user", "a", name="bob")]},
    {"messages": [user(), said("assistant", "I thi ")], **CONTINUED},
    {"messages": [user(), said("assistant", parts("I thi", "nk "))], **CONTINUED},
    {"messages": [user(), said("assistant", "I thi")], "continue_final_message": True},
    {"messages": CALLED, "tools": [TOOL]},
    {"messages": [*CALLED, user()], "tools": [TOOL, OTHER_TOOL], "tool_choice": "none"},
    {"messages": [user(), said("assistant", "", tool_calls=[CALL, BROKEN_CALL])]},
    {"messages": [user(), said("assistant", "a", tool_calls=[])]},
    {"messages": [user(), said("assistant", "a", tool_calls=None)]},
    {"messages": [user(), said("assistant", "a", reasoning_content="so\n"), user()]},
    {"messages": [user(), said("assistant", "a", reasoning="so\n")], **CLOSED},
    {"messages": [user()], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [user()], "reasoning_effort": "none"},
    {"messages": [user()], "reasoning_effort": "high"},
    {"messages": [user()], "chat_template_kwargs": {"date_string": "2 June", "bos_token": "!"}},
    {"messages": [user()], "chat_template_kwargs": {"date_string": None, "tools": [TOOL]}},
    {"messages": [user()], "documents": [{"title": "T", "text": "long"}]},
    {"messages": [said("developer", "d"), user()]},
    {"messages": [said("system", "s"), said("developer", parts("d", "e")), user()]},
    {"messages": [said("developer", "d", tools=[TOOL]), user()]},
    {"messages": [user()], "add_special_tokens": True},
    {"messages": [user(), user()]},
    {"messages": [said("assistant", [{"type": "refusal", "refusal": "no"}])]},
    {"messages": []},
)


def ids_of_vllm(tokenizer: Any, body: Mapping[str, Any]) -> list[int] | None:  # noqa: ANN401
    """What vLLM computes for a chat; None says that it refuses the body."""
    model = SimpleNamespace(
        tokenizer_revision=None,
        revision=None,
        code_revision=None,
        trust_remote_code=False,
        multimodal_config=None,
        enable_prompt_embeds=False,
        tokenizer=tokenizer.name_or_path,
        model=tokenizer.name_or_path,
        hf_config=SimpleNamespace(model_type="qwen3"),
        max_model_len=1_000_000,
    )
    try:
        request = ChatCompletionRequest(**deepcopy(body))
        tools = None if request.tools is None else [each.model_dump() for each in request.tools]
        given = request.build_chat_params(None, "auto").with_defaults(
            {"tools": tools, "tokenize": False}
        )
        content_format = hf.resolve_chat_template_content_format(
            chat_template=given.chat_template,
            tools=given.chat_template_kwargs.get("tools"),
            given_format="auto",
            tokenizer=tokenizer,
            model_config=model,
        )
        conversation, _, _ = parse_chat_messages(
            request.messages, model, content_format=content_format
        )
        text = hf.safe_apply_chat_template(
            model, tokenizer, conversation, **given.get_apply_chat_template_kwargs()
        )
    except (ValueError, VLLMValidationError):
        return None
    ids: list[int] = tokenizer.encode(text, **request.build_tok_params(model).get_encode_kwargs())
    return ids


def ours(reader: BodyReader, path: str, body: Mapping[str, Any]) -> list[int] | None:
    prompt = asyncio.run(reader.read(path, {}, json.dumps(body).encode()))
    return None if prompt.token_ids is None else list(prompt.token_ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_have_the_ids_of_vllm(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, TEMPLATES[name])
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    reader = BodyReader(Tokenizers.of({"m": TokenizerFiles(folder=folder)}))
    for body in BODIES:
        named = {**body, "model": "m"}
        assert ours(reader, "/v1/chat/completions", named) == ids_of_vllm(tokenizer, named), body
    assert reader.counts["known"] > len(BODIES) // 2


@pytest.mark.parametrize("config", [{}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_texts_have_the_ids_of_transformers(tmp_path: Path, config: Mapping[str, bool]) -> None:
    folder = write_model(tmp_path, config={**CONFIG, **config})
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    reader = BodyReader(Tokenizers.of({"m": TokenizerFiles(folder=folder)}))
    for text in ("", "Hello, they'll  go\n to <s> 12", " é👍🏽"):
        for special in (True, False):
            body = {"model": "m", "prompt": text, "add_special_tokens": special}
            true = tokenizer.encode(text, add_special_tokens=special)
            assert ours(reader, "/v1/completions", body) == true
