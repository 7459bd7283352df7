"""The `[shared]` table of fleet.toml: what replicas of one fleet tell each other, and where.

`shared/` reads it. Without a `url` there is one replica, or each books apart.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.service.sharding import MOST_SHARDS, Shard

_ReplicaName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
_StreamName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
_URL: Final = re.compile(
    r"(?:nats|tls)://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::\d+)?"
)


_SHARD_URL: Final = re.compile(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::[0-9]{1,5})?/?"
)


class Server(Protocol):
    """Whoever carries messages."""

    @property
    def problem(self) -> str:
        """Why it is not there; empty if it is."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """What has happened to the connection and to messages."""
        ...


class SharedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the NATS server is, and as whom it is spoken to.

    `replica` is the name of this process among those of its `fleet`; None: the host's. The
    password of `user` is the first line of `password_file`, and `ca` has the authorities that may
    have signed the server's certificate. What is booked is published every `every_s` seconds. An
    engine is asked for lost events after a random part of `replay_spread_s`, because all replicas
    ask at about the same time.

    With `shard`, "2/3" for one, this process indexes the pods of that shard alone. With `shards`,
    the addresses of all of them in order, it indexes nothing and asks them; it presents
    `shard_key`, and waits `shard_answer_s` for an answer.
    `log` is a stream of JetStream: `kvbraid relay` writes events to it as `relay_user`, and
    replicas read them there in place of the engines. A relay that makes the stream bounds it by
    `log_bytes` and `log_age_s`.
    """

    url: str | None = None
    fleet: _ReplicaName = "default"
    replica: _ReplicaName | None = None
    user: str | None = None
    password_file: str | None = None
    ca: str | None = None
    shard: str | None = None
    shards: Annotated[list[str], Meta(max_length=MOST_SHARDS)] = []
    shard_key: Annotated[str, Meta(min_length=1)] | None = None
    shard_answer_s: Annotated[float, Meta(gt=0, le=10)] = 0.05
    log: _StreamName | None = None
    log_bytes: Annotated[int, Meta(ge=1 << 20, le=(1 << 63) - 1)] = 1 << 30
    log_age_s: Annotated[float, Meta(ge=1, le=1e8)] = 3600.0
    relay_user: str | None = None
    relay_password_file: str | None = None
    every_s: Annotated[float, Meta(ge=0.01, le=10)] = 0.1
    replay_spread_s: Annotated[float, Meta(ge=0, le=60)] = 1.0

    @property
    def own_shard(self) -> Shard | None:
        """The shard that this process is; None: it indexes every pod, or none."""
        return None if self.shard is None else Shard.read(self.shard)

    def as_shard(self, shard: str) -> "SharedTable":
        """Return the table of one of the shards that a front with this table asks.

        Raises:
            InvalidValueError: There is no such shard.
        """
        own, num = Shard.read(shard), len(self.shards)
        if num not in (0, own.of):
            raise InvalidValueError(f"shard = {shard}, but shared.shards has {num} addresses")
        return msgspec.structs.replace(self, shard=shard, shards=[], shard_key=None)

    @property
    def name(self) -> str:
        """The name of this replica."""
        return self.replica or _sound(socket.gethostname())


class EventLogState(Protocol):
    """What a service shows of its log of events, which it reads or writes."""

    @property
    def problem(self) -> str:
        """Why no events come from it, or go into it; empty if they do."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """What has become of batches."""
        ...

    @property
    def server(self) -> Server:
        """The server that has it."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be applied, or to be acknowledged."""
        ...


@dataclass(slots=True)
class SharedState:
    """What a service shows of its replicas, as their thread leaves it.

    Attributes:
        name: That of this replica.
        server: The server that they speak through, with its problem and its counts.
        heard: What has become of messages of others.
        twice: The names under which two processes speak.
    """

    name: str
    server: Server
    heard: Mapping[str, int]
    twice: Sequence[str] = ()

    @property
    def problem(self) -> str:
        """Why requests are not chosen as if there were one replica; empty if they are."""
        told = [f"replica {self.name} books apart: {self.server.problem}"] * bool(
            self.server.problem
        )
        told += [f"two replicas have the name {name}: give each its own" for name in self.twice]
        return "; ".join(told)


def check_shared(table: SharedTable, folder: Path) -> SharedTable:
    """Check what the types of a table cannot; return it with paths that begin at the folder.

    Raises:
        InvalidValueError: One line with the key, the value and what was expected.
    """
    _check_shards(table)
    url = table.url
    if url is None:
        if _without_shards(table) != SharedTable():
            raise InvalidValueError("shared: there is no url; give nats://HOST:PORT, or no table")
    elif not _URL.fullmatch(url):
        remedy = "expected nats://HOST:PORT or tls://HOST:PORT; user and password have their keys"
        raise InvalidValueError(f"shared.url = {shortened(url)}; {remedy}")
    elif table.ca is not None and not url.startswith("tls:"):
        raise InvalidValueError("shared.ca is given, but no certificate is asked of nats://")
    for user, password in (("user", "password_file"), ("relay_user", "relay_password_file")):
        if (getattr(table, user) is None) != (getattr(table, password) is None):
            raise InvalidValueError(f"shared: give {user} and {password}, or neither of them")
    paths = {key: getattr(table, key) for key in ("password_file", "relay_password_file", "ca")}
    inside = {key: path and str(folder / path) for key, path in paths.items()}
    return msgspec.structs.replace(table, **inside)


def _check_shards(table: SharedTable) -> None:
    own = table.own_shard
    if own is not None and table.shards:
        raise InvalidValueError("shared: give shard, or the shards that a front asks, not both")
    for number, address in enumerate(table.shards):
        if not _SHARD_URL.fullmatch(address):
            remedy = "expected http://HOST:PORT or https://HOST:PORT"
            raise InvalidValueError(f"shared.shards[{number}] = {shortened(address)}; {remedy}")
    if len(set(table.shards)) < len(table.shards):
        raise InvalidValueError("shared.shards has an address twice; give each shard its own")
    if not table.shards and table.shard_key is not None:
        raise InvalidValueError("shared.shard_key is for a front: give shards, or no key")


def _without_shards(table: SharedTable) -> SharedTable:
    ours = ("shard", "shards", "shard_key", "shard_answer_s")
    usual = {name: getattr(SharedTable(), name) for name in ours}
    return msgspec.structs.replace(table, **usual)


def _sound(host: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", host).lstrip("_-")[:63]
    return name or "replica"
