"""What one pod's cache consists of: kinds, groups, topology, and the engine's dialect.

Frozen data, validated in the constructor; the native core holds the same structures. Field names
are those of a capture's `config.json`, so that an operator can paste one into `fleet.toml`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import lcm
from typing import Final, TypeVar

from kvbraid.errors import TopologyError, shown


class SpecKind(Enum):
    """The attention kind of a group, valued as on the wire (vLLM `kv_cache_spec_kind`)."""

    FULL_ATTENTION = "full_attention"
    MLA_ATTENTION = "mla_attention"
    SINK_FULL_ATTENTION = "sink_full_attention"
    SLIDING_WINDOW = "sliding_window"
    SLIDING_WINDOW_MLA = "sliding_window_mla"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    MAMBA = "mamba"
    ENCODER_ONLY_ATTENTION = "encoder_only_attention"
    CROSS_ATTENTION = "cross_attention"
    UNKNOWN = "unknown"

    @property
    def is_full(self) -> bool:
        """Whether every block of the prefix is needed."""
        return self in _FULL

    @property
    def is_window(self) -> bool:
        """Whether only the last `window` tokens are needed."""
        return self in _WINDOW


_FULL: Final = frozenset(
    {SpecKind.FULL_ATTENTION, SpecKind.MLA_ATTENTION, SpecKind.SINK_FULL_ATTENTION}
)
_WINDOW: Final = frozenset({SpecKind.SLIDING_WINDOW, SpecKind.SLIDING_WINDOW_MLA})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One group: layers that share a kind and a block table.

    `variant` tells groups of one kind and size apart that differ in what the rule does not ask
    for: heads, number format, replication. Engines look equal groups up together, others apart.

    Raises:
        TopologyError: A size below one token, or a window kind without a window.
    """

    kind: SpecKind
    block_size: int
    window: int | None = None
    chunk: int | None = None
    eagle: bool = False
    prefix_cacheable: bool = True
    variant: int = 0

    def __post_init__(self) -> None:
        """Refuse what no engine can have."""
        if self.variant < 0:
            msg = f"variant = {self.variant}; it must be at least 0"
            raise TopologyError(msg)
        for name in ("block_size", "window", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name} = {value} tokens; it must be at least 1"
                raise TopologyError(msg)
        if self.kind.is_window and self.window is None:
            msg = f"a {self.kind.value} group needs its window in tokens"
            raise TopologyError(msg)

    def sharded_over(self, num_ranks: int) -> "GroupSpec":
        """Return the group as decode-context parallelism makes it: a block covers its tokens on
        every rank.

        Raises:
            TopologyError: No rank at all, or a kind whose tokens no engine spreads.
        """
        if num_ranks < 1:
            msg = f"{num_ranks} ranks; it must be at least 1"
            raise TopologyError(msg)
        if num_ranks > 1 and not self.kind.is_full:
            msg = (
                f"the tokens of a {self.kind.value} group are not spread over {num_ranks} ranks: "
                "only full attention is; leave the group as it is, replicated"
            )
            raise TopologyError(msg)
        return replace(self, block_size=self.block_size * num_ranks)


def told_apart(groups: Iterable[GroupSpec], by: Sequence[object]) -> tuple[GroupSpec, ...]:
    """Number the variants of groups: equal ones stay equal only where `by`, one per group, is."""
    variants: dict[GroupSpec, list[object]] = {}
    numbered = []
    for group, identity in zip(groups, by, strict=True):
        known = variants.setdefault(replace(group, eagle=False), [])
        if identity not in known:
            known.append(identity)
        numbered.append(replace(group, variant=known.index(identity)))
    return tuple(numbered)


class EngineDialect(Enum):
    """Which engine's departures from the rule a pod's answers follow (a table in the core)."""

    PURE = "pure"
    VLLM = "vllm"
    SGLANG = "sglang"  # Publishes its full-attention part only: an answer is an upper bound.


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything the resume rule needs to know of one pod's cache.

    `alignment` and `hash_block_size` default to the least common multiple and the greatest
    common divisor of the groups' block sizes (vLLM's own defaults). `unsent_tokens` has, by kind,
    the window or chunk of groups that are learned from events which do not carry it. `retention`
    is the engine's own setting (`prefix_cache_retention_interval`, tokens): an engine that has one
    keeps whole windows, by which sparse stores are placed where the hash function is unknown.
    """

    groups: tuple[GroupSpec, ...]
    alignment: int | None = None
    hash_block_size: int | None = None
    partial_hits: bool = False
    replay_tokens: int = 0
    hash_lookahead: int = 0
    dialect: EngineDialect = EngineDialect.VLLM
    hash_algo: str | None = None
    hash_seed: str | None = None
    report_mode: str = "incremental"
    retention: int | None = None
    unsent_tokens: tuple[tuple[SpecKind, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse block sizes that have no common boundary in reach.

        Raises:
            TopologyError: Their least common multiple is not below 2^32 tokens.
        """
        sizes = sorted({group.block_size for group in self.groups})
        if lcm(*sizes) >= 1 << 32:
            msg = (
                f"the block sizes {shown(sizes)} have the least common multiple "
                f"{shown(lcm(*sizes))}; expected less than 4294967296 tokens"
            )
            raise TopologyError(msg)


HASH_ALGOS: Final = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
"""The engines' hash functions that the query means can compute."""

REPORT_MODES: Final = ("incremental", "full")
"""Whether an engine announces new copies only, or reused blocks as well."""


def topology_from_mapping(mapping: Mapping[str, object]) -> Topology:
    """Read a topology from the field names of a capture's `config.json`.

    Fields that are not part of a topology are ignored; a group's `kind` and `window` may be
    called `event_kind` and `event_window`. Without `groups` they are learned from events.

    Raises:
        TopologyError: Names the field, shows its value and says what was expected.
    """
    top = _Fields(dict(mapping), "topology")
    return Topology(
        groups=tuple(_group(fields) for fields in top.children("groups")),
        alignment=top.tokens("alignment"),
        hash_block_size=top.tokens("hash_block_size"),
        partial_hits=top.flag("partial_hits"),
        replay_tokens=top.tokens("replay_tokens", least=0) or 0,
        hash_lookahead=top.tokens("hash_lookahead", least=0) or 0,
        dialect=EngineDialect(
            top.choice("dialect", "engine", among=[d.value for d in EngineDialect]) or "vllm"
        ),
        hash_algo=top.choice("hash_algo", among=HASH_ALGOS),
        hash_seed=top.seed("PYTHONHASHSEED", "hash_seed"),
        report_mode=top.choice("report_mode", among=REPORT_MODES) or "incremental",
        retention=top.tokens("retention", least=0),
    )


def _group(fields: "_Fields") -> GroupSpec:
    kind = fields.choice("kind", "event_kind", among=[kind.value for kind in SpecKind])
    block_size = fields.tokens("block_size")
    if kind is None or block_size is None:
        missing = "kind" if kind is None else "block_size"
        msg = f"{fields.path}.{missing} is missing; each group needs its kind and block_size"
        raise TopologyError(msg)
    try:
        return GroupSpec(
            kind=SpecKind(kind),
            block_size=block_size,
            window=fields.tokens("window", "event_window"),
            chunk=fields.tokens("chunk"),
            eagle=fields.flag("use_eagle", "eagle"),
            prefix_cacheable=fields.flag("prefix_cacheable", default=True),
            variant=fields.tokens("variant", least=0) or 0,
        )
    except TopologyError as error:
        msg = f"{fields.path}: {error}"
        raise TopologyError(msg) from None


_T = TypeVar("_T")


class _Fields:
    """Typed reads from one mapping; every refusal names the path. Null counts as absent."""

    def __init__(self, mapping: object, path: str) -> None:
        self.path = path
        self._mapping: dict[str, object] = self._typed(mapping, dict, path, "a table of fields")

    def tokens(self, *names: str, least: int = 1) -> int | None:
        name, value = self._first(names)
        if value is None:
            return None
        path, expected = f"{self.path}.{name}", f"a whole number of tokens, at least {least}"
        number = self._typed(value, int, path, expected)
        if isinstance(value, bool) or not least <= number < 1 << 32:
            raise self._wrong(path, value, expected)
        return number

    def flag(self, *names: str, default: bool = False) -> bool:
        name, value = self._first(names)
        if value is None:
            return default
        return self._typed(value, bool, f"{self.path}.{name}", "true or false")

    def choice(self, *names: str, among: Sequence[str]) -> str | None:
        name, value = self._first(names)
        if value is None:
            return None
        if value not in among:
            raise self._wrong(f"{self.path}.{name}", value, "one of " + ", ".join(among))
        return str(value)

    def seed(self, *names: str) -> str | None:
        """An environment variable's text; a bare number is accepted as its digits."""
        name, value = self._first(names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._wrong(f"{self.path}.{name}", value, 'the text that was set, as "0"')
        return str(value)

    def children(self, name: str) -> "list[_Fields]":
        value = self._mapping.get(name)
        path = f"{self.path}.{name}"
        rows = self._typed([] if value is None else value, list, path, "a list of groups")
        children = [_Fields(row, f"{path}[{index}]") for index, row in enumerate(rows)]
        for index, child in enumerate(children):
            listed = child.tokens("idx", least=0)
            if listed not in (None, index):
                expected = f"{index}: groups are listed in the engine's own order"
                raise self._wrong(f"{child.path}.idx", listed, expected)
        return children

    def _first(self, names: Sequence[str]) -> tuple[str, object]:
        for name in names:
            if self._mapping.get(name) is not None:
                return name, self._mapping[name]
        return names[0], None

    def _typed(self, value: object, kind: type[_T], path: str, expected: str) -> _T:
        if not isinstance(value, kind):
            raise self._wrong(path, value, expected)
        return value

    @staticmethod
    def _wrong(path: str, value: object, expected: str) -> TopologyError:
        return TopologyError(f"{path} = {shown(value)}; expected {expected}")
