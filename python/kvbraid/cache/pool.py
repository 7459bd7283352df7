"""Single blocks by hand: for connectors, which hold blocks and fill them.

Its law: a reference that is taken or handed out here is the caller's to drop with `free`. A hash
that is given to a block or taken from it by hand is recorded by no event; what an eviction or
`forget` takes away is recorded as always. Nothing here knows a request.
"""

from collections.abc import Sequence
from typing import Final

from kvbraid._native import CacheCore
from kvbraid.cache.counts import check_counts, check_group
from kvbraid.cache.step import BlockInfo
from kvbraid.ids import BlockId

_NO_KEY: Final = (None, None, 0)


class BlockPool:
    """The blocks of a cache: `CacheManager.pool`."""

    def __init__(self, core: CacheCore, *, num_blocks: int, num_groups: int) -> None:
        self._core = core
        self.num_blocks = num_blocks
        self._num_groups = num_groups

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return self._core.num_free_blocks()

    @property
    def usage(self) -> float:
        """Share of the pool that is referenced, 0 to 1."""
        return 1.0 - self.num_free / (self.num_blocks - 1)

    # References.

    def take(self, count: int) -> list[BlockId]:
        """Take the next victims, with one reference each.

        Raises:
            InvalidValueError: Fewer are free; nothing has changed.
        """
        check_counts(count=count)
        return self._core.take_blocks(count)

    def hold(self, block_ids: Sequence[BlockId]) -> None:
        """Take one more reference of each block.

        Raises:
            InvalidValueError: A block that does not exist; nothing has changed.
        """
        check_counts(block_id=min(block_ids, default=0))
        self._core.hold_blocks(block_ids)

    def free(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference of each block; what is given first is evicted first.

        Raises:
            InvalidValueError: A block that does not exist, or has no such reference.
        """
        check_counts(block_id=min(block_ids, default=0))
        self._core.free_blocks(block_ids)

    # Hashes.

    def register(self, block_id: BlockId, group: int, block_hash: bytes, num_tokens: int) -> None:
        """Make a block findable by a hash, after those that are found by it. No event records it.

        Args:
            block_id: The block.
            group: In which group.
            block_hash: The hash of the whole prefix that the block ends.
            num_tokens: Of that prefix; remembered for the first hash of a block.

        Raises:
            InvalidValueError: A block or a group that does not exist, the null block, or a hash
                of a length that no engine's hashes have.
        """
        check_counts(block_id=block_id, num_tokens=num_tokens)
        check_group(group, self._num_groups)
        self._core.register(block_id, group, block_hash, num_tokens)

    def unregister(self, block_id: BlockId, group: int, block_hash: bytes) -> bool:
        """Take one hash of a block away; return whether it was found by it. No event records it.

        Raises:
            InvalidValueError: A group that does not exist, or a hash of a length that no engine's
                hashes have.
        """
        check_counts(block_id=block_id)
        check_group(group, self._num_groups)
        return self._core.unregister(block_id, group, block_hash)

    def holders(self, group: int, block_hash: bytes) -> list[BlockId]:
        """Return the blocks that are found by a hash, oldest first: the first is what a hit takes.

        Raises:
            InvalidValueError: A group that does not exist, or a hash of a length that no engine's
                hashes have.
        """
        check_group(group, self._num_groups)
        return self._core.holders(group, block_hash)

    def describe(self, block_ids: Sequence[BlockId]) -> list[BlockInfo]:
        """Return what is known of each block.

        Raises:
            InvalidValueError: A block that does not exist.
        """
        infos = self._core.describe(block_ids)
        return [BlockInfo(references, *(key or _NO_KEY)) for references, key in infos]

    def forget(self, block_ids: Sequence[BlockId]) -> None:
        """Drop the hashes of blocks, in this order; the blocks stay with their owners.

        Raises:
            InvalidValueError: A block that does not exist.
        """
        check_counts(block_id=min(block_ids, default=0))
        self._core.forget(block_ids)
