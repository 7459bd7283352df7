"""What objects of an API server have in common, and what is found in one of them: endpoints.

Invariant: an object that cannot be read is one error, which says its name if that much can be
read. Fields that nobody needs are passed over.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from kvbraid.errors import one_line, shortened
from kvbraid.service.config import POD_NAME
from kvbraid.service.pod_checks import PodPlace

_POD_NAME: Final = re.compile(POD_NAME)

WhyNot: TypeAlias = Literal["failed", "slow", "refused", "expired", "too_long", "unreadable"]
"""Why there was no list, or no watch."""


class NoAnswerError(Exception):
    """The API server gave no answer that can be used; `why` is what is counted."""

    def __init__(self, why: WhyNot, text: str) -> None:
        super().__init__(text)
        self.why = why


class BadObjectError(Exception):
    """One object that cannot be read; `name` is its own, or empty."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class WantedPorts(NamedTuple):
    """Which ports of an object count: those with these names, and the target ports of a pool."""

    names: frozenset[str] = frozenset()
    targets: tuple[int, ...] = ()

    def named(self, ports: Iterable[tuple[str | None, int | None]]) -> tuple[tuple[str, int], ...]:
        """Return those of an object that have one of the names; of several, the last."""
        found = {name: port for name, port in ports if name in self.names}
        return tuple((name, port) for name, port in found.items() if name and port)


class FoundEndpoint(NamedTuple):
    """One address; `name` is the pod's, or the address. The first of several counts."""

    name: str
    version: int  # Of the IP.
    place: PodPlace
    is_ready: bool


class EndpointSet(NamedTuple):
    """The endpoints of one object, a slice or a pod, by the object's name."""

    name: str
    endpoints: tuple[FoundEndpoint, ...]


class ApiObject(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of an object."""


class ObjectMeta(ApiObject, frozen=True):
    """Its name and version, and when it was asked to go."""

    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class Headed(ApiObject, frozen=True):
    """Any object."""

    metadata: ObjectMeta


_Read = TypeVar("_Read", bound=ApiObject)


def decode(body: bytes | msgspec.Raw, kind: type[_Read]) -> _Read:
    """Return what is read of an object.

    Raises:
        NoAnswerError: `unreadable`.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoAnswerError("unreadable", shortened(str(error))) from None


def read_object(
    raw: bytes | msgspec.Raw,
    kind: type[_Read],
    endpoints: Callable[[_Read], Iterable[FoundEndpoint]],
) -> EndpointSet:
    """Return the endpoints of an object; their function raises ValueError for what cannot be.

    Raises:
        BadObjectError: It has another form.
    """
    name = ""
    try:
        name = decode(raw, Headed).metadata.name
        return EndpointSet(name, tuple(endpoints(decode(raw, kind))))
    except (NoAnswerError, ValueError) as error:
        raise BadObjectError(name, one_line(str(error))) from None


def pod_name(name: str) -> str:
    """Return the name of a pod; raises ValueError if no pod can have it."""
    if not _POD_NAME.fullmatch(name):
        raise ValueError(f"no pod can have the name {shortened(name)}")
    return name
