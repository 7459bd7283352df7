"""What one pod's cache consists of: kinds, groups, topology, and the engine's dialect.

Frozen data, validated in the constructor; the native core holds the same structures. Field names
are those of a capture's `config.json`, so that an operator can paste one into `fleet.toml`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvbraid.errors import TopologyError


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

    Raises:
        TopologyError: A size below one token, or a window kind without a window.
    """

    kind: SpecKind
    block_size: int
    window: int | None = None
    chunk: int | None = None
    eagle: bool = False
    prefix_cacheable: bool = True

    def __post_init__(self) -> None:
        """Refuse what no engine can have."""
        for name in ("block_size", "window", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name} = {value} tokens; it must be at least 1"
                raise TopologyError(msg)
        if self.kind.is_window and self.window is None:
            msg = f"a {self.kind.value} group needs its window in tokens"
            raise TopologyError(msg)


class EngineDialect(Enum):
    """Which engine's departures from the rule a pod's answers follow (a table in the core)."""

    PURE = "pure"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything the resume rule needs to know of one pod's cache.

    `alignment` and `hash_block_size` default to the least common multiple and the greatest
    common divisor of the groups' block sizes (vLLM's own defaults).
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
