"""Calls for the tiers below the cache, to which blocks are stored and from which they are loaded.

Invariant: the index of a tier is the pool of a cache without requests. A block of it is a slot of
the tier, found by the hash and group of what the slot holds. Nothing here changes an index.
"""

from kvbraid._native import CacheCore
from kvbraid.reading import COUNT, check


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
