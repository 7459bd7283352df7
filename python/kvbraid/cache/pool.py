"""Calls on single blocks, for connectors, which hold blocks and fill them.

Invariant: the caller has to drop every reference that it takes here, with `free`, and can drop no
other; `num_held` counts the blocks until then. `register` and `unregister` record no event;
evictions and `forget` record the hashes that they remove. Nothing here knows a request.
"""

from collections.abc import Sequence
from typing import Final

from kvbraid._native import CacheCore
from kvbraid.cache.counts import NOT_TAKEN, check_counts, group_of
from kvbraid.cache.step import BlockInfo
from kvbraid.ids import BlockId
from kvbraid.reading import COUNT, check

_NO_KEY: Final = (None, None, 0)


class BlockPool:
    """The blocks of a cache: `CacheManager.pool`."""

    def __init__(self, core: CacheCore, *, num_blocks: int, num_groups: int) -> None:
        self._core = core
        self.num_blocks = num_blocks
        self._group = group_of(num_groups)

    @property
    def native(self) -> CacheCore:
        """The native core, for `CacheTiers`, which reads the index where it is."""
        return self._core

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return self._core.num_free_blocks()

    @property
    def usage(self) -> float:
        """Share of the pool that is referenced, 0 to 1."""
        return 1.0 - self.num_free / (self.num_blocks - 1)

    @property
    def num_held(self) -> int:
        """Blocks of which the caller holds references that it has to drop with `free`.

        These are blocks of `take`, `hold` and `CacheManager.pop_blocks`, and the ends of copies
        that the caller frees.
        """
        return self._core.num_held_blocks()

    # References.

    def take(self, count: int) -> list[BlockId]:
        """Take the blocks that would be evicted next, with one reference each.

        Raises:
            InvalidValueError: Fewer than `count` blocks are free; nothing has changed.
        """
        check("count", count, COUNT)
        return self._core.take_blocks(count)

    def hold(self, block_ids: Sequence[BlockId]) -> None:
        """Take one more reference to each block.

        Raises:
            InvalidValueError: A block does not exist; nothing has changed.
        """
        check_counts("block_id", block_ids)
        self._core.hold_blocks(block_ids)

    def free(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference to each block; the block given first is evicted first.

        Raises:
            InvalidValueError: A block does not exist, or the caller does not hold it as often; a
                request's references are given back by `release`, `preempt` or `free_skipped`.
                Nothing has changed.
        """
        check_counts("block_id", block_ids)
        self._core.free_blocks(block_ids)

    # Hashes.

    def register(self, block_id: BlockId, group: int, block_hash: bytes, num_tokens: int) -> None:
        """Make a block findable by a hash, after the blocks that this hash already finds.

        No event records this.

        Args:
            block_id: The block.
            group: The group in which the block is found.
            block_hash: The hash of the whole prefix that the block ends.
            num_tokens: The length of that prefix; remembered for the first hash of a block.

        Raises:
            InvalidValueError: The block or the group does not exist, the block is the null block,
                or no engine's hashes have the length of this one.
        """
        try:
            self._core.register(block_id, group, block_hash, num_tokens)
        except NOT_TAKEN:
            check("block_id", block_id, COUNT)
            check("num_tokens", num_tokens, COUNT)
            check("group", group, self._group)
            check("block_hash", block_hash, bytes)
            raise

    def unregister(self, block_id: BlockId, group: int, block_hash: bytes) -> bool:
        """Remove one hash of a block; return whether the hash found the block.

        No event records this.

        Raises:
            InvalidValueError: The group does not exist, or no engine's hashes have the length of
                this one.
        """
        check("block_id", block_id, COUNT)
        check("group", group, self._group)
        check("block_hash", block_hash, bytes)
        return self._core.unregister(block_id, group, block_hash)

    def holders(self, group: int, block_hash: bytes) -> list[BlockId]:
        """Return the blocks that a hash finds, oldest first: a hit takes the first one.

        Raises:
            InvalidValueError: The group does not exist, or no engine's hashes have the length of
                this one.
        """
        check("group", group, self._group)
        check("block_hash", block_hash, bytes)
        return self._core.holders(group, block_hash)

    def describe(self, block_ids: Sequence[BlockId]) -> list[BlockInfo]:
        """Return the references and the first hash of each block.

        Raises:
            InvalidValueError: A block does not exist.
        """
        check_counts("block_id", block_ids)
        infos = self._core.describe(block_ids)
        return [BlockInfo(references, *(key or _NO_KEY)) for references, key in infos]

    def forget(self, block_ids: Sequence[BlockId]) -> None:
        """Drop the hashes of blocks, in this order. References to the blocks stay.

        Raises:
            InvalidValueError: A block does not exist.
        """
        check_counts("block_id", block_ids)
        self._core.forget(block_ids)
