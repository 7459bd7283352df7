"""Finds what is wrong with a field that the native core could not take.

This runs only after the core has refused a request, so a correct request is never checked twice.
A table says what each field may be; nothing here converts a value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from kvbraid.errors import InvalidValueError, shown
from kvbraid.fleet.request import Request
from kvbraid.kinds import check_kind

_Check: TypeAlias = tuple[str, Callable[[object], bool], str]
"""The name of a field, the check of its value, and what the check expects, in words."""

_MOST: Final = 2**32 - 1


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_uint32(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= _MOST


def _or_none(is_one: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_one(value)


def _is_texts(value: object) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(_is_text(item) for item in value)


_TEXT: Final = "text that UTF-8 can write (no lone surrogates)"
_TEXTS: Final = "a list of such texts, or None"
_UINT32: Final = f"an integer from 0 to {_MOST}"

_REQUEST: Final[Sequence[_Check]] = (
    ("model", _is_text, _TEXT),
    ("lora", _or_none(_is_text), f"{_TEXT}, or None"),
    ("cache_salt", _or_none(_is_text), f"{_TEXT}, or None"),
    ("extra_key", _or_none(_is_text), f"{_TEXT}, or None"),
    ("pods", _or_none(_is_texts), _TEXTS.replace("such texts", "pod ids")),
    ("tiers", _or_none(_is_texts), _TEXTS.replace("such texts", "tier names")),
    ("strategy", _is_text, "the name of a strategy"),
)

_MEDIA: Final[Sequence[_Check]] = (
    ("identifier", _is_text, _TEXT),
    ("offset", _is_uint32, _UINT32),
    ("length", _is_uint32, _UINT32),
)


def _wrong(owner: object, checks: Sequence[_Check], prefix: str = "") -> Iterator[str]:
    for name, may_be, expected in checks:
        value = getattr(owner, name, None)
        if not may_be(value):
            yield f"{prefix}{name} is {shown(value)}; expected {expected}"


def refuse_request(request: Request, prefix: str = "") -> None:
    """Raise for the first field whose value no request can have.

    Raises:
        InvalidValueError: There is such a field; the message names it, after `prefix`. Or it is
            no request at all.
    """
    check_kind(prefix.removesuffix(": ") or "request", request, Request)
    media: object = request.extra_keys
    if not (media is None or isinstance(media, Sequence)):
        msg = f"{prefix}extra_keys is {shown(media)}; expected a list of MediaItem, or None"
        raise InvalidValueError(msg)
    for message in _wrong(request, _REQUEST, prefix):
        raise InvalidValueError(message)
    for i, item in enumerate(media or ()):
        for message in _wrong(item, _MEDIA, f"{prefix}extra_keys[{i}]."):
            raise InvalidValueError(message)


def listed(requests: Iterable[Request]) -> list[Request]:
    """Return requests as a list.

    Raises:
        InvalidValueError: It is one request, or nothing that has items.
    """
    given: object = requests
    if not isinstance(given, Iterable):
        msg = f"requests is {shown(given)}; expected a list of Request"
        raise InvalidValueError(msg)
    return list(requests)


def refuse_payloads(payloads: object) -> None:
    """Raise for the first payload that is no bytes.

    Raises:
        InvalidValueError: There is such a payload, or it is no list of them.
    """
    if isinstance(payloads, (str, bytes, bytearray)) or not isinstance(payloads, Sequence):
        msg = f"payloads is {shown(payloads)}; expected a list of bytes, the payload frames"
        raise InvalidValueError(msg)
    for place, payload in enumerate(payloads):
        check_kind(f"payloads[{place}]", payload, bytes | bytearray)


def refuse_registration(model: object, dp_size: object, loras: Mapping[str, str] | None) -> None:
    """Raise for the first argument whose value no registration can have.

    Raises:
        InvalidValueError: There is such an argument; the message names it.
    """
    if not _is_text(model):
        msg = f"model is {shown(model)}; expected {_TEXT}"
        raise InvalidValueError(msg)
    if not _is_uint32(dp_size):
        msg = f"dp_size is {shown(dp_size)}; expected {_UINT32.replace('0', '1', 1)}"
        raise InvalidValueError(msg)
    for name, path in (loras or {}).items():
        for text in (name, path):
            if not _is_text(text):
                msg = f"loras has {shown(text)}; expected names and paths, each {_TEXT}"
                raise InvalidValueError(msg)
