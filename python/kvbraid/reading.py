"""What is wrong with a value or a document, in one line: its name, the value, what was expected.

A caller's values are checked against kinds and rules, by name, before something deep inside fails
on them. A document from outside is read into the structs of its own module, which define its
fields and their types. A refusal quotes hostile text shortened, and nothing else happens to that
text. Nothing here reads a file.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from operator import index
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, inspect

from kvbraid.errors import InvalidValueError, KvbraidError, one_line, shortened

_UNKNOWN: Final = "Object contains unknown field `"
_AT: Final = " - at `$"
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")
LONGEST_KEY: Final = 64
"""A longer one is shown shortened, and resembles no field."""


class Rule(NamedTuple):
    """What a value may be, where its type does not say all: the check, and what it expects."""

    fits: Callable[[Any], bool]
    expected: str

    def or_none(self) -> "Rule":
        """Return a rule that also takes None."""
        fits = self.fits
        return Rule(lambda value: value is None or fits(value), f"{self.expected}, or None")


ValueKind: TypeAlias = type | UnionType | Rule
"""What a value may be: an instance of a type, or what a rule takes."""


def whole(least: int = 0, most: int | None = None) -> Rule:
    """Return the rule of integers in a range. Whatever stands for one passes (numpy's scalars)."""

    def fits(value: Any) -> bool:  # noqa: ANN401 - checked here
        try:
            number = index(value)
        except TypeError:
            return False
        return least <= number and (most is None or number <= most)

    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    return Rule(fits, f"an integer {limits}")


def size(least: int = 1) -> Rule:
    """Return the rule of sizes and counts that a memory can have, and that JSON gives back.

    `True` is no number, and neither is 16.0: what is computed from a float is no size in bytes.
    """
    return Rule(
        lambda value: type(value) is int and least <= value <= MAX_SIZE,
        f"a whole number, at least {least}, below 2**63",
    )


def one_of(values: Collection[object]) -> Rule:
    """Return the rule of a value that is listed."""
    return Rule(tuple(values).__contains__, f"one of {', '.join(map(str, values))}")


MAX_SIZE: Final = (1 << 63) - 1
"""The largest size, count or distance of a memory."""
COUNT: Final = whole(0, (1 << 32) - 1)
POSITIVE: Final = whole(1)
POSITIVE_COUNT: Final = whole(1, (1 << 32) - 1)
SIZE: Final = size()
OFFSET: Final = size(0)


def check(
    name: str, value: object, kind: ValueKind, error: type[KvbraidError] = InvalidValueError
) -> None:
    """Raise `error` for a value that is not what it may be; the message shows it by its name."""
    if not (kind.fits(value) if isinstance(kind, Rule) else _is_a(value, kind)):
        raise error(f"{name} is {shortened(value)}; expected {_in_words(kind, value)}")


def check_fields(
    record: object,
    kinds: Mapping[str, ValueKind],
    error: type[KvbraidError] = InvalidValueError,
    prefix: str | None = None,
) -> None:
    """Raise `error` for the first field of a record that is not what it may be.

    The name of a field follows that of the record's type, or `prefix`.
    """
    for name, kind in kinds.items():
        value = getattr(record, name, None)
        if not (kind.fits(value) if isinstance(kind, Rule) else _is_a(value, kind)):
            owner = f"{type(record).__name__}." if prefix is None else prefix
            check(f"{owner}{name}", value, kind, error)


def check_each(name: str, values: Iterable[object], rule: Rule) -> None:
    """Raise InvalidValueError for the first of the values that breaks a rule, or for no list."""
    if isinstance(values, Iterable):
        for value in values:
            check(name, value, rule)
    else:
        raise InvalidValueError(f"{name}s are {shortened(values)}; expected a list")


def _is_a(value: object, kind: type | UnionType) -> bool:
    """Whether it is of a kind; whatever stands for an integer passes as one (numpy's scalars)."""
    return isinstance(value, kind) or (kind in (int, int | None) and hasattr(value, "__index__"))


def _in_words(kind: ValueKind, value: object) -> str:
    """What is expected; of an enum the member that was likely meant."""
    if isinstance(kind, Rule):
        return kind.expected
    if isinstance(kind, UnionType):
        return " or ".join(_in_words(each, value) for each in kind.__args__)
    if issubclass(kind, Enum):
        member = next((each for each in kind if each.value == value), next(iter(kind)))
        return f"a {kind.__name__}, as {kind.__name__}.{member.name}"
    return "None" if kind is type(None) else kind.__name__


Count = Annotated[int, Meta(ge=0, lt=1 << 32)]
Positive = Annotated[int, Meta(ge=1, lt=1 << 32)]


class Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object with no field but its own."""


_Fields = TypeVar("_Fields", bound=Fields)


class Fault(NamedTuple):
    """What msgspec refuses, and where; `known` are the fields beside a `key` that is not known."""

    path: str
    problem: str
    key: str | None = None
    known: Sequence[str] = ()

    def near(self) -> str:
        """Return the known field that was likely meant, or nothing."""
        key = self.key or ""
        near = difflib.get_close_matches(key, self.known, n=1) if len(key) <= LONGEST_KEY else []
        return "".join(near)


def fault_of(
    error: msgspec.ValidationError, root: type[msgspec.Struct], *, under: str = ""
) -> Fault:
    """Return what is wrong with a document, or with its part `under` a field, read into `root`."""
    text = str(error)
    problem, at, place = text.rpartition(_AT) if text.endswith("`") else ("", "", "")
    problem, path = (problem, (under + place[:-1]).lstrip(".")) if at else (text, under)
    if not text.startswith(_UNKNOWN):
        return Fault(path, problem)
    known = fields_of(root, path)
    if not known:  # The key itself ends like a place.
        problem, path, known = text, under, fields_of(root, under)
    return Fault(path, problem, problem.removeprefix(_UNKNOWN).removesuffix("`"), known)


def read_into(
    kind: type[_Fields],
    document: object,
    error: type[KvbraidError],
    *,
    prefix: str = "",
    name: str = "the whole",
    remedy: str,
) -> _Fields:
    """Read a parsed document.

    Raises:
        error: A value does not fit; the message is `prefix`, and what `described` says.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as wrong:
        said = described(wrong, kind, document, name=name, remedy=remedy)
    except UnicodeEncodeError as wrong:
        said = one_line(f"{wrong}; {remedy}")
    raise error(f"{prefix}{said}")


def described(
    error: msgspec.ValidationError,
    root: type[msgspec.Struct],
    document: object,
    *,
    name: str,
    remedy: str,
) -> str:
    """Say which value is wrong, and what would be right; `name` is that of the whole document."""
    fault = fault_of(error, root)
    steps = [field or index for field, index in _STEP.findall(fault.path)]
    choices = _choices_at(root, fault.path)
    problem = f"expected one of {', '.join(choices)}" if choices else fault.problem
    place, problem = fault.path, f"{problem[:1].lower()}{problem[1:]}; {remedy}"
    if fault.key is not None:
        steps.append(fault.key)
        place = f"{place}.{fault.key}".lstrip(".")
        meant = f"did you mean {fault.near()}? " if fault.near() else ""
        problem = f"no such field; {meant}known: {', '.join(fault.known)}"
    return one_line(f"{place or name}{_value_at(steps, document)}: {problem}")


def _value_at(steps: Sequence[str], value: Any) -> str:  # noqa: ANN401 - a parsed document
    """The value at a place as it is shown; nothing if the place does not say which one it is."""
    if "..." in steps:
        return ""
    for step in steps:
        value = value[int(step) if isinstance(value, list) else step]
    return f" = {shortened(value)}"


def fields_of(root: type[msgspec.Struct], path: str = "") -> list[str]:
    """Names of the fields that the struct at a path such as `pods[0]` reads; none elsewhere.

    A field of any type is accepted, but not read.
    """
    kinds = (each for each in _kinds_at(root, path) if isinstance(each, inspect.StructType))
    known = (field for kind in kinds for field in kind.fields)
    return [field.encode_name for field in known if not isinstance(field.type, inspect.AnyType)]


def _choices_at(root: type[msgspec.Struct], path: str) -> list[str]:
    """What may stand at a path where only some values may; nothing elsewhere."""
    kinds = _kinds_at(root, path)
    members = [
        each.value for kind in kinds if isinstance(kind, inspect.EnumType) for each in kind.cls
    ]
    listed = [
        each for kind in kinds if isinstance(kind, inspect.LiteralType) for each in kind.values
    ]
    return list(map(str, members + listed))


def _kinds_at(root: type[msgspec.Struct], path: str) -> Sequence[inspect.Type]:
    current: Sequence[inspect.Type] = [inspect.type_info(root)]
    for step in _STEP.finditer(path):
        current = [inner for kind in current for inner in _below(kind, step[1])]
    return current


def _below(kind: inspect.Type, name: str | None) -> Sequence[inspect.Type]:
    """The types one step below: of the field with this name, or of an item without a name."""
    if isinstance(kind, inspect.StructType):
        inner = [known.type for known in kind.fields if known.encode_name == name]
    elif isinstance(kind, _LISTS) and name is None:
        inner = [kind.item_type]
    else:
        inner = []
    return [one for each in inner for one in _members(each)]


_LISTS: Final = (inspect.ListType, inspect.VarTupleType)


def _members(kind: inspect.Type) -> Sequence[inspect.Type]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)
