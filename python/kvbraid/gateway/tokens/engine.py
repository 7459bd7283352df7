"""Token ids from an engine that is asked, for a model whose files are not here.

A text goes to `/tokenize`, which vLLM and SGLang answer with `tokens`. A chat goes to vLLM's
`/v1/chat/completions/render`, as the client has sent it; the answer has `token_ids`, and
`features` if there are media. A server of `vllm launch render` answers both, and `vllm serve` the
second one with `--enable-scale-out` (0.32), or with `VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1` where it
knows that. Read in vLLM's docs/serving/online_serving/README.md and `entrypoints/scale_out`.

Invariant: a question has a limited time and answer, and only so many are on their way. Whatever
goes wrong is a reason why a prompt has no tokens.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Raw
from yarl import URL

from kvbraid.gateway.client import new_session, read_body
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import PromptBody, is_given
from kvbraid.service.requests import listed_ids

PATIENCE_S: Final = 2.0
"""As long as a prompt may take that is encoded here."""

MOST_ASKED: Final = 64
"""Questions on their way; further prompts go by load alone."""

MOST_BYTES: Final = 8 << 20
"""Of an answer: a million ids."""

_REFUSED: Final = frozenset({400, 422})


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: Raw


class _Rendered(msgspec.Struct, frozen=True):
    token_ids: Raw
    features: Raw = Raw(b"null")


_T = TypeVar("_T")
_TOKENIZED: Final = msgspec.json.Decoder(_Tokenized)
_RENDERED: Final = msgspec.json.Decoder(_Rendered)


class AskedEngine:
    """One URL of an engine or a render server. It belongs to the loop of its first question."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._num_asked = 0

    def about(self, body: bytes, headers: Mapping[str, str]) -> "AboutOne":
        """Return a source of the ids of one request, which has this body."""
        return AboutOne(self, body, headers)

    async def ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a question; its key is that of the client.

        Raises:
            NoTokensError: `busy`, `too_slow`, `too_many_tokens`; `failed` if the engine refuses
                the prompt, and `no_engine` without an answer that can be used.
        """
        if self._num_asked >= MOST_ASKED:
            raise NoTokensError("busy")
        if self._session is None:
            self._session = new_session(PATIENCE_S)
        sent = {"content-type": "application/json"}
        if "authorization" in headers:
            sent["authorization"] = headers["authorization"]
        self._num_asked += 1
        try:
            return await _post(self._session, URL(self._url + path, encoded=True), body, sent)
        except TimeoutError:
            raise NoTokensError("too_slow") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise NoTokensError("no_engine") from None
        finally:
            self._num_asked -= 1

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()


class AboutOne:
    """Where the ids of one request come from; see `Tokenizers` for the methods."""

    def __init__(self, engine: AskedEngine, body: bytes, headers: Mapping[str, str]) -> None:
        self._engine = engine
        self._body = body
        self._headers = headers

    async def of_text(self, model: str, text: str, *, add_special_tokens: bool) -> memoryview:
        """Return the ids of a text. Raises as `AskedEngine.ask`."""
        fields = {"model": model, "prompt": text, "add_special_tokens": add_special_tokens}
        answer = await self._ask("/tokenize", msgspec.json.encode(fields))
        return _ids(_read(_TOKENIZED, answer).tokens)

    async def of_chat(self, model: str, body: PromptBody) -> memoryview:
        """Return the ids of a chat. Raises as `AskedEngine.ask`, and `not_text` for media."""
        del model, body
        answer = _read(_RENDERED, await self._ask("/v1/chat/completions/render", self._body))
        if is_given(answer.features):
            raise NoTokensError("not_text")
        return _ids(answer.token_ids)

    async def _ask(self, path: str, body: bytes) -> bytes:
        return await self._engine.ask(path, body, self._headers)


async def _post(
    session: aiohttp.ClientSession, url: URL, body: bytes, headers: Mapping[str, str]
) -> bytes:
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            raise NoTokensError("failed" if response.status in _REFUSED else "no_engine")
        answer = await read_body(response, MOST_BYTES)
        if answer is None:
            raise NoTokensError("too_many_tokens")
        return answer


def _read(decoder: "msgspec.json.Decoder[_T]", answer: bytes) -> _T:
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoTokensError("no_engine") from None


def _ids(raw: Raw) -> memoryview:
    ids = listed_ids(bytes(raw))
    if ids is None:
        raise NoTokensError("no_engine")
    return ids
