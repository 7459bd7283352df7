"""What a replica says of itself, to the pod that it is, and to the load that it has.

A replica is a process of somebody else: whatever it says is read or refused by name, never
believed in part, and a replica that says nothing of use is a pod without events.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from kvbraid.errors import InvalidValueError, KvbraidError, shortened
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.options import DeploymentOptions
from kvbraid.service.config import ASK, PodBody, PodConfig, pod_config
from kvbraid.service.decoding import describe
from kvbraid.service.errors import as_refusal
from kvbraid.service.feeds.endpoints import subscriber_binds

METADATA: Final = "kvbraid"
"""The key of what a deployment returns from `record_replica_metadata`: fields of a pod. Under the
same key, `record_routing_stats` has the load."""

RAY_LLM: Final = "kv_event_metadata"
"""The key of what Ray Serve LLM's replicas return from `record_routing_stats`."""

_UNKNOWN_GROUPS: Final = {"groups": [{"kind": "full_attention", "block_size": 16}]}
"""What a replica is taken to keep of prompts if nobody says it."""

_OF_EVENTS: Final = ("endpoint", "replay_endpoint", "bind")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class ReplicaFacts(NamedTuple):
    """What Ray knows of a running replica: its metadata, and its last routing statistics."""

    pod: PodId
    metadata: Mapping[str, Any]
    stats: Mapping[str, Any]


class RayLlmEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What Ray Serve LLM tells of a replica's events; the other fields are its own business."""

    endpoint: str
    replay_endpoint: str | None = None


class ReplicaLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine has in its steps and before them, and the share of its pool in use."""

    running: int
    waiting: int = 0
    usage: float = 0.0


ReplicaKnowledge: TypeAlias = Literal["events", "missing", "malformed"]
"""Whether a replica says where it publishes, says nothing, or says what cannot be."""


class ReplicaPod(NamedTuple):
    """A replica as a pod; without events there is a `problem`."""

    config: PodConfig
    knowledge: ReplicaKnowledge
    problem: str = ""


def read_pod(facts: ReplicaFacts, options: DeploymentOptions) -> ReplicaPod:
    """Return the pod that a replica is."""
    try:
        said = _said(facts)
        if said is not None:
            return ReplicaPod(_followed_pod(said, options), "events")
    except KvbraidError as error:
        return ReplicaPod(without_events(options), "malformed", as_refusal(error).told())
    told = f"it has neither metadata {METADATA!r} nor routing stats {RAY_LLM!r}"
    return ReplicaPod(without_events(options), "missing", told)


def read_load(facts: ReplicaFacts) -> ReplicaLoad | None:
    """Return the load that a replica has reported, if any.

    Raises:
        InvalidValueError: It reports what cannot be.
    """
    said = facts.stats.get(METADATA)
    if said is None:
        return None
    load = _converted(said, ReplicaLoad)
    if load.running < 0 or load.waiting < 0 or not 0 <= load.usage <= 1:
        raise InvalidValueError(
            f"load {shortened(said)}: expected counts of at least 0, and a usage of 0 to 1"
        )
    return load


def without_events(options: DeploymentOptions) -> PodConfig:
    """Return the pod of which only is known what it is sent.

    Raises as `pod_config`.
    """
    told = {name: each for name, each in options.pod.items() if name not in _OF_EVENTS}
    body = _converted({**told, "model": options.model}, PodBody)
    if not (body.topology or {}).get("groups") and body.model_config is None:
        topology = {**(body.topology or {}), **_UNKNOWN_GROUPS}
        body = msgspec.structs.replace(body, topology=topology)
    return pod_config(body, body.model_config, schemes=("tcp",))


def _said(facts: ReplicaFacts) -> Mapping[str, Any] | None:
    said = facts.metadata.get(METADATA)
    if said is None:
        found = facts.stats.get(RAY_LLM)
        return None if found is None else msgspec.structs.asdict(_converted(found, RayLlmEvents))
    if not isinstance(said, Mapping):
        raise InvalidValueError(f"metadata {METADATA!r} is {shortened(said)}; expected a mapping")
    return said


def _followed_pod(said: Mapping[str, Any], options: DeploymentOptions) -> PodConfig:
    body = _converted({"model": options.model, **options.pod, **said}, PodBody)
    if body.model != options.model:
        raise InvalidValueError(
            f"model is {shortened(body.model)}, and the router's is {shortened(options.model)}; "
            "give both the same, or neither"
        )
    endpoint = body.endpoint
    if endpoint in {None, ASK} or body.bind or (endpoint and subscriber_binds(endpoint)):
        raise InvalidValueError(
            f"endpoint is {shortened(endpoint)}; expected tcp://HOST:PORT with the address of the "
            "replica's node, to which every router connects"
        )
    return pod_config(body, body.model_config, schemes=("tcp",))


def _converted(said: object, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise InvalidValueError(describe(error, kind)) from None
