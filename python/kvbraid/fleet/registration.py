"""A pod on its way to the core, and whether the core takes it.

A registration that the core refuses changes nothing, here or in any index.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kvbraid._native import FleetCore
from kvbraid.engine import EngineProfile
from kvbraid.fleet.fields import TEXT
from kvbraid.reading import POSITIVE_COUNT, ValueKind, check_each, check_fields
from kvbraid.spec import Topology

NOT_TAKEN: Final = (TypeError, AttributeError, OverflowError, UnicodeError)
"""The errors that the conversion of a value raises if no field can have that value."""

_FIELDS: Final[dict[str, ValueKind]] = {
    "model": TEXT,
    "dp_size": POSITIVE_COUNT,
    "topology": Topology,
    "engine": EngineProfile,
}


class PodRegistration(NamedTuple):
    """A pod as it is passed to the core."""

    model: str
    dp_size: int
    topology: Topology
    engine: EngineProfile
    loras: dict[str, str]


def check_registration(model: str, topology: Topology | None, engine: EngineProfile) -> None:
    """Refuse a pod whose groups or engine no index takes.

    Raises:
        InvalidValueError: No engine can have the topology.
    """
    known = topology or Topology(groups=())
    pass_to_core(PodRegistration(model, 1, known, engine, {}), FleetCore.check)


def pass_to_core(registration: PodRegistration, take: Callable[[PodRegistration], object]) -> None:
    """Pass a registration on; a value that the core cannot read is refused by its name."""
    try:
        take(registration)
    except NOT_TAKEN:
        check_fields(registration, _FIELDS, prefix="")
        for pair in registration.loras.items():
            check_each("loras: name or path", pair, TEXT)
        raise
