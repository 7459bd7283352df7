"""Calls for the tiers below the cache, to which blocks are stored and from which they are loaded.

Invariant: the index of a tier is the pool of a cache without requests. A block of it is a slot of
the tier, found by the hash and group of what the slot holds. Nothing here changes an index.
"""

from typing import NamedTuple

from kvbraid._native import CacheCore
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
        return [Findable(*found) for found in self._core.take_findable()]
