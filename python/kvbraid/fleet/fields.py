"""Finds what is wrong with a field that the native core could not take.

This runs only after the core has refused a request, so a correct request is never checked twice.
Tables say what each field may be; nothing here converts a value.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvbraid.fleet.request import Request
from kvbraid.reading import COUNT, Rule, check, check_fields


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _texts(of: str) -> Rule:
    def fits(value: Any) -> bool:  # noqa: ANN401 - checked here
        return _is_list(value) and all(map(_is_text, value))

    return Rule(fits, f"a list of {of}").or_none()


TEXT: Final[Rule] = Rule(_is_text, "text that UTF-8 can write (no lone surrogates)")

_REQUEST: Final = {
    "model": TEXT,
    "lora": TEXT.or_none(),
    "cache_salt": TEXT.or_none(),
    "extra_key": TEXT.or_none(),
    "pods": _texts("pod ids"),
    "tiers": _texts("tier names"),
    "strategy": TEXT._replace(expected="the name of a strategy"),
    "extra_keys": Rule(_is_list, "a list of MediaItem").or_none(),
}
_MEDIA: Final = {"identifier": TEXT, "offset": COUNT, "length": COUNT}
_PAYLOADS: Final = Rule(_is_list, "a list of bytes, the payload frames")


def refuse_request(request: Request, prefix: str = "") -> None:
    """Raise for the first field whose value no request can have.

    Raises:
        InvalidValueError: There is such a field; the message names it, after `prefix`. Or it is
            no request at all.
    """
    check(prefix.removesuffix(": ") or "request", request, Request)
    check_fields(request, _REQUEST, prefix=prefix)
    for i, item in enumerate(request.extra_keys or ()):
        check_fields(item, _MEDIA, prefix=f"{prefix}extra_keys[{i}].")


def listed(requests: Iterable[Request]) -> list[Request]:
    """Return requests as a list.

    Raises:
        InvalidValueError: It is one request, or nothing that has items.
    """
    check(
        "requests", requests, Rule(lambda given: isinstance(given, Iterable), "a list of Request")
    )
    return list(requests)


def refuse_payloads(payloads: Sequence[bytes]) -> None:
    """Raise for the first payload that is no bytes.

    Raises:
        InvalidValueError: There is such a payload, or it is no list of them.
    """
    check("payloads", payloads, _PAYLOADS)
    for place, payload in enumerate(payloads):
        check(f"payloads[{place}]", payload, bytes | bytearray)
