"""Retention policies by name, and what each means for a model's cache.

To add a policy, add a row: a name, and a function from the model to the cache's retention (a
policy that weighs blocks takes its numbers from the model).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from kvbraid.cache.retention import ByValue, Dense, Interval, Retention
from kvbraid.errors import UnknownError
from kvbraid.models import PrefillCost
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.spec import SpecKind

CachePolicy: TypeAlias = Callable[[SimulatedModel], Retention]


def _interval(tokens: int) -> CachePolicy:
    """An interval, rounded up to the alignment. A model without window and state groups keeps
    every block anyway and takes no interval."""

    def retention(model: SimulatedModel) -> Retention:
        kinds = [group.kind for group in model.topology.groups]
        if not any(kind.is_window or kind is SpecKind.MAMBA for kind in kinds):
            return Dense()
        return Interval(-(-tokens // model.alignment) * model.alignment)

    return retention


def _by_value(tokens: int, cost: PrefillCost | None = None) -> CachePolicy:
    """By value, with the model's cost, and an interval that is rounded down to the alignment."""
    return lambda model: ByValue(interval=tokens, cost=cost or model.cost).aligned(model.alignment)


CACHE_POLICIES: Final[Mapping[str, CachePolicy]] = MappingProxyType(
    {
        "dense": lambda _model: Dense(),
        "interval-0": _interval(0),
        "interval-1k": _interval(1_024),
        "interval-8k": _interval(8_192),
        "value": _by_value(8_192),
        "value-flat": _by_value(8_192, PrefillCost()),
    }
)


def retention_of(policy: str, model: SimulatedModel) -> Retention:
    """Return the retention of a model's cache under a policy.

    Raises:
        UnknownError: There is no such policy; the message lists all policies.
    """
    if policy not in CACHE_POLICIES:
        msg = f"policy {policy!r} is not known; expected one of {', '.join(CACHE_POLICIES)}"
        raise UnknownError(msg)
    return CACHE_POLICIES[policy](model)
