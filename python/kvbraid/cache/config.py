"""How one engine's cache is set up. Frozen data; the native core refuses what cannot work."""

from dataclasses import dataclass, field
from math import lcm

from kvbraid.cache.parallel import Share, check_ranks, share_of
from kvbraid.cache.retention import Dense, Retention
from kvbraid.errors import InvalidValueError
from kvbraid.hashing import HashAlgo
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

_UNLIMITED = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """What allocation needs to know of a group and the resume rule does not.

    `num_speculative_blocks` (state groups): blocks kept for draft tokens after the running state.
    `extra_retained_tokens` (window groups): kept before the window, never attended.
    `needs_zeroing`: new blocks are listed by `take_work`. `is_ring`: one block per
    request, overwritten in turn and never cached. `is_replicated`: under context parallelism every
    rank keeps all tokens of the group, as for a draft model. `checkpoint_alignment` (state
    groups): the backend can save one state inside a step, a multiple of so many tokens after its
    start; None: it cannot. Under `Interval(0)` the step that ends a prompt does, else every one.
    """

    num_speculative_blocks: int = 0
    extra_retained_tokens: int = 0
    needs_zeroing: bool = False
    is_ring: bool = False
    is_replicated: bool = False
    checkpoint_alignment: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """One engine's cache before it exists.

    Attributes:
        topology: Groups and alignment (a hit is a multiple of it).
        num_blocks: Blocks of the pool, the null block included.
        dialect: Whose departures from the resume rule to follow; by default none. Another one is
            for a cache that takes that engine's place: it may hand out a hit that is not held.
        hash_algo: How tokens are hashed, where requests do not bring their hashes.
        hash_seed: The engine's PYTHONHASHSEED; None: the fixed seed that some algorithms have.
        group_options: One per group; empty: the defaults for all.
        caching: Whether prefixes are reused.
        events: Whether events are recorded.
        retention: Which window blocks and states stay findable.
        max_model_len: Tokens of a request at most.
        max_in_flight_tokens: Tokens computed at once at most; bounds what a window or chunk group
            reserves for an admission. None: no bound.
        watermark: Share of the pool to leave free when a waiting request is admitted.
        num_reprefillable_tokens: Last tokens that may be computed again (drafts of several
            tokens), so that they are not cached.
        partial_junctions: Keep a state at a junction inside a block, too, where a step ends there
            (`plan_chunk` sees to it). Needs partial hits, and no tokens that are computed again.
        decode_context_parallel: Ranks that the tokens of a sharded group are spread over. The
            topology has the effective block sizes already: see `GroupSpec.sharded_over`.
        prefill_context_parallel: Ranks that compute a prompt together. Changes no block size.

    Raises:
        InvalidValueError: A number of options that is not that of the groups, a bad share, or a
            group that context parallelism does not admit.
    """

    topology: Topology
    num_blocks: int
    dialect: EngineDialect = EngineDialect.PURE
    hash_algo: HashAlgo = HashAlgo.SHA256
    hash_seed: str | None = None
    group_options: tuple[GroupOptions, ...] = field(default=())
    caching: bool = True
    events: bool = False
    retention: Retention = Dense()  # noqa: RUF009 - frozen and without fields
    max_model_len: int = _UNLIMITED
    max_in_flight_tokens: int | None = None
    watermark: float = 0.0
    num_reprefillable_tokens: int = 0
    partial_junctions: bool = False
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1

    def __post_init__(self) -> None:
        num_groups = len(self.topology.groups)
        if self.group_options and len(self.group_options) != num_groups:
            raise InvalidValueError(
                f"{len(self.group_options)} group_options for {num_groups} groups; give one per "
                "group, or none"
            )
        if self.num_reprefillable_tokens < 0:
            raise InvalidValueError(
                f"num_reprefillable_tokens is {self.num_reprefillable_tokens}; expected 0 or more"
            )
        if not 0 <= self.watermark < 1:
            raise InvalidValueError(
                f"watermark is {self.watermark}; expected a share of the pool, 0 to 1"
            )
        ranks = {
            "decode_context_parallel": self.decode_context_parallel,
            "prefill_context_parallel": self.prefill_context_parallel,
        }
        check_ranks(ranks, self._shares())

    @property
    def watermark_blocks(self) -> int:
        """Blocks to leave free when a waiting request is admitted."""
        return int(self.watermark * self.num_blocks)

    @property
    def checkpoint_alignment(self) -> int | None:
        """What all state groups can save inside a step: None if one of them cannot."""
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
