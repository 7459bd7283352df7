"""A fleet.toml from its bytes to a `FleetConfig`, or everything that is wrong in it.

Invariant: a file is taken if and only if nothing is wrong in it, and what is wrong in one table
hides nothing in another. Who starts with a file, who follows it and who only checks it read it
here. The paths in it begin at its folder.
"""

import contextlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kvbraid.errors import InvalidValueError, KvbraidError, one_line, shortened
from kvbraid.ids import PodId
from kvbraid.models import find_config
from kvbraid.service.config import (
    ASK,
    DiscoverEntry,
    Discovery,
    FleetConfig,
    FleetFile,
    KubernetesEntry,
    PodConfig,
    PodEntry,
    ServerOptions,
    Stamp,
)
from kvbraid.service.decoding import describe, every_fault
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.indexing import IndexTable
from kvbraid.service.keys import KeyEntry, check_keys
from kvbraid.service.pod_checks import (
    FILE_SCHEMES,
    ModelConfig,
    PodPlace,
    check_url,
    pod_at,
    pod_config,
    pod_id,
)
from kvbraid.service.prompting import TokensTable, beside
from kvbraid.service.replicas import SharedTable, check_shared
from kvbraid.service.routing import RouterTable, Routing, SecondsTable, read_routing
from kvbraid.service.tls import Tls, TlsTable, read_tls
from kvbraid.spec_mapping import PodMapping

_SOME_ADDRESS: Final = "192.0.2.1"
"""Of documentation. If a pod can be there, it can be at any other address."""

_API: Final = re.compile(
    r"(https://[A-Za-z0-9\[][A-Za-z0-9.:\]-]*|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?)"
)

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Found = TypeVar("_Found", DiscoverEntry, KubernetesEntry)


def read_fleet_file(path: Path) -> FleetConfig:
    """Read a fleet.toml.

    Raises:
        InvalidValueError: One line with the file, the first wrong key and a remedy.
    """
    config, faults = examine(path)
    if config is None:
        more = len(faults) - 1
        rest = f" ({more} more: kvbraid check-config lists them)" if more else ""
        raise InvalidValueError(f"{path}: {faults[0]}{rest}")
    return config


def examine(path: Path) -> tuple[FleetConfig | None, list[str]]:
    """Read a fleet.toml; without a configuration, return what is wrong, a line each.

    Raises:
        InvalidValueError: The file cannot be read.
    """
    stamps = {path: stamp_of(path)}  # Before it is read: what is written meanwhile is read again.
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        file = _File(path.parent, document, stamps)
    except OSError as error:
        msg = f"{path}: {error.strerror}; give the path of a fleet.toml"
        raise InvalidValueError(msg) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return None, [f"not TOML: {error}"]
    except RecursionError:
        return None, ["nested too deeply; no key of a fleet.toml holds more than lists of tables"]
    if file.faults:
        return None, file.faults
    return file.config(path), []


def stamp_of(path: Path) -> Stamp:
    """Return what changes when a file is written or replaced; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class _File:
    """A parsed file; every part is read, whatever is wrong in the others."""

    def __init__(self, folder: Path, document: dict[str, Any], stamps: dict[Path, Stamp]) -> None:
        self._folder = folder
        self._stamps = stamps
        self._document = document
        self.faults = list(every_fault(document, FleetFile))
        self._tls = self._read_tls()
        self._read_index()
        self._routing = self._read_routing()
        self._shared = self._read_shared()
        self._tokens = self._read_tokens()
        with self._noting():
            check_keys(entry for _, entry in self._entries("keys", KeyEntry))
        self._pods = self._read_pods()
        self._discovered = tuple(self._read_found("discover", DiscoverEntry))
        self._watched = tuple(self._read_found("kubernetes", KubernetesEntry))

    def config(self, path: Path) -> FleetConfig:
        """Return what a file says in which nothing is wrong."""
        parsed = msgspec.convert(self._document, FleetFile)
        return FleetConfig(
            path=path,
            stamps=self._stamps,
            file=parsed,
            server=parsed.server,
            tls=self._tls,
            limits=parsed.limits,
            index=parsed.index,
            routing=self._routing,
            forwarding=parsed.gateway,
            envoy=parsed.envoy,
            console=parsed.console,
            shared=self._shared,
            tokens=self._tokens,
            keys=tuple(parsed.keys),
            pods=self._pods,
            discovered=self._discovered,
            watched=self._watched,
        )

    @contextlib.contextmanager
    def _noting(self, where: str = "") -> Iterator[None]:
        """Note an error as a fault at a place."""
        try:
            yield
        except KvbraidError as error:
            told = error.told() if isinstance(error, RefusalError) else str(error)
            self.faults.append(f"{where}: {told}" if where else told)

    def _entries(self, name: str, kind: type[_Struct]) -> Iterator[tuple[int, _Struct]]:
        """Yield the tables of a list that are sound, with their places."""
        listed = self._document.get(name)
        for number, entry in enumerate(listed if isinstance(listed, list) else ()):
            with contextlib.suppress(msgspec.ValidationError):
                yield number, msgspec.convert(entry, kind)

    def _read_tls(self) -> Tls | None:
        if "tls" in self._document:
            with contextlib.suppress(msgspec.ValidationError), self._noting():
                table = msgspec.convert(self._document["tls"], TlsTable)
                paths = table.paths(self._folder).values()
                self._stamps |= {path: stamp_of(path) for path in paths}
                return read_tls(table, self._folder)
        return None

    def _read_index(self) -> None:
        with contextlib.suppress(msgspec.ValidationError), self._noting("index"):
            _check_index(msgspec.convert(self._document.get("index", {}), IndexTable))

    def _read_routing(self) -> Routing:
        with contextlib.suppress(msgspec.ValidationError), self._noting():
            return read_routing(msgspec.convert(self._document.get("router", {}), RouterTable))
        return Routing()

    def _read_shared(self) -> SharedTable:
        with contextlib.suppress(msgspec.ValidationError), self._noting():
            table = msgspec.convert(self._document.get("shared", {}), SharedTable)
            return check_shared(table, self._folder)
        return SharedTable()

    def _read_tokens(self) -> dict[str, TokensTable]:
        tables: dict[str, TokensTable] = {}
        given = self._document.get("tokens")
        for model, table in given.items() if isinstance(given, dict) else ():
            where = f"tokens.{one_line(model)}"
            with contextlib.suppress(msgspec.ValidationError), self._noting():
                tables[model] = _sound_tokens(where, msgspec.convert(table, TokensTable))
        return beside(tables, self._folder)

    def _read_pods(self) -> dict[PodId, PodConfig]:
        pods: dict[PodId, PodConfig] = {}
        for number, entry in self._entries("pods", PodEntry):
            where = f"pods[{number}]"
            with self._noting(f"{where} ({one_line(entry.id)})"):
                pod = pod_id(entry.id)
                if pod in pods:
                    msg = f"{where}.id = {pod!r} is a duplicate; give each pod an id of its own"
                    self.faults.append(msg)
                    continue
                config = _config_of(entry, self._folder)
                pods[pod] = pod_config(entry, config, schemes=FILE_SCHEMES)
        return pods

    def _read_found(self, table: str, kind: type[_Found]) -> Iterator[Discovery[_Found]]:
        for number, entry in self._entries(table, kind):
            with self._noting(f"{table}[{number}] ({_title(entry)})"):
                yield _sound_discovery(entry, self._folder)


def _sound_tokens(where: str, table: TokensTable) -> TokensTable:
    if (table.folder is None) == (table.engine is None):
        raise InvalidValueError(f"{where}: give a folder, or the URL of an engine")
    try:
        check_url(table.engine)
    except RefusalError as error:
        raise InvalidValueError(f"{where}.engine: {error.told()}") from None
    if table.engine is not None and table != TokensTable(engine=table.engine):
        told = "the engine that is asked has its own template and arguments"
        raise InvalidValueError(f"{where}: engine = {table.engine!r}; {told}: give no other key")
    return table


def _check_index(table: IndexTable) -> None:
    for key, needed in (
        ("secret_file", "snapshots"), ("neighbour", "snapshots"), ("neighbour_key", "neighbour")
    ):  # fmt: skip
        if getattr(table, key) is not None and getattr(table, needed) is None:
            raise InvalidValueError(f"{key} without {needed} has no effect; give {needed}, too")
    try:
        check_url(table.neighbour)
    except RefusalError as error:
        raise InvalidValueError(f"neighbour: {error.told()}") from None


def _title(entry: DiscoverEntry | KubernetesEntry) -> str:
    if isinstance(entry, DiscoverEntry):
        return entry.name
    return one_line(entry.service or entry.selector or entry.pods or entry.pool or "")


def _check_watched(entry: KubernetesEntry) -> None:
    if [entry.service, entry.selector, entry.pods, entry.pool].count(None) != 3:
        remedy = "a service, a selector of its EndpointSlices, pods by a selector, or a pool"
        raise InvalidValueError(f"give one of these: {remedy}")
    if entry.pool is not None and entry.port is not None:
        remedy = "give no port: the pool has target ports of its own"
        raise InvalidValueError(f"port = {entry.port!r}; {remedy}")
    if entry.pool is None and entry.port is None:
        raise InvalidValueError("give a port, to which requests go")
    if not _API.fullmatch(entry.api):
        remedy = "give https://HOST:PORT; http, where anybody reads the token, only of loopback"
        raise InvalidValueError(f"api = {shortened(entry.api)}; {remedy}")


def _sound_discovery(entry: _Found, folder: Path) -> Discovery[_Found]:
    if isinstance(entry, KubernetesEntry):
        _check_watched(entry)
    for key in ("endpoint", "replay_endpoint", "bind", "url"):
        if key == "endpoint" and entry.endpoint == ASK and entry.events_port is None:
            continue
        if getattr(entry, key) is not None:
            remedy = "give port, events_port and replay_port: the addresses are the name's"
            raise InvalidValueError(f"{key} = {getattr(entry, key)!r}; {remedy}")
    try:
        discovery = Discovery(entry=entry, model_config=_config_of(entry, folder))
        ports = (entry.port, entry.events_port, entry.replay_port)
        named = tuple((str(port), 1) for port in ports)
        pod_at(discovery, PodPlace(_SOME_ADDRESS, named, target_port=1))
    except KvbraidError as error:
        raise as_refusal(error) from None
    return discovery


def _config_of(entry: PodEntry | DiscoverEntry | KubernetesEntry, folder: Path) -> ModelConfig:
    """Return the config that a pod's entry names, by the model's name or a path."""
    if entry.model_config is None:
        return None
    try:
        return find_config(entry.model_config, folder=folder)
    except InvalidValueError as error:
        raise type(error)(f"model_config: {error}") from None


def override(config: FleetConfig, flags: Mapping[str, object]) -> FleetConfig:
    """Replace options by the command line's flags; None or nothing means not given.

    Raises:
        InvalidValueError: A flag's value is not what the option accepts.
    """
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    envoy, shared, options = config.envoy, config.shared, msgspec.structs.asdict(config.server)
    if "grpc_port" in given:
        envoy = msgspec.structs.replace(envoy, port=given["grpc_port"])
    if "shard" in given:
        shared = shared.as_shard(str(given["shard"]))
    options |= {name: value for name, value in given.items() if name in options}
    try:
        server = msgspec.convert(options, ServerOptions)
    except msgspec.ValidationError as error:
        raise InvalidValueError(f"--{describe(error, ServerOptions)}") from None
    return replace(config, server=server, envoy=envoy, shared=shared, flags=given)


def schema() -> bytes:
    """Return the JSON Schema of a fleet.toml, made from the structs that read it."""
    roots = (FleetFile, PodMapping, SecondsTable)
    references, tables = msgspec.json.schema_components(roots, ref_template="#/$defs/{name}")
    file, topology, seconds = references
    for entry in (PodEntry, DiscoverEntry, KubernetesEntry):
        tables[entry.__name__]["properties"]["topology"]["anyOf"] = [topology, {"type": "null"}]
    tables[RouterTable.__name__]["properties"]["seconds"]["additionalProperties"] = seconds
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fleet.toml of kvbraid",
        **file,
        "$defs": tables,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
