"""A chat to the text that the engine computes: its model's templates and what they are given.

As in vLLM, what a body says counts above what the engine was started with, and null says nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import Chat, PromptBody, chat_of, is_given
from kvbraid.gateway.tokens.messages import (
    ContentFormat,
    conversation_of,
    tools_of,
    with_developers_as_system,
)
from kvbraid.gateway.tokens.templates import Allowance, ChatTemplate

_UNSAID: Final = (None, "auto")
_NOT_ARGUMENTS: Final = frozenset({"chat_template", "tokenize"})
_OF_THE_BODY: Final = frozenset({"messages", "conversation"})
_WITH_TOOLS: Final = "tool_use"
_OTHERWISE: Final = "default"
_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks where the last message ends in the text, as transformers does it."""


class ChatRenderer:
    """The templates of one model, with the names of special tokens that they may use."""

    def __init__(
        self,
        templates: Mapping[str, ChatTemplate],
        special_tokens: Mapping[str, str],
        *,
        content_format: ContentFormat | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what every chat is rendered with.

        Args:
            templates: By name; `tool_use` is for chats with tools, `default` for all others.
            special_tokens: The tokens that templates may name, as `bos_token`.
            content_format: The engine's `--chat-template-content-format`; None finds it out.
            arguments: The engine's `--default-chat-template-kwargs`.
        """
        self._templates = templates
        self._special_tokens = special_tokens
        self._content_format = content_format
        self._arguments = arguments or {}

    def render(self, body: PromptBody, allowance: Allowance) -> str:
        """Return the text of a chat.

        Raises:
            NoTokensError: It has none, or only the engine knows it.
            OutOfStepsError: The template needs more steps than are allowed.
        """
        tools = tools_of(chat_of(body.tools)) if is_given(body.tools) else None
        template = self._template(tools)
        content_format = self._content_format or template.content_format
        conversation = conversation_of(chat_of(body.messages), content_format)
        if not template.knows_developers:
            conversation = with_developers_as_system(conversation)
        if not conversation:
            raise NoTokensError("failed")
        arguments = self._all_arguments(body, tools)
        if not arguments.pop("continue_final_message"):
            return template.render(arguments | {"messages": conversation}, allowance)
        if arguments["add_generation_prompt"] or not template.mentions_content:
            raise NoTokensError("failed")
        conversation, final = _tagged(conversation)
        text = template.render(arguments | {"messages": conversation}, allowance)
        return _cut(text, final)

    def is_stuck(self, after_s: float) -> bool:
        """Whether a template has been at work for longer than that."""
        return any(template.is_stuck(after_s) for template in self._templates.values())

    def _template(self, tools: Chat | None) -> ChatTemplate:
        name = _OTHERWISE if tools is None else _WITH_TOOLS
        template = self._templates.get(name) or self._templates.get(_OTHERWISE)
        if template is None:
            raise NoTokensError("no_template")
        return template

    def _all_arguments(self, body: PromptBody, tools: Chat | None) -> dict[str, Any]:
        own = body.chat_template_kwargs or {}
        if own.keys() & (_NOT_ARGUMENTS | _OF_THE_BODY):
            raise NoTokensError("failed")
        said: dict[str, Any] = {
            "add_generation_prompt": body.add_generation_prompt,
            "continue_final_message": body.continue_final_message,
            "documents": chat_of(body.documents) if is_given(body.documents) else None,
            "reasoning_effort": body.reasoning_effort,
        }
        if body.reasoning_effort is not None and "enable_thinking" not in own:
            said["enable_thinking"] = body.reasoning_effort != "none"
        arguments: dict[str, Any] = {"tools": None, "documents": None, **self._special_tokens}
        for given in (self._arguments, {"tools": tools}, own, said):
            arguments |= {k: value for k, value in given.items() if value not in _UNSAID}
        return arguments


def _tagged(conversation: Chat) -> tuple[Chat, str]:
    """The conversation with a mark at the end of its last text, and this text."""
    *others, last = conversation
    content = last["content"]
    if isinstance(content, str):
        return [*others, {**last, "content": content + _TAG}], content
    if not content:
        raise NoTokensError("failed")
    *parts, part = content
    marked = {**part, "text": part["text"] + _TAG}
    return [*others, {**last, "content": [*parts, marked]}], part["text"]


def _cut(text: str, final: str) -> str:
    """The text up to the mark; whitespace before it goes where the template has trimmed."""
    place = text.rfind(_TAG.strip())
    if place < 0 or final.strip() not in text:
        raise NoTokensError("failed")
    return text[:place] if text.startswith(_TAG, place) else text[:place].rstrip()
