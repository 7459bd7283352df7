"""What an engine says it has reused, read from the end of an answer that is passed on.

Only the last bytes are kept, however long an answer is. In JSON, a quotation mark inside a text is
escaped, so no text that a model writes can look like a field. A stream tells its usage if it is
asked to, in an event of its own, which is taken out for a client that did not ask.
"""

import re
from typing import Final, NamedTuple

KEPT_BYTES: Final = 4096
"""Of each answer's end. A usage is a few hundred bytes, and little comes after it."""

_CACHED: Final = re.compile(
    rb'"(?:prompt|input)_tokens_details"\s*:\s*\{[^{}]*?"cached_tokens"\s*:\s*([0-9]{1,18})\b'
)
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*([0-9]{1,18})\b')

_ASKED: Final = b'"stream_options":{"include_usage":true},'
_END_OF_EVENT: Final = re.compile(rb"\r?\n\r?\n")
_USAGE_ALONE: Final = re.compile(
    rb'^data:(?=[^\r\n]*"choices"\s*:\s*\[\])(?=[^\r\n]*"usage"\s*:\s*\{)'
    rb"[^\r\n]*\r?\n\r?\n",
    re.MULTILINE,
)


class Usage(NamedTuple):
    """What an engine counted; None if it did not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class Delivered(NamedTuple):
    """What a usage says of the prompt that was scored.

    `said` is how it is counted, `cached_tokens` what the engine reused of that prompt, if that is
    known, and `prompt_tokens` how long its prompt was, if it was another one.
    """

    said: str
    cached_tokens: int | None = None
    prompt_tokens: int | None = None


def delivered(usage: Usage, num_tokens: int) -> Delivered:
    """Compare a usage with a prompt of so many tokens; 0: they were not known."""
    prompt, cached = usage
    if not num_tokens or cached is None:
        return Delivered("not_reported" if num_tokens else "unknown_prompt")
    if prompt not in (None, num_tokens) or cached > num_tokens:
        return Delivered("other_prompt", None, prompt)
    return Delivered("counted", cached)


class Tail:
    """The end of one answer."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = b""

    def keep(self, chunk: bytes) -> None:
        """Note what comes next."""
        self._end = chunk if len(chunk) >= KEPT_BYTES else (self._end + chunk)[-KEPT_BYTES:]

    def ends_event(self) -> bool:
        """Whether an event of a stream has just ended."""
        return self._end.endswith((b"\n\n", b"\r\n\r\n"))

    def usage(self) -> Usage:
        """Return the last usage that is complete."""
        return Usage(_last(_PROMPT, self._end), _last(_CACHED, self._end))


def with_usage(body: bytes) -> bytes:
    """Return a body with fields, none of which is `stream_options`, that asks for the usage."""
    begin = body.index(b"{") + 1
    return body[:begin] + _ASKED + body[begin:]


class WithoutUsage:
    """A stream of events as a client sees it that did not ask for the usage.

    Events go on when they are whole. What has no end within KEPT_BYTES goes on as it comes.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def take(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return what goes on once this has come; it may be nothing."""
        come = self._rest + chunk
        end = max((found.end() for found in _END_OF_EVENT.finditer(come)), default=0)
        if is_last or len(come) - end > KEPT_BYTES:
            end = len(come)
        self._rest = come[end:]
        return _USAGE_ALONE.sub(b"", come[:end])


def _last(field: re.Pattern[bytes], end: bytes) -> int | None:
    found = field.findall(end[-KEPT_BYTES:])
    return int(found[-1]) if found else None
