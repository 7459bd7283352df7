"""The least reader of prompts: it reads token ids that are listed, and no text."""

from array import array
from collections.abc import Mapping
from typing import Final

import msgspec
from kvbraid.gateway.prompts import Prompt, model_of


class _Completion(msgspec.Struct):
    """The fields of a completion whose prompt is a list of token ids."""

    model: str
    prompt: list[int]
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    cache_salt: str | None = None
    priority: int | None = None


_COMPLETION: Final = msgspec.json.Decoder(_Completion)


class ListedTokens:
    """Reads prompts that are lists of token ids; of all others it finds the model alone."""

    async def read(self, path: str, headers: Mapping[str, str], body: bytes) -> Prompt:
        """Return what the body asks for."""
        del path, headers
        try:
            fields = _COMPLETION.decode(body)
            tokens = array("I", fields.prompt)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
            model = model_of(body)
            return Prompt(model=model, why_no_tokens="no_tokenizer" if model else "malformed")
        return Prompt(
            model=fields.model,
            token_ids=tokens,
            cache_salt=fields.cache_salt,
            stream=fields.stream or False,
            lacks_usage=bool(fields.stream) and fields.stream_options is None,
            priority=fields.priority or 0,
        )

    async def close(self) -> None:
        """There is nothing to close."""
