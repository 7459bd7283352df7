"""Calls for the tiers below the cache, to which blocks are stored and from which they are loaded.

Invariant: the index of a tier is the pool of a cache without requests. Each block of that pool
stands for one slot of the tier: its hash and group say what the slot holds. Nothing here changes
an index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from kvbraid._native import CacheCore
from kvbraid.cache.pool import BlockPool
from kvbraid.cache.step import Match
from kvbraid.ids import BlockId
from kvbraid.reading import COUNT, check


class Findable(NamedTuple):
    """A block that a hash began to find: what a tier may store.

    `num_tokens` is how many tokens the hash covers, `request` is the request that registered the
    block, which may have been released since.
    """

    group: int
    block_id: BlockId
    block_hash: bytes
    num_tokens: int
    request: int


_as_findable: Final = partial(tuple.__new__, Findable)  # A third of the time of a call.


class Fill(NamedTuple):
    """A position of a request's table that a load fills, and where its block is.

    `source` is 0 for the cache's own pool, and n for `tiers[n - 1]`, where `block_id` is a slot.
    """

    group: int
    position: int
    source: int
    block_id: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMatch:
    """How much a request can reuse of a cache and its tiers together; all lengths are in tokens.

    The last four are flat buffers, which are not copied: one entry per position that the load
    fills, ordered by group, then by position. See `Fill`.

    Attributes:
        match: What the request adopts: give it to `Need`. Without a load, it is what
            `CacheManager.match` says. Before a load it ends where a block of every group ends.
        num_pool_tokens: What the cache alone has.
        num_tokens: What the request has once the load has ended.
        groups: The groups.
        positions: The positions in the tables of the groups.
        sources: Where the blocks are.
        block_ids: The blocks and slots.
    """

    match: Match
    num_pool_tokens: int
    num_tokens: int
    groups: "memoryview[int]"
    positions: "memoryview[int]"
    sources: "memoryview[int]"
    block_ids: "memoryview[int]"

    @property
    def num_external_tokens(self) -> int:
        """What the load brings: give it to `Need`. 0 if nothing is loaded."""
        return self.num_tokens - self.match.num_tokens

    def fills(self) -> list[Fill]:
        """Return the positions that the load fills."""
        rows = zip(self.groups, self.positions, self.sources, self.block_ids, strict=True)
        return [Fill(group, at, source, BlockId(block)) for group, at, source, block in rows]


class CacheTiers:
    """What a cache tells those who store and load its blocks: `CacheManager.tiers`."""

    def __init__(self, core: CacheCore) -> None:
        self._core = core

    def block_hashes(self, request: int, start: int = 0) -> list[bytes]:
        """Return the hashes of a request, one per hash block, without the first `start`.

        They are those that `add` and `extend` got, or those that the cache computed. With the
        group of a block, the hash of its last hash block is the key of the block in a tier.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: `start` is no count.
        """
        check("start", start, COUNT)
        return self._core.block_hashes(request, start)

    def take_findable(self) -> list[Findable]:
        """Return the blocks that a hash began to find since the last call, and still finds.

        They come in the order in which requests registered them: in `allocate`, or in `commit`
        after `delay_commit`. What `BlockPool.register` did is not among them. The step that
        registered a block may not have written it yet: copy the block when that step has run, and
        hold it until then. States move from block to block and are not here; `Work.kept_states`
        and `take_state_tails` name them.

        Raises:
            InvalidValueError: `CacheConfig.findable` is off.
        """
        return [*map(_as_findable, self._core.take_findable())]

    def match_over(
        self, request: int, tiers: Sequence[BlockPool], *, whole_blocks: bool = False
    ) -> TierMatch:
        """Return how much a request can reuse of the cache and its tiers together.

        The boundary is that of the rule (`EngineDialect.PURE`) for one cache that holds what the
        pool and the tiers hold, or that of `CacheManager.match` if it is further. A position is
        filled from the first that has its block: the pool, then the tiers in their order. Changes
        nothing. Hold what is read before the next call: any slot may be handed out again.

        A group that keeps tokens before its window (`extra_retained_tokens`) gets blocks for them,
        too. Those that are nowhere are not listed: nobody reads them, but `commit` makes them
        findable, so `pool.forget` them then.

        Args:
            request: The request.
            tiers: The indexes, nearest first: pools of caches with the same groups.
            whole_blocks: Take the last boundary where blocks of all groups end: for an engine that
                ends no load inside a block.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: A tier has other groups, is given twice, or is the cache itself.
        """
        check("tiers", tiers, Sequence)
        for number, tier in enumerate(tiers):
            check(f"tiers[{number}]", tier, BlockPool)
        found = self._core.match_over(request, [tier.native for tier in tiers], whole_blocks)
        adopted, junction, num_pool_tokens, num_tokens, *columns = found
        groups, positions, sources, block_ids = (memoryview(c).cast("I") for c in columns)
        return TierMatch(
            match=Match(adopted, junction),
            num_pool_tokens=num_pool_tokens,
            num_tokens=num_tokens,
            groups=groups,
            positions=positions,
            sources=sources,
            block_ids=block_ids,
        )
