"""An EndpointSlice of Kubernetes, from its object to endpoints.

Invariant: any bytes are a slice, or one error. A slice says of each endpoint whether it is ready;
what is not said is as if it were.
"""

from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from kvbraid.service.kubernetes.objects import (
    ApiObject,
    EndpointSet,
    FoundEndpoint,
    ObjectMeta,
    WantedPorts,
    pod_name,
    read_object,
)
from kvbraid.service.pod_checks import PodPlace


class _Reference(ApiObject, frozen=True):
    kind: str = ""
    name: str = ""


class _Conditions(ApiObject, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class _Endpoint(ApiObject, frozen=True):
    addresses: list[str]
    conditions: _Conditions = _Conditions()
    target_ref: _Reference | None = None


class _SlicePort(ApiObject, frozen=True):
    name: str | None = None
    port: int | None = None


class _Slice(ApiObject, frozen=True):
    metadata: ObjectMeta
    address_type: str
    endpoints: list[_Endpoint] | None = None
    ports: list[_SlicePort] | None = None


def read_slice(raw: bytes | msgspec.Raw, ports: WantedPorts) -> EndpointSet:
    """Return the endpoints of a slice, from its object.

    Raises:
        BadObjectError: It has another form, or an address that is none.
    """
    return read_object(raw, _Slice, lambda found: _endpoints(found, ports))


def _endpoints(found: _Slice, ports: WantedPorts) -> Iterator[FoundEndpoint]:
    named = ports.named((port.name, port.port) for port in found.ports or ())
    for each in found.endpoints or ():
        if not each.addresses:
            continue
        # Kubernetes says that the first address is the endpoint's, and further ones mean nothing.
        address = ip_address(each.addresses[0])
        target, conditions = each.target_ref, each.conditions
        name = target.name if target is not None and target.kind == "Pod" else ""
        yield FoundEndpoint(
            name=pod_name(name) if name else str(address),
            version=address.version,
            place=PodPlace(str(address), named),
            is_ready=conditions.ready is not False and conditions.terminating is not True,
        )
