"""A pod of Kubernetes, from its object to endpoints: one, or one for each of its target ports.

Invariant: any bytes are a pod, or one error. As in EndpointSlices, a pod without an address, and
one that is over, has no endpoint, and one that is asked to go is not ready.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

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

_OVER: Final = frozenset({"Succeeded", "Failed"})


class _ContainerPort(ApiObject, frozen=True):
    name: str | None = None
    container_port: int | None = None


class _Container(ApiObject, frozen=True):
    ports: list[_ContainerPort] | None = None


class _PodSpec(ApiObject, frozen=True):
    containers: list[_Container] | None = None


class _Condition(ApiObject, frozen=True):
    type: str
    status: str


class _PodStatus(ApiObject, frozen=True):
    phase: str = ""
    # Not the camel case of `pod_ip`.
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[_Condition] | None = None


class _Pod(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: _PodSpec
    status: _PodStatus


def read_pod(raw: bytes | msgspec.Raw, ports: WantedPorts) -> EndpointSet:
    """Return the endpoints of a pod, from its object.

    Raises:
        BadObjectError: It has another form, or an address that is none.
    """
    return read_object(raw, _Pod, lambda pod: _endpoints(pod, ports))


def _endpoints(pod: _Pod, ports: WantedPorts) -> Iterator[FoundEndpoint]:
    if not pod.status.pod_ip or pod.status.phase in _OVER:
        return
    name, address = pod_name(pod.metadata.name), ip_address(pod.status.pod_ip)
    listed = [port for each in pod.spec.containers or () for port in each.ports or ()]
    named = ports.named((port.name, port.container_port) for port in listed)
    is_ready = any(each == _Condition("Ready", "True") for each in pod.status.conditions or ())
    for number, target in enumerate(ports.targets or (None,)):
        yield FoundEndpoint(
            # No pod's own name has a colon.
            name=f"{name}:{target}" if len(ports.targets) > 1 else name,
            version=address.version,
            place=PodPlace(str(address), named, target, number),
            is_ready=is_ready and pod.metadata.deletion_timestamp is None,
        )
