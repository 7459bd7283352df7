"""What a cache answers about its requests. No call here changes anything."""

from collections.abc import Sequence

from kvbraid._native import CacheCore
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.counts import NOT_TAKEN, check_counts, check_needs
from kvbraid.cache.step import Need
from kvbraid.ids import BlockId


class Questions:
    """A part of `CacheManager`."""

    config: CacheConfig
    num_groups: int
    _core: CacheCore

    def hit_blocks(self, request: int, num_tokens: int) -> list[list[BlockId]]:
        """Return the blocks of a hit, group by group: those that `allocate` would adopt.

        Raises:
            UnknownError: The request is not known.
            NotHeldError: The hit is not held.
        """
        check_counts(num_tokens=num_tokens)
        return self._core.hit_blocks(request, num_tokens)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Return whether a request with this many tokens fits into the empty pool.

        What is reserved for it counts, which may be a little more than it takes in the end.
        """
        check_counts(num_tokens=num_tokens)
        return self._core.blocks_for(num_tokens) < self.config.num_blocks

    def blocks_needed(self, need: Need, *, is_admission: bool = False) -> int:
        """Return how many free blocks `allocate` would take, those of the hit included.

        The number is negative if the request has blocks to spare, and larger than the whole pool
        if the request has to wait for the next step. Changes nothing.

        Args:
            need: What the request asks for; it may ask for nothing new.
            is_admission: Count as if no group ever held more blocks than it reserves.

        Raises:
            UnknownError: The request is not known.
            NotHeldError: The hit is not held.
        """
        try:
            return self._core.blocks_needed(need, is_admission)
        except NOT_TAKEN:
            check_needs([need], self.num_groups)
            raise

    def blocks(self, request: int) -> list[list[BlockId]]:
        """Return the block table of a request, group by group; 0 is the null block.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.blocks(request)

    def num_tokens(self, request: int) -> int:
        """Return how many tokens of a request are known: its prompt and its output so far.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.progress(request)[2]

    def num_computed_tokens(self, request: int) -> int:
        """Return how many tokens of a request are computed, or will be when the step has run.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.progress(request)[0]

    def num_common_prefix_blocks(self, requests: Sequence[int]) -> list[int]:
        """Return, per group, how many leading blocks all of these requests hold in common.

        A block that one of them gave back (its window has passed, its state is skipped) ends the
        prefix. Without requests every number is 0.

        Raises:
            UnknownError: A request is not known.
            InvalidValueError: A request is given twice.
        """
        return self._core.num_common_prefix_blocks(requests)
