"""An InferencePool of the Gateway API, from its object: which pods it selects, and at which ports.

Invariant: any bytes are a pool that selects by a label at least, or one error. Nothing is asked of
the pool's picker, or written to its status: that is the gateway's.
"""

import re
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from kvbraid.errors import shortened
from kvbraid.service.kubernetes.objects import ApiObject, NoAnswerError, decode

_KEY: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


class InferencePool(NamedTuple):
    """What a pool selects: a label selector as the API server takes it, and its target ports."""

    selector: str
    target_ports: tuple[int, ...]


class _PoolSelector(ApiObject, frozen=True):
    match_labels: Annotated[dict[str, str], Meta(min_length=1, max_length=64)]


class _TargetPort(ApiObject, frozen=True):
    number: Annotated[int, Meta(ge=1, le=65535)]


class _PoolSpec(ApiObject, frozen=True):
    selector: _PoolSelector
    target_ports: Annotated[list[_TargetPort], Meta(min_length=1, max_length=8)]


class _Pool(ApiObject, frozen=True):
    spec: _PoolSpec


def read_pool(raw: bytes) -> InferencePool:
    """Return what a pool selects.

    Raises:
        NoAnswerError: `unreadable`: it has another form, or labels that no pod can have.
    """
    spec = decode(raw, _Pool).spec
    labels = spec.selector.match_labels
    for key, value in labels.items():
        if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)):
            told = f"no pod can have the label {shortened(key)}={shortened(value)}"
            raise NoAnswerError("unreadable", told)
    ports = dict.fromkeys(port.number for port in spec.target_ports)
    return InferencePool(",".join(f"{key}={value}" for key, value in labels.items()), tuple(ports))
