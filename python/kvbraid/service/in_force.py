"""The configuration in force, and what became of the attempts to change it while a server runs.

Invariant: what is shown is what counts. A key of the file that counts at the next start has its
old value here, and is named among those that wait. No secret is shown. The clock is passed in.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from kvbraid.service.answers import ConfigAnswer, KeyRow, RefusedConfig
from kvbraid.service.config import FleetConfig, FleetFile

MASK: Final = "***"
"""What stands in place of a secret."""

_SEEDS: Final = ("PYTHONHASHSEED", "hash_seed")


class Part(NamedTuple):
    """One table of a file: where a `FleetConfig` has it, and its keys that change at once."""

    attribute: str
    at_once: frozenset[str] = frozenset()


PARTS: Final[Mapping[str, Part]] = {
    "server": Part(
        "server",
        frozenset(
            {
                "token",
                "open_rights",
                "allow_registration",
                "allow_hosts",
                "log_level",
                "log_format",
            }
        ),
    ),
    "limits": Part(
        "limits",
        frozenset(
            {"body_bytes", "bodies_bytes", "head_bytes", "tokens", "connections", "request_s"}
        ),
    ),
    "index": Part("index"),
    "gateway": Part("forwarding"),
    "envoy": Part("envoy"),
    "console": Part("console"),
    "shared": Part("shared"),
    "tokens": Part("tokens"),
    "discover": Part("discovered"),
    "kubernetes": Part("watched"),
}
"""The tables with keys that count at the next start. All of every other table changes at once."""


def merged(running: FleetConfig, new: FleetConfig) -> tuple[FleetConfig, list[str]]:
    """Return what counts once a file is taken, and its keys that count at the next start."""
    kept: dict[str, Any] = {}
    waiting: list[str] = []
    for table, (attribute, at_once) in PARTS.items():
        old, wanted = getattr(running, attribute), getattr(new, attribute)
        if old == wanted:
            continue
        if not isinstance(wanted, msgspec.Struct):
            kept[attribute] = old
            waiting.append(table)
            continue
        fields = [name for name in wanted.__struct_fields__ if name not in at_once]
        stays = {name: getattr(old, name) for name in fields}
        waiting += [f"{table}.{n}" for n in fields if stays[n] != getattr(wanted, n)]
        kept[attribute] = msgspec.structs.replace(wanted, **stays)
    old_file = running.file
    file = msgspec.structs.replace(
        new.file,
        tokens=old_file.tokens,
        discover=old_file.discover,
        kubernetes=old_file.kubernetes,
    )
    if (running.tls is None) is not (new.tls is None):  # Its files may change, but not whether.
        kept["tls"] = running.tls
        waiting.append("tls")
        file = msgspec.structs.replace(file, tls=old_file.tls)
    return replace(new, file=file, **kept), waiting


class InForce:
    """What counts now. Any thread may read; one thread at a time changes it.

    Attributes:
        config: What counts.
        waiting: Keys of the file that count at the next start.
        reloads: How many files were taken, and how many refused.
        refused: The last file that was refused; None once a later one was taken.
        since: When `config` began to count, in seconds since 1970.
        keys: Returns the keys that count, with their last use; whoever checks them sets it.
    """

    keys: Callable[[], list[KeyRow]] = list

    def __init__(
        self, config: FleetConfig | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.config = config or FleetConfig()
        self.waiting: tuple[str, ...] = ()
        self.reloads: Counter[str] = Counter(ok=0, failed=0)
        self.refused: RefusedConfig | None = None
        self.since = clock()

    def take(self, config: FleetConfig, waiting: list[str]) -> None:
        """Note that a file counts now."""
        with self._lock:
            self.config, self.waiting = config, tuple(waiting)
            self.refused, self.since = None, self._clock()
            self.reloads["ok"] += 1

    def refuse(self, error: str) -> None:
        """Note that a file was refused; what counted before counts on."""
        with self._lock:
            self.refused = RefusedConfig(at=self._clock(), error=error)
            self.reloads["failed"] += 1

    def answer(self) -> ConfigAnswer:
        """Return what an operator may see."""
        with self._lock:
            config = self.config
            return ConfigAnswer(
                file=None if config.path is None else str(config.path),
                since=self.since,
                waiting=list(self.waiting),
                refused=self.refused,
                keys=self.keys(),
                config=shown(config),
            )


def shown(config: FleetConfig) -> dict[str, Any]:
    """Return the tables of a configuration as a file has them, without secrets."""
    file = msgspec.structs.replace(
        config.file,
        server=config.server,
        limits=config.limits,
        index=config.index,
        gateway=config.forwarding,
        envoy=config.envoy,
        console=config.console,
        shared=config.shared,
    )
    tables: dict[str, Any] = msgspec.to_builtins(file)
    assert set(tables) == set(FleetFile.__struct_fields__)
    for table, key in (
        ("server", "token"), ("index", "neighbour_key"), ("shared", "shard_key")
    ):  # fmt: skip
        if tables[table][key] is not None:
            tables[table][key] = MASK
    for entry in tables["keys"]:
        entry["sha256"] = MASK
    for entry in (*tables["pods"], *tables["discover"], *tables["kubernetes"]):
        topology = entry["topology"]
        if topology is not None:
            topology |= {name: MASK for name in _SEEDS if name in topology}
    return tables
