"""What one cache consists of: kinds, groups and topology. Also the names of engines' dialects.

Frozen data, validated in the constructor; the native core holds the same structures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import lcm
from typing import Final

from kvbraid.errors import TopologyError, shortened
from kvbraid.reading import POSITIVE, ValueKind, check, check_fields, whole


class SpecKind(Enum):
    """The attention kind of a group; its value is the wire's (vLLM's `kv_cache_spec_kind`)."""

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

    `variant` tells groups of the same kind and size apart if they differ in something that the
    rule does not use: heads, number format, replication. Engines look up equal groups together and
    different ones separately.

    Raises:
        TopologyError: A size is below one token, or a group of a window kind has no window.
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
        check_fields(self, _GROUP_KINDS, TopologyError)
        if self.kind.is_window and self.window is None:
            raise TopologyError(f"a {self.kind.value} group needs its window in tokens")

    def sharded_over(self, num_ranks: int) -> "GroupSpec":
        """Return the group under decode-context parallelism: a block covers its tokens on all
        ranks together.

        Raises:
            TopologyError: There is no rank, or no engine spreads the tokens of this kind.
        """
        check("num_ranks", num_ranks, POSITIVE, TopologyError)
        if num_ranks > 1 and not self.kind.is_full:
            raise TopologyError(
                f"the tokens of a {self.kind.value} group are not spread over {num_ranks} ranks: "
                "only full attention is; leave the group as it is, replicated"
            )
        return replace(self, block_size=self.block_size * num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentGroup:
    """A group that an engine keeps beside full attention, in pages of the same size, untold.

    `window` is in tokens. `grid`: a prompt can be resumed at multiples of so many tokens only,
    unless a page is a single token.

    Raises:
        TopologyError: A number of tokens is below 1, or a group of a window kind has no window.
    """

    kind: SpecKind
    window: int | None = None
    grid: int = 1

    def __post_init__(self) -> None:
        """Refuse what no engine can have."""
        check(f"grid of a silent {self.kind.value} group", self.grid, POSITIVE, TopologyError)
        self.of_page(1)

    def of_page(self, page: int) -> GroupSpec:
        """Return the group with pages of so many tokens.

        Raises:
            TopologyError: As the constructor of `GroupSpec`.
        """
        return GroupSpec(kind=self.kind, block_size=page, window=self.window)


_GROUP_KINDS: Final[dict[str, ValueKind]] = {
    "kind": SpecKind,
    "block_size": POSITIVE,
    "window": POSITIVE.or_none(),
    "chunk": POSITIVE.or_none(),
    "variant": whole(),
}
_TOPOLOGY_KINDS: Final[dict[str, ValueKind]] = {
    "groups": tuple | list,
    "alignment": int | None,
    "hash_block_size": int | None,
    "replay_tokens": int,
    "hash_lookahead": int,
}
"""The types of fields whose wrong values are not told anywhere else."""


def told_apart(groups: Iterable[GroupSpec], by: Sequence[object]) -> tuple[GroupSpec, ...]:
    """Number the variants of groups: equal groups stay equal only if their values in `by` are.

    `by` has one value per group.
    """
    variants: dict[GroupSpec, list[object]] = {}
    numbered = []
    for group, identity in zip(groups, by, strict=True):
        known = variants.setdefault(replace(group, eagle=False), [])
        if identity not in known:
            known.append(identity)
        numbered.append(replace(group, variant=known.index(identity)))
    return tuple(numbered)


class EngineDialect(Enum):
    """The engine whose departures from the rule a look-up follows (a table in the core)."""

    PURE = "pure"
    VLLM = "vllm"
    SGLANG = "sglang"  # Publishes only its full-attention part: an answer is a bound.


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything that the resume rule needs to know about one cache, but nothing about its engine.

    `alignment` and `hash_block_size` default to the least common multiple and the greatest
    common divisor of the groups' block sizes (vLLM's own defaults). `partial_hits` says whether
    hits may end inside blocks. None leaves it open: there are none, but where a pod's events show
    states inside blocks, or copies that may be such, its answers are bounds.
    """

    groups: tuple[GroupSpec, ...]
    alignment: int | None = None
    hash_block_size: int | None = None
    partial_hits: bool | None = None
    replay_tokens: int = 0
    hash_lookahead: int = 0

    def __post_init__(self) -> None:
        """Refuse block sizes that have no common boundary in reach.

        Raises:
            TopologyError: Their least common multiple is not below 2^32 tokens, or a value is of
                another type.
        """
        check_fields(self, _TOPOLOGY_KINDS, TopologyError)
        for index, group in enumerate(self.groups):
            check(f"groups[{index}]", group, GroupSpec, TopologyError)
        sizes = sorted({group.block_size for group in self.groups})
        if lcm(*sizes) >= 1 << 32:
            raise TopologyError(
                f"the block sizes {shortened(sizes)} have the least common multiple "
                f"{shortened(lcm(*sizes))}; expected less than 4294967296 tokens"
            )
