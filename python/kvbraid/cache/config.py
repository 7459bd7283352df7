"""How one engine's cache is set up. Frozen data; the native core refuses what cannot work."""

from dataclasses import dataclass, field
from math import lcm
from typing import Final

from kvbraid.cache.parallel import Share, check_ranks, share_of
from kvbraid.cache.retention import Dense, Retention
from kvbraid.errors import InvalidValueError
from kvbraid.hashing import HashAlgo
from kvbraid.reading import COUNT, Rule, ValueKind, check, check_fields
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

_UNLIMITED = (1 << 32) - 1
_MEDIA: Final = ("GPU", "CPU", "STORAGE")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """What allocation needs to know about a group, beyond what the resume rule needs.

    `num_speculative_blocks` (state groups): blocks kept for draft tokens after the running state;
    a step with more drafts is refused.
    `extra_retained_tokens` (window groups): tokens kept before the window, which are never
    attended to. `needs_zeroing`: `take_work` lists the group's new blocks. `is_ring`: each request
    has one block, which is overwritten again and again and never cached. `is_replicated`: under
    context parallelism every rank keeps all tokens of the group, as for a draft model.
    `checkpoint_alignment` (state groups): the backend can save one state inside a step, a multiple
    of this many tokens after its start; None: it cannot. Under `Interval(0)` only the step that
    ends a prompt saves such a state; under the other retentions every step that can saves one.
    """

    num_speculative_blocks: int = 0
    extra_retained_tokens: int = 0
    needs_zeroing: bool = False
    is_ring: bool = False
    is_replicated: bool = False
    checkpoint_alignment: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, _OPTIONS)


_OPTIONS: Final = {
    "num_speculative_blocks": COUNT,
    "extra_retained_tokens": COUNT,
    "checkpoint_alignment": COUNT.or_none(),
}
_KINDS: Final[dict[str, ValueKind]] = {
    "topology": Topology,
    "num_blocks": COUNT,
    "dialect": EngineDialect,
    "hash_algo": HashAlgo,
    "hash_seed": str | None,
    "group_options": tuple | list,
    "medium": Rule(_MEDIA.__contains__, f"one of {', '.join(_MEDIA)}"),
    "retention": Retention,
    "max_model_len": COUNT,
    "max_in_flight_tokens": COUNT.or_none(),
    "watermark": Rule(
        lambda share: isinstance(share, float | int) and 0 <= share < 1,
        "a share of the pool, 0 to 1",
    ),
    "num_reprefillable_tokens": COUNT,
    "decode_context_parallel": int,
    "prefill_context_parallel": int,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The settings of one engine's cache.

    Attributes:
        topology: The groups, and the alignment: every hit is a multiple of it.
        num_blocks: Blocks of the pool, the null block included.
        dialect: The engine whose departures from the resume rule the cache follows; by default
            none. Use a dialect only for a cache that replaces that engine's own: under it, the
            cache may hand out a hit that is not held.
        hash_algo: How tokens are hashed if a request does not bring its hashes.
        hash_seed: The engine's PYTHONHASHSEED; None: the fixed seed that some algorithms have.
        group_options: One per group; empty: the defaults for all.
        caching: Whether prefixes are reused.
        events: Whether events are recorded.
        findable: Whether `CacheTiers.take_findable` lists what became findable.
        medium: What events call the memory that has the blocks: GPU, CPU or STORAGE. A cache
            without requests can be the index of a tier.
        retention: Which window blocks and states stay findable.
        max_model_len: The largest number of tokens that a request can have.
        max_in_flight_tokens: The largest number of tokens that are computed at once. It bounds
            what a window or chunk group reserves for an admission. None: no bound.
        watermark: The share of the pool that stays free when a waiting request is admitted.
        num_reprefillable_tokens: How many of the last tokens may be computed again (drafts of
            several tokens); these tokens are not cached.
        partial_junctions: Also keep a state at a junction inside a block if a step ends there
            (`plan_chunk` ends one there). Needs partial hits, and `num_reprefillable_tokens` = 0.
        decode_context_parallel: The ranks over which the tokens of a sharded group are spread. The
            topology must have the effective block sizes: see `GroupSpec.sharded_over`.
        prefill_context_parallel: The ranks that compute a prompt together. It changes no block
            size.

    Raises:
        InvalidValueError: The number of options differs from the number of groups, a share or a
            number is out of range, or context parallelism does not admit a group.
    """

    topology: Topology
    num_blocks: int
    dialect: EngineDialect = EngineDialect.PURE
    hash_algo: HashAlgo = HashAlgo.SHA256
    hash_seed: str | None = None
    group_options: tuple[GroupOptions, ...] = field(default=())
    caching: bool = True
    events: bool = False
    findable: bool = False
    medium: str = "GPU"
    retention: Retention = Dense()  # noqa: RUF009 - frozen and without fields
    max_model_len: int = _UNLIMITED
    max_in_flight_tokens: int | None = None
    watermark: float = 0.0
    num_reprefillable_tokens: int = 0
    partial_junctions: bool = False
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1

    def __post_init__(self) -> None:
        self._check_values()
        num_groups = len(self.topology.groups)
        if self.group_options and len(self.group_options) != num_groups:
            raise InvalidValueError(
                f"{len(self.group_options)} group_options for {num_groups} groups; give one per "
                "group, or none"
            )
        ranks = {
            "decode_context_parallel": self.decode_context_parallel,
            "prefill_context_parallel": self.prefill_context_parallel,
        }
        check_ranks(ranks, self._shares())

    def _check_values(self) -> None:
        check_fields(self, _KINDS)
        for index, options in enumerate(self.group_options):
            check(f"group_options[{index}]", options, GroupOptions)
        if self.caching and not self.topology.groups:
            msg = "the topology has no groups, so nothing could ever be reused; give a GroupSpec "
            raise InvalidValueError(f"{msg}for each group of the model, or set caching to False")

    @property
    def watermark_blocks(self) -> int:
        """Blocks to leave free when a waiting request is admitted."""
        return int(self.watermark * self.num_blocks)

    @property
    def checkpoint_alignment(self) -> int | None:
        """The multiple at which all state groups can save a state; None if one of them cannot."""
        rows = zip(self.topology.groups, self.group_options, strict=False)
        every = [o.checkpoint_alignment for group, o in rows if group.kind is SpecKind.MAMBA]
        known = [alignment for alignment in every if alignment is not None]
        return lcm(*known) if known and len(known) == len(every) else None

    def _shares(self) -> list[tuple[GroupSpec, Share]]:
        groups = self.topology.groups
        options = self.group_options or (GroupOptions(),) * len(groups)
        return [
            (group, share_of(group, is_replicated=o.is_replicated, is_ring=o.is_ring))
            for group, o in zip(groups, options, strict=True)
        ]
