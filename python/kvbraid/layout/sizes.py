"""Sizes and counts that callers give: whole numbers that a memory can have, or refused by name.

Invariant: what passes here can be written as JSON and read back. `True` is no number, and neither
is 16.0: what is computed from a float is a float, and no size in bytes.
"""

from typing import Final, TypeGuard

from kvbraid.errors import InvalidValueError, shown

MAX_NUMBER: Final = (1 << 63) - 1
"""The largest size, count or distance that a plan may have."""


def is_size(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether a value is a whole number from `least` to `MAX_NUMBER`."""
    return type(value) is int and least <= value <= MAX_NUMBER


def check_size(what: str, value: object, least: int = 1) -> None:
    """Refuse what is no size, and say what it was given for.

    Raises:
        InvalidValueError: No whole number, or one that is too small or too large.
    """
    if not is_size(value, least):
        msg = f"{what} = {shown(value)}; expected a whole number, at least {least}, below 2**63"
        raise InvalidValueError(msg)
