"""Refuses values of a wrong type by name, before something deep inside fails on them."""

from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import TypeAlias

from kvbraid.errors import InvalidValueError, KvbraidError, shown

Kind: TypeAlias = type | UnionType
"""What a value may be an instance of."""


def check_fields(
    record: object, kinds: Mapping[str, Kind], error: type[KvbraidError] = InvalidValueError
) -> None:
    """Raise `error` for the first field of a record whose value is not of its kind."""
    for name, kind in kinds.items():
        check_kind(f"{type(record).__name__}.{name}", getattr(record, name), kind, error)


def check_kind(
    name: str, value: object, kind: Kind, error: type[KvbraidError] = InvalidValueError
) -> None:
    """Raise `error` for a value that is not of a kind; the message shows it by its name.

    Whatever stands for an integer passes as one (numpy's scalars).
    """
    if isinstance(value, kind) or (kind in (int, int | None) and hasattr(value, "__index__")):
        return
    raise error(f"{name} is {shown(value)}; expected {_in_words(kind, value)}")


def _in_words(kind: Kind, value: object) -> str:
    """What is expected; of an enum the member that was likely meant."""
    if isinstance(kind, UnionType):
        return " or ".join(_in_words(each, value) for each in kind.__args__)
    if issubclass(kind, Enum):
        member = next((each for each in kind if each.value == value), next(iter(kind)))
        return f"a {kind.__name__}, as {kind.__name__}.{member.name}"
    return "None" if kind is type(None) else kind.__name__
