"""What an operator writes, `fleet.toml` or the body of PUT /v1/pods/{id}, as frozen values.

The same structs decode both, and every refusal names the key and a remedy. Nothing here reads a
file, or knows whether a pod is registered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from kvbraid.engine import EngineProfile
from kvbraid.ids import PodId
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.indexing import IndexTable
from kvbraid.service.keys import MOST_KEYS, KeyEntry
from kvbraid.service.logs import Format, Level
from kvbraid.service.prompting import TokensTable
from kvbraid.service.replicas import SharedTable
from kvbraid.service.routing import RouterTable, Routing
from kvbraid.service.tls import Tls, TlsTable
from kvbraid.spec import Topology

ASK: Final = "ask"
"""An `endpoint` that the pod's engine is asked for (`event_sources`)."""

LABEL: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""What a namespace, a service and a port of Kubernetes are called (RFC 1123)."""

POD_NAME: Final = r"^[a-z0-9][a-z0-9.-]{0,252}$"
"""What a pod and an InferencePool are called."""

_Positive = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes and times above which the service refuses: bytes, tokens, pod ranks, seconds.

    `bodies_bytes` bounds the bodies of all requests together, `head_bytes` the first line and the
    headers of one request. A request must arrive, and its answer be read, within `request_s`; a
    connection without a request is closed after `idle_s`.
    """

    body_bytes: _Positive = 16 << 20
    bodies_bytes: _Positive = 256 << 20
    head_bytes: _Positive = 64 << 10
    tokens: _Positive = 1 << 20
    pods: _Positive = 1024
    connections: _Positive = 1024
    request_s: _Positive = 30
    idle_s: _Positive = 60


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to listen, who may register pods, and how long pods are waited for.

    A pod that is silent for `silence_s` is asked for news. `ready_after_s` after its start the
    server is ready even if pods are missing. `log_level` and `log_format` say what it writes to
    stderr. With `otel`, each decision is a span of OpenTelemetry.
    `allow_hosts` are further names by which changes may call a server that listens on loopback
    and has no token, besides localhost and loopback addresses.
    `open_rights` is what needs no key. If it is left out, that is reading and explaining as long
    as there are no `[[keys]]`, and nothing once there are.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8090
    token: Annotated[str, Meta(min_length=1)] | None = None
    open_rights: tuple[Literal["read", "explain"], ...] | None = None
    allow_registration: bool = False
    allow_hosts: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    silence_s: Annotated[float, Meta(gt=0)] = 5.0
    ready_after_s: Annotated[float, Meta(ge=0)] = 60.0
    log_level: Level = "info"
    log_format: Format = "text"
    otel: bool = False


class PodFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a pod that fleet.toml and PUT /v1/pods/{id} share.

    Without an `endpoint` no events come in, and only picks tell what the pod may hold. If it is
    `ask`, the pod is asked for it under its `url`.
    `num_gpu_blocks` is the number of blocks in a rank's cache on the GPU, as its engine says, and
    `block_bytes` what each of them takes of a GPU.
    `url`, `drain` and `max_running` are about requests that `/v1/pick` sends: the pod's address,
    whether it gets no new ones, and how many a rank has at most while others have room.
    """

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    endpoint: str | None = None
    replay_endpoint: str | None = None
    bind: bool | None = None
    topology: dict[str, Any] | None = None
    num_gpu_blocks: Annotated[int, Meta(ge=1, lt=1 << 32)] | None = None
    block_bytes: Annotated[int, Meta(ge=1, lt=1 << 32)] | None = None
    dp_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    loras: dict[str, str] = {}
    url: str | None = None
    drain: bool = False
    max_running: Annotated[int, Meta(ge=1, lt=1 << 32)] | None = None


class PodBody(PodFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of PUT /v1/pods/{id}.

    `endpoint` is where the engine publishes; rank r of `dp_size` uses the ports plus r. `bind`
    says whether kvbraid binds it; by default it does when the host is `*`. `model_config` is the
    object in the model's config.json, never a path.
    """

    model_config: dict[str, Any] | None = None


class PodEntry(PodFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[pods]]` table of fleet.toml.

    `model_config` is the name of a known model, or a path relative to that file.
    """

    id: str
    model_config: str | None = None


class DiscoverEntry(PodFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[discover]]` table of fleet.toml: each address of a name is a pod.

    A pod's id is the name, `/` and the address. Requests go to `port`, and events come from
    `events_port` and `replay_port`. The name is looked up every `every_s` seconds, and an address
    is no pod any more after `misses` answers without it. `model_config` as in `[[pods]]`.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,79}$")]
    port: Annotated[int, Meta(ge=1, le=65535)]
    events_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    replay_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    every_s: Annotated[float, Meta(ge=1)] = 10.0
    misses: Annotated[int, Meta(ge=1)] = 3
    model_config: str | None = None


_Label = Annotated[str, Meta(pattern=LABEL)]
_Selector = Annotated[str, Meta(min_length=1, max_length=512)]
_Port = Annotated[int, Meta(ge=1, le=65535)]


class KubernetesEntry(PodFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[kubernetes]]` table of fleet.toml: each endpoint that it finds is a pod.

    One of four keys says where: the EndpointSlices of a `service`, those with the labels of a
    `selector`, the `pods` with the labels of a selector, or an InferencePool, `pool`, which brings
    its own ports instead of `port`. A port is a number, or the name that a slice or a container
    has for it. `folder` holds the `token` that the API server at `api` takes, its `ca.crt`, and
    the `namespace` unless one is given. If less than half of the endpoints are left at once, the
    others stay for `hold_s`. `model_config` as in `[[pods]]`.
    """

    service: _Label | None = None
    selector: _Selector | None = None
    pods: _Selector | None = None
    pool: Annotated[str, Meta(pattern=POD_NAME)] | None = None
    namespace: _Label | None = None
    port: _Port | _Label | None = None
    events_port: _Port | _Label | None = None
    replay_port: _Port | _Label | None = None
    hold_s: Annotated[float, Meta(ge=0)] = 60.0
    api: str = "https://kubernetes.default.svc"
    folder: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    model_config: str | None = None


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole fleet.toml."""

    server: ServerOptions = ServerOptions()
    tls: TlsTable | None = None
    limits: Limits = Limits()
    index: IndexTable = IndexTable()
    router: RouterTable = RouterTable()
    gateway: ForwardingOptions = ForwardingOptions()
    envoy: EnvoyOptions = EnvoyOptions()
    console: ConsoleOptions = ConsoleOptions()
    shared: SharedTable = SharedTable()
    tokens: dict[str, TokensTable] = {}
    keys: Annotated[list[KeyEntry], Meta(max_length=MOST_KEYS)] = []
    pods: list[PodEntry] = []
    discover: Annotated[list[DiscoverEntry], Meta(max_length=64)] = []
    kubernetes: Annotated[list[KubernetesEntry], Meta(max_length=64)] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a pod takes requests; nothing that was indexed depends on it."""

    url: str | None = None
    drain: bool = False
    max_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Where a pod publishes its events: what a feed has to know."""

    model: str
    endpoint: str
    replay_endpoint: str | None = None
    bind: bool | None = None
    dp_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodConfig:
    """One pod as registered, with its topology completed; an equal one changes nothing."""

    model: str
    endpoint: str | None
    replay_endpoint: str | None = None
    bind: bool | None = None
    topology: Topology | None = None
    engine: EngineProfile = EngineProfile()  # noqa: RUF009 - frozen
    block_bytes: int | None = None
    dp_size: int = 1
    loras: Mapping[str, str] = field(default_factory=dict)
    serving: Serving = Serving()

    @property
    def asks(self) -> bool:
        """Whether the pod is asked where it publishes."""
        return self.endpoint == ASK

    @property
    def followed(self) -> Followed | None:
        """What a feed follows; None for a pod without events, and for one that is asked."""
        if self.endpoint is None or self.asks:
            return None
        return Followed(
            model=self.model,
            endpoint=self.endpoint,
            replay_endpoint=self.replay_endpoint,
            bind=self.bind,
            dp_size=self.dp_size,
        )


_Entry = TypeVar("_Entry", DiscoverEntry, KubernetesEntry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery(Generic[_Entry]):
    """A name, or a table of Kubernetes, whose addresses are pods, and what each of them is."""

    entry: _Entry
    model_config: Mapping[str, object] | None = None


Stamp: TypeAlias = tuple[int, ...] | None
"""What changes when a file is written or replaced; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """Everything that `kvbraid serve`, `kvbraid route` and `kvbraid pick-serve` need.

    `path` is the file that it was read from, and `file` what stood in it. `stamps` is the status
    of each file that it was made from, before that was read. `flags` are those of the command
    line, which take precedence over the file, by the names of what they replace.
    """

    path: Path | None = None
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    file: FleetFile = FleetFile()  # noqa: RUF009 - frozen
    flags: Mapping[str, object] = field(default_factory=dict)
    server: ServerOptions = field(default_factory=ServerOptions)
    tls: Tls | None = None
    limits: Limits = field(default_factory=Limits)
    index: IndexTable = field(default_factory=IndexTable)
    routing: Routing = field(default_factory=Routing)
    forwarding: ForwardingOptions = field(default_factory=ForwardingOptions)
    envoy: EnvoyOptions = field(default_factory=EnvoyOptions)
    console: ConsoleOptions = field(default_factory=ConsoleOptions)
    shared: SharedTable = field(default_factory=SharedTable)
    tokens: Mapping[str, TokensTable] = field(default_factory=dict)
    keys: tuple[KeyEntry, ...] = ()
    pods: Mapping[PodId, PodConfig] = field(default_factory=dict)
    discovered: tuple[Discovery[DiscoverEntry], ...] = ()
    watched: tuple[Discovery[KubernetesEntry], ...] = ()
