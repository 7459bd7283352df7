"""The whole error tree of kvbraid.

KvbraidError
├── InvalidValueError   a value outside what the operation accepts (also a ValueError)
│   ├── TopologyError   groups or flags that no engine can have
│   ├── LayoutError     layers that cannot be laid out in memory, or memory that no plan explains
│   ├── SnapshotError   bytes that are no snapshot of the pod that they are given for
│   └── NotHeldError    a hit that the cache no longer holds: match again
├── UnknownError        a pod, model, group or request that is not known (also a LookupError)
├── NoRankError         no rank of the model may be sent a request
│   └── FullError       each of them has as many in flight as it may have
├── TooLargeError       larger than a configured limit
├── CaptureError        a capture directory that cannot be read
├── TraceError          a trace file that cannot be read
├── UnsupportedError    a feature or version of an engine that an integration does not have
└── ServiceError        a running server refused a request or could not be reached

Every message shows the offending value, says what was expected and, where there is one, names
the remedy. Broken invariants are asserts, not members of this tree. `shortened` and `one_line`
keep a message short and on one line whatever the value is.
"""

from typing import Final

_SHOWN_CHARACTERS: Final = 80
_LINE_CHARACTERS: Final = 1000


class KvbraidError(Exception):
    """Anything that kvbraid refuses."""


class InvalidValueError(KvbraidError, ValueError):
    """A value outside what the operation accepts."""


class TopologyError(InvalidValueError):
    """Groups or flags that no engine can have."""


class LayoutError(InvalidValueError):
    """Layers that cannot be laid out in memory, or memory that no plan explains."""


class NotHeldError(InvalidValueError):
    """A hit, or what a rewind reads, that the cache no longer holds: match again."""


class SnapshotError(InvalidValueError):
    """Bytes that are no snapshot of the pod that they are given for.

    Attributes:
        reason: `foreign`, `newer`, `older`, `cut`, `other_secret`, `other_pod`, `damaged` or
            `impossible`.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class UnknownError(KvbraidError, LookupError):
    """A pod, model, group or request that is not known."""


class NoRankError(KvbraidError):
    """No rank of the model may be sent a request."""


class FullError(NoRankError):
    """Each rank that may be sent a request has as many in flight as it may have."""


class TooLargeError(KvbraidError):
    """Larger than a configured limit."""


class CaptureError(KvbraidError):
    """A capture directory that cannot be read."""


class TraceError(KvbraidError):
    """A trace file that cannot be read."""


class UnsupportedError(KvbraidError):
    """A feature or version of an engine that an integration does not have."""


class ServiceError(KvbraidError):
    """A running server refused a request or could not be reached."""


def shortened(value: object) -> str:
    """Return any value as messages show it: short, and on one line."""
    try:
        text = repr(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    except (RecursionError, ValueError):  # Nested too deeply, or a number of too many digits.
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def one_line(text: str) -> str:
    """Return the text as one line that is safe on any terminal: shortened, and all printable."""
    if len(text) > _LINE_CHARACTERS:
        half = _LINE_CHARACTERS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return printable(text)


def counted(count: int, what: str) -> str:
    """Return "1 group", or "2 groups"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Return the text with every character escaped that would move, hide or reverse other text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
