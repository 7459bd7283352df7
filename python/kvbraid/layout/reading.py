"""Readers of what a parsed JSON document says: each takes a value, and the place that it is from.

Law: nothing is taken for what it is not: `true` is no number, a number is no name except that of a
layer, and an object has exactly the fields of its table. A reader never follows a value that it
does not expect, so depth and size of a document cost no more than reading it once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from kvbraid.errors import LayoutError, shown
from kvbraid.layout.sizes import MAX_NUMBER, is_size

Reader: TypeAlias = Callable[[object, str], Any]


def refused(value: object, where: str, expected: str) -> LayoutError:
    """Return the refusal of a value."""
    return LayoutError(
        f"not a memory plan: {where} is {shown(value)}; expected {expected}; write it anew"
    )


def number(least: int) -> Reader:
    """Read a whole number that is at least this."""

    def read(value: object, where: str) -> int:
        if not is_size(value, least):
            raise refused(value, where, f"a whole number from {least} to {MAX_NUMBER}")
        return value

    return read


def string(value: object, where: str) -> str:
    """Read a text."""
    if type(value) is not str:
        raise refused(value, where, "a text")
    return value


def flag(value: object, where: str) -> bool:
    """Read true or false."""
    if type(value) is not bool:
        raise refused(value, where, "true or false")
    return value


def layer_name(value: object, where: str) -> str:
    """Read a layer's name, or its number."""
    return str(number(0)(value, where)) if type(value) is int else string(value, where)


def one_of(known: Collection[str]) -> Reader:
    """Read one of these texts."""

    def read(value: object, where: str) -> str:
        if string(value, where) not in known:
            raise refused(value, where, f"one of {', '.join(known)}")
        return str(value)

    return read


def or_none(read: Reader) -> Reader:
    """Read what another reader reads, or null."""
    return lambda value, where: None if value is None else read(value, where)


def all_of(read: Reader) -> Reader:
    """Read a list, and each element with this reader."""

    def each(value: object, where: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise refused(value, where, "a list")
        return tuple(read(one, f"{where}[{index}]") for index, one in enumerate(value))

    return each


def mapping(read: Reader) -> Reader:
    """Read an object with any names, and each value with this reader."""

    def each(value: object, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise refused(value, where, "an object")
        return {
            string(key, where): read(one, f"{where}.{shown(key)}") for key, one in value.items()
        }

    return each


def fields(readers: Mapping[str, Reader]) -> Reader:
    """Read an object with exactly these fields."""

    def read(value: object, where: str) -> dict[str, Any]:
        if type(value) is not dict or value.keys() != readers.keys():
            raise refused(value, where, f"an object with {', '.join(readers)}")
        return dict(_each(readers, value, where))

    return read


def row(readers: Mapping[str, Reader]) -> Reader:
    """Read a list whose elements are the values of these fields, in their order."""

    def read(value: object, where: str) -> dict[str, Any]:
        if type(value) is not list or len(value) != len(readers):
            raise refused(value, where, f"a list of {', '.join(readers)}")
        return dict(_each(readers, dict(zip(readers, value, strict=True)), where))

    return read


def _each(
    readers: Mapping[str, Reader], values: Mapping[str, object], where: str
) -> Iterator[tuple[str, Any]]:
    for key, read in readers.items():
        yield key, read(values[key], f"{where}.{key}")
