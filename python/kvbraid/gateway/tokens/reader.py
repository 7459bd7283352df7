"""What each request asks for: its fields, and the token ids of its prompt where they can be known.

Every request has an answer. Where its tokens are unknown, the answer says why, and each reason is
counted.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from msgspec import Raw

from kvbraid.gateway.headers import SESSION, TRACEPARENT
from kvbraid.gateway.prompts import NoTokensError, Prompt, WhyNoTokens, model_of
from kvbraid.gateway.tokens.bodies import PromptBody, is_given, one_prompt, read_body
from kvbraid.gateway.tokens.engine import AskedEngine
from kvbraid.gateway.tokens.registry import Tokenizers

_TOLD_IF_ASKED: Final = ("/v1/completions", "/v1/chat/completions")
MOST_IDS: Final = 1 << 20
"""The longest prompt that is looked up, in tokens."""


class BodyReader:
    """Reads requests of the OpenAI API: the `PromptReader` of a gateway that has tokenizers.

    `counts` has how many prompts are `known`, and how many are not by each reason.
    """

    def __init__(
        self,
        tokens: Tokenizers,
        adapters: Mapping[str, str] | None = None,
        engines: Mapping[str, AskedEngine] | None = None,
    ) -> None:
        """Read with these tokenizers; `adapters` has the base model of each LoRA adapter.

        Of a model in `engines`, that engine is asked instead.
        """
        self.counts: Counter[str] = Counter()
        self._tokens = tokens
        self._adapters = {} if adapters is None else adapters
        self._engines = engines or {}

    async def read(self, path: str, headers: Mapping[str, str], body: bytes) -> Prompt:
        """Return what the body of a POST to `path` asks for; never raises for what is in it.

        `headers` have names in lower case.
        """
        asked, ids, why = await self._read(path, headers, body)
        self.counts[why or "known"] += 1
        base = self._adapters.get(asked.model)
        return Prompt(
            model=asked.model if base is None else base,
            token_ids=ids,
            lora=None if base is None else asked.model,
            cache_salt=asked.cache_salt,
            extra_key=asked.extra_key,
            stream=bool(asked.stream),
            lacks_usage=_lacks_usage(path, asked),
            session=headers.get(SESSION, asked.session_id),
            priority=asked.priority or 0,
            traceparent=headers.get(TRACEPARENT, ""),
            why_no_tokens=why,
        )

    async def close(self) -> None:
        """Close the connections to engines."""
        for engine in self._engines.values():
            await engine.close()

    async def _read(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[PromptBody, memoryview | None, WhyNoTokens]:
        ids_of = _ROUTES.get(path)
        try:
            asked = read_body(body)
        except NoTokensError as error:
            why = "not_a_prompt" if ids_of is None else error.why
            return PromptBody(model=model_of(body)), None, why
        try:
            if ids_of is None:
                raise NoTokensError("not_a_prompt")
            model = self._adapters.get(asked.model, asked.model)
            engine = self._engines.get(model)
            source = self._tokens if engine is None else engine.about(body, headers)
            ids = await ids_of(source, model, asked)
            if len(ids) > MOST_IDS:
                raise NoTokensError("too_many_tokens")
        except NoTokensError as error:
            return asked, None, error.why
        return asked, ids, ""


class IdSource(Protocol):
    """What makes ids: `Tokenizers`, or an engine that is asked about one request."""

    async def of_text(self, model: str, text: str, *, add_special_tokens: bool) -> memoryview:
        """Return the ids of a text, a buffer of uint32; raises NoTokensError."""

    async def of_chat(self, model: str, body: PromptBody) -> memoryview:
        """Return the ids of a chat, a buffer of uint32; raises NoTokensError."""


async def _ids_of_completion(tokens: IdSource, model: str, asked: PromptBody) -> memoryview:
    if is_given(asked.prompt_embeds):
        raise NoTokensError("not_text")
    return await _ids_of_field(tokens, model, asked, asked.prompt)


async def _ids_of_embedding(tokens: IdSource, model: str, asked: PromptBody) -> memoryview:
    if is_given(asked.messages):
        raise NoTokensError("not_a_prompt")
    return await _ids_of_field(tokens, model, asked, asked.input)


async def _ids_of_field(tokens: IdSource, model: str, asked: PromptBody, raw: Raw) -> memoryview:
    _refuse_truncation(asked)
    prompt = one_prompt(raw)
    if isinstance(prompt, memoryview):
        return prompt
    special = asked.add_special_tokens is not False
    return await tokens.of_text(model, prompt, add_special_tokens=special)


async def _ids_of_chat(tokens: IdSource, model: str, asked: PromptBody) -> memoryview:
    _refuse_truncation(asked)
    if is_given(asked.chat_template):
        raise NoTokensError("own_template")
    return await tokens.of_chat(model, asked)


def _lacks_usage(path: str, asked: PromptBody) -> bool:
    """Whether the answer is a stream that would tell its usage if it were asked to."""
    return bool(asked.stream) and path in _TOLD_IF_ASKED and not is_given(asked.stream_options)


def _refuse_truncation(asked: PromptBody) -> None:
    if asked.truncate_prompt_tokens is not None:
        raise NoTokensError("truncated")


_IdsOf: TypeAlias = Callable[[IdSource, str, PromptBody], Awaitable[memoryview]]

_ROUTES: Final[Mapping[str, _IdsOf]] = {
    "/v1/completions": _ids_of_completion,
    "/v1/chat/completions": _ids_of_chat,
    "/v1/embeddings": _ids_of_embedding,
}
"""The routes of the OpenAI API whose prompts are read. `/v1/responses` is not: engines make its
prompt from answers that only they have."""
