"""What an engine says it has reused, read from the end of an answer that is passed on.

Only the last bytes are kept, however long an answer is. In JSON, a quotation mark inside a text is
escaped, so no text that a model writes can look like a field.
"""

import re
from typing import Final, NamedTuple

KEPT_BYTES: Final = 4096
"""Of each answer's end. A usage is a few hundred bytes, and little comes after it."""

_CACHED: Final = re.compile(
    rb'"(?:prompt|input)_tokens_details"\s*:\s*\{[^{}]*?"cached_tokens"\s*:\s*([0-9]{1,18})\b'
)
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*([0-9]{1,18})\b')


class Usage(NamedTuple):
    """What an engine counted; None if it did not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


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


def _last(field: re.Pattern[bytes], end: bytes) -> int | None:
    found = field.findall(end[-KEPT_BYTES:])
    return int(found[-1]) if found else None
