"""A pod as it is written, or was found at an address, from its fields to a `PodConfig`.

Invariant: every index accepts what is returned here, and every refusal names the field and a
remedy. Nothing here knows whether a pod is registered.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kvbraid.errors import InvalidValueError, TopologyError, shortened
from kvbraid.fleet.registration import check_registration
from kvbraid.ids import PodId
from kvbraid.service.config import (
    ASK,
    DiscoverEntry,
    Discovery,
    KubernetesEntry,
    PodConfig,
    PodFields,
    Serving,
)
from kvbraid.service.errors import RefusalError
from kvbraid.spec_mapping import pod_from_mapping

_POD_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_HOST: Final = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*"
_TCP: Final = re.compile(rf"tcp://(\*|{_HOST}):([0-9]{{1,5}})")
_URL: Final = re.compile(rf"https?://({_HOST})(?::([0-9]{{1,5}}))?(?:/[A-Za-z0-9._~/-]*)?")
_LONGEST_URL: Final = 512
HTTP_SCHEMES: Final = ("tcp",)
FILE_SCHEMES: Final = ("tcp", "ipc", "inproc")
ModelConfig: TypeAlias = Mapping[str, object] | None
"""The contents of a model's config.json, if there is one."""


def pod_id(text: str) -> PodId:
    """Check an operator's name of a pod.

    Raises:
        RefusalError: `invalid_value`.
    """
    if not _POD_ID.fullmatch(text):
        remedy = "use 1 to 128 letters, digits and . _ : / -, a letter or digit first"
        raise RefusalError("invalid_value", f"pod id {shortened(text)}", remedy=remedy)
    return PodId(text)


def pod_config(
    body: PodFields, model_config: ModelConfig, *, schemes: tuple[str, ...]
) -> PodConfig:
    """Check what the struct's types cannot: endpoints, topology and the model's config.json.

    Every index accepts the result.

    Raises:
        RefusalError: `invalid_endpoint`; `invalid_value` for a URL.
        TopologyError: A field of the topology, or a group that the model cannot have.
        InvalidValueError: A config.json that cannot be read, or is of no known model.
    """
    config = _pod_config(body, model_config, schemes)
    try:
        check_registration(config.model, config.topology, config.engine)
    except InvalidValueError as error:
        raise TopologyError(f"topology: {error}") from None
    return config


def _pod_config(body: PodFields, model_config: ModelConfig, schemes: tuple[str, ...]) -> PodConfig:
    if body.endpoint == ASK:
        _check_asked(body)
    elif body.endpoint is not None:
        _check_endpoint("endpoint", body.endpoint, body.dp_size, schemes)
    elif body.replay_endpoint is not None or body.bind is not None:
        name = "bind" if body.replay_endpoint is None else "replay_endpoint"
        message = f"{name} without endpoint: this pod has no events to listen for"
        raise RefusalError("invalid_value", message, remedy=f"give an endpoint, or no {name}")
    if body.replay_endpoint is not None:
        _check_endpoint("replay_endpoint", body.replay_endpoint, body.dp_size, schemes)
        if body.replay_endpoint.startswith("tcp://*"):
            message = f"replay_endpoint = {shortened(body.replay_endpoint)} names no host"
            remedy = "give the host that the engine's replay socket listens on"
            raise RefusalError("invalid_endpoint", message, remedy=remedy)
    topology, engine = pod_from_mapping(body.topology, model_config)
    if body.endpoint is None and not (topology and topology.groups):
        raise TopologyError(
            "topology: a pod without endpoint needs groups, since no event has them"
        )
    engine = replace(engine, num_gpu_blocks=body.num_gpu_blocks)
    return PodConfig(
        model=body.model,
        endpoint=body.endpoint,
        replay_endpoint=body.replay_endpoint,
        bind=body.bind,
        topology=topology,
        engine=engine,
        block_bytes=body.block_bytes,
        dp_size=body.dp_size,
        loras=body.loras,
        serving=Serving(url=check_url(body.url), drain=body.drain, max_running=body.max_running),
    )


def _check_asked(body: PodFields) -> None:
    if body.url is None:
        message, remedy = f"endpoint = {ASK} without url", "give the url under which it is asked"
        raise RefusalError("invalid_value", message, remedy=remedy)
    for name in ("replay_endpoint", "bind"):
        if getattr(body, name) is not None:
            message = f"{name} with endpoint = {ASK}: the engine says where it publishes"
            raise RefusalError("invalid_value", message, remedy=f"give an endpoint, or no {name}")


def check_url(url: str | None) -> str | None:
    """Check the address that data planes are given; a password in it would be told to everyone."""
    if url is None:
        return None
    remedy = "give http://HOST:PORT or https://HOST:PORT, with a path if the engine has one"
    if "@" in url:
        message = "url names a user, and everyone may read it"
        raise RefusalError("invalid_value", message, remedy=remedy)
    match = _URL.fullmatch(url) if len(url) <= _LONGEST_URL else None
    if match is None or not 1 <= int(match[2] or 80) <= 65535:
        raise RefusalError("invalid_value", f"url = {shortened(url)}", remedy=remedy)
    return url


def _check_endpoint(name: str, endpoint: str, dp_size: int, schemes: tuple[str, ...]) -> None:
    scheme, separator, rest = endpoint.partition("://")
    if not separator or not rest or scheme not in schemes:
        raise RefusalError("invalid_endpoint", f"{name} = {shortened(endpoint)}")
    if scheme != "tcp":
        return
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise RefusalError("invalid_endpoint", f"{name} = {shortened(endpoint)}")
    last = int(match[2]) + dp_size - 1
    if not 1 <= int(match[2]) <= last <= 65535:
        message = f"{name} = {shortened(endpoint)} with dp_size = {dp_size} ends at port {last}"
        raise RefusalError(
            "invalid_endpoint", message, remedy="every rank needs a port of 1 to 65535"
        )


class PodPlace(NamedTuple):
    """Where a pod was found.

    `ports` are the numbers of ports that have names. `target_port` takes requests, if it was found
    as well. A pod with several of those has as many places, which `number` counts; each has a
    server with ranks, and so ports of events, of its own.
    """

    address: str
    ports: tuple[tuple[str, int], ...] = ()
    target_port: int | None = None
    number: int = 0


def pod_at(
    discovery: Discovery[DiscoverEntry] | Discovery[KubernetesEntry],
    place: PodPlace,
    *,
    drains: bool = False,
) -> PodConfig:
    """Return the pod at a place.

    Raises as `pod_config`, and RefusalError, `invalid_value`: a port has no number.
    """
    entry, named = discovery.entry, dict(place.ports)
    host = f"[{place.address}]" if ":" in place.address else place.address

    def socket(port: str | int | None, shift: int = 0) -> str | None:
        return None if port is None else f"{host}:{_numbered(port, named) + shift}"

    shift = place.number * entry.dp_size
    events, replays = socket(entry.events_port, shift), socket(entry.replay_port, shift)
    fields = msgspec.structs.replace(
        entry,
        url=f"http://{socket(place.target_port or entry.port)}",
        endpoint=entry.endpoint or (events and f"tcp://{events}"),
        replay_endpoint=replays and f"tcp://{replays}",
        drain=entry.drain or drains,
    )
    return pod_config(fields, discovery.model_config, schemes=HTTP_SCHEMES)


def _numbered(port: int | str, named: Mapping[str, int]) -> int:
    if isinstance(port, int):
        return port
    if port not in named:
        message = f"no port has the name {shortened(port)}"
        raise RefusalError(
            "invalid_value", message, remedy="name it where it is found, or give its number"
        )
    return named[port]
