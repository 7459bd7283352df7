"""People's own prompts as a trace: token ids, or text with a tokenizer of theirs.

Invariant: a trace's id is a chained hash of the tokens and of what else separates caches (salt,
adapter), in blocks of 16 tokens. So two prompts share exactly the ids of their common beginning.

One line is one request: a list of token ids, or an object with `token_ids`, or with `prompt` (a
text, or token ids again), and where there are any, `cache_salt`, `lora` and `conversation`. Other
fields are not read. A prompt that names no conversation and goes on where an earlier one ended
continues the conversation of that one.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvbraid.errors import InvalidValueError, TraceError, shortened
from kvbraid.hashing import EngineHash, ExtraKeys, HashAlgo, Lora, block_keys
from kvbraid.sim.traces.prefix_hashes import PART_TOKENS
from kvbraid.sim.traces.trace import Trace, TraceRequest
from kvbraid.tokenizer import Encode

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_HASH: Final = EngineHash(algo=HashAlgo.XXHASH, seed="0", block_size=PART_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePrompt:
    """One request: its tokens, and what separates its cache from others'."""

    tokens: Sequence[int]
    cache_salt: str | None = None
    lora: str | None = None
    conversation: str | None = None


def read(name: str, lines: Iterable[bytes], where: str, *, encode: Encode | None = None) -> Trace:
    """Read all lines of a file.

    Raises:
        TraceError: The message names the line and what is wrong with it.
    """

    def prompts() -> Iterator[TracePrompt]:
        for number, line in enumerate(lines, start=1):
            try:
                yield _prompt(json.loads(line), encode)
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{where}: line {number}: {error}") from error

    return trace_of(name, prompts(), f"{where}: line")


def trace_of(name: str, prompts: Iterable[TracePrompt], where: str) -> Trace:
    """Return the trace of prompts in the order in which an engine gets them.

    Raises:
        TraceError: A token id does not exist, or a prompt has none; the message begins with
            `where` and the prompt's number.
    """
    conversations = _Conversations()
    rows: list[TraceRequest] = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            rows.append(_row(prompt, conversations))
        except InvalidValueError as error:
            raise TraceError(f"{where} {number}: {error}") from error
    return Trace(
        name=name, block_tokens=PART_TOKENS, num_requests=len(rows), play=lambda: iter(rows)
    )


def _row(prompt: TracePrompt, conversations: "_Conversations") -> TraceRequest:
    if not prompt.tokens:
        raise InvalidValueError("no token; a prompt has one at least")
    lora = None if prompt.lora is None else Lora(prompt.lora, prompt.lora)
    extra = ExtraKeys(lora=lora, cache_salt=prompt.cache_salt)
    ids = array("Q", block_keys(prompt.tokens, _HASH, extra))
    return TraceRequest(conversations.of(prompt, ids), len(prompt.tokens), ids)


class _Conversations:
    """Numbers conversations: by their names, or by where prompts go on."""

    def __init__(self) -> None:
        self._count = 0
        self._named: dict[str, int] = {}
        self._ends: dict[int, int] = {}  # The last id of a prompt that none continues yet.

    def of(self, prompt: TracePrompt, ids: Sequence[int]) -> int:
        """Return the number of a prompt's conversation."""
        if prompt.conversation is not None:
            if prompt.conversation not in self._named:
                self._named[prompt.conversation] = self._next()
            return self._named[prompt.conversation]
        ended = next((each for each in reversed(ids) if each in self._ends), None)
        number = self._next() if ended is None else self._ends.pop(ended)
        if ids:
            self._ends[ids[-1]] = number
        return number

    def _next(self) -> int:
        self._count += 1
        return self._count


def _prompt(line: Any, encode: Encode | None) -> TracePrompt:  # noqa: ANN401 - a line of JSON
    if isinstance(line, list):
        return TracePrompt(tokens=_tokens(line))
    if not isinstance(line, dict):
        msg = f"a {type(line).__name__}; expected token ids, or an object that has them"
        raise InvalidValueError(msg)
    named = {name: _text(name, line.get(name)) for name in ("cache_salt", "lora", "conversation")}
    if line.get("token_ids") is not None:
        return TracePrompt(tokens=_tokens(line["token_ids"]), **named)
    prompt = line.get("prompt")
    if prompt is None and "messages" in line:
        raise InvalidValueError(
            "messages are no prompt; give the text that the model's chat template makes of them "
            "as `prompt`, or its tokens as `token_ids`"
        )
    if not isinstance(prompt, str):
        return TracePrompt(tokens=_tokens(prompt), **named)
    if encode is None:
        msg = "`prompt` is text; give --tokenizer with the model's tokenizer.json"
        raise InvalidValueError(msg)
    return TracePrompt(tokens=encode(prompt), **named)


def _tokens(value: object) -> Sequence[int]:
    if not isinstance(value, list):
        msg = f"{shortened(value)} instead of token ids; expected a list, or text as `prompt`"
        raise InvalidValueError(msg)
    return value


def _text(name: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and not _SURROGATE.search(value)):
        return value
    if name == "conversation" and isinstance(value, int):
        return str(value)
    raise InvalidValueError(f"`{name}` is {shortened(value)}; expected text that UTF-8 can write")
