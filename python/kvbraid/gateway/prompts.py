"""What a request asks for, as far as the choice of a pod depends on it.

Reading a prompt never refuses a request: where its tokens cannot be known, it is sent on by load
alone, and the reason is counted. The engine is who answers what is wrong with a body.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import msgspec

from kvbraid.errors import shortened
from kvbraid.service.errors import RefusalError
from kvbraid.service.http.calls import TokenIds

PROMPTS: Final = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"}
)
"""The paths whose bodies are prompts. Requests to others are sent on by load alone."""

WhyNoTokens: TypeAlias = Literal[
    "", "malformed", "not_a_prompt", "several_prompts", "not_text", "own_template", "truncated",
    "cut_body", "no_tokenizer", "no_template", "no_engine", "too_many_tokens", "too_slow", "busy",
    "failed",
]  # fmt: skip
"""Why the tokens of a prompt are unknown; empty if they are known.

`malformed`: not JSON, or of a shape that the API does not have. `not_a_prompt`: a path or a method
without one, or one that is not read. `several_prompts`: the body has more than one. `not_text`:
images, sound, or something else that only the engine turns into tokens. `own_template`: the body
brings a chat template, and nobody should run a client's program. `truncated`: the engine is told
to cut the prompt. `cut_body`: only the body's beginning is there. `no_tokenizer`, `no_template`:
none for this model. `no_engine`: the one that is asked gave no answer that can be used.
`too_many_tokens`: longer than a limit. `too_slow`, `busy`: not within the
time and the threads that prompts have. `failed`: the tokenizer or template did, as templates do
for messages that they refuse.
"""

REASONS: Final[tuple[WhyNoTokens, ...]] = get_args(WhyNoTokens)[1:]
"""Every reason, for who counts them."""


class NoTokensError(Exception):
    """The tokens of a prompt cannot be known; no caller of a reader sees it."""

    def __init__(self, why: WhyNoTokens) -> None:
        super().__init__(why)
        self.why: WhyNoTokens = why


class Prompt(NamedTuple):
    """One request, as a choice sees it; None fields are absent.

    `model` is the name that pods are registered with, and empty if the request names none.
    `token_ids` is a buffer of uint32 or uint64. `priority` is vLLM's: the smaller is the more
    urgent. `traceparent` names the trace that it is of. A stream `lacks_usage` that could say it
    and was not asked to.
    """

    model: str = ""
    token_ids: "array[int] | memoryview | None" = None
    lora: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    stream: bool = False
    lacks_usage: bool = False
    session: str | None = None
    priority: int = 0
    traceparent: str = ""
    why_no_tokens: WhyNoTokens = ""


class PromptReader(Protocol):
    """Reads what a request asks for."""

    async def read(self, path: str, headers: Mapping[str, str], body: bytes) -> Prompt:
        """Return what the body of a POST to `path` asks for; never raises for what is in it.

        `headers` have names in lower case.
        """

    async def close(self) -> None:
        """Give up what reading needs."""


class _Named(msgspec.Struct):
    """The one field of any body that names a model."""

    model: str = ""


_NAMED: Final = msgspec.json.Decoder(_Named)


def model_of(body: bytes) -> str:
    """Return the model that a body names; empty if it names none."""
    try:
        return _NAMED.decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


class _Telling(msgspec.Struct):
    """The fields that tell one kind of request from another."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_FIELDS: Final = msgspec.json.Decoder(_Telling)
_ABSENT: Final = frozenset({b"", b"null"})
_PATHS: Final = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": ""}
"""The path of a body with one of these fields; embeddings and responses share the last."""


def path_of(body: bytes) -> str:
    """Return the path that a body is for; empty if it may be for several, or for none."""
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    given = [
        path for field, path in _PATHS.items() if bytes(getattr(fields, field)) not in _ABSENT
    ]
    return given[0] if len(given) == 1 else ""


def token_ids_of(reader: PromptReader) -> TokenIds:
    """Return what makes the token ids of a prompt for who wants to see them."""

    async def token_ids(body: bytes) -> Sequence[int]:
        prompt = await reader.read(path_of(body), {}, body)
        if prompt.token_ids is None:
            told = f"this prompt of {shortened(prompt.model)} has none: {prompt.why_no_tokens}"
            raise RefusalError("no_token_ids", told)
        return prompt.token_ids.tolist()

    return token_ids
