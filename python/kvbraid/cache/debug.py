"""A view into a cache for tests and for people. No engine needs it, and no call changes anything.

Most calls walk the whole cache.
"""

from collections.abc import Sequence

from kvbraid._native import CacheCore
from kvbraid.cache.counts import group_of
from kvbraid.cache.step import Checkpoint, Cursor
from kvbraid.ids import BlockId
from kvbraid.reading import check


class CacheDebug:
    """The inside of a cache: `CacheManager.debug`."""

    def __init__(self, core: CacheCore, *, num_groups: int) -> None:
        self._core = core
        self._group = group_of(num_groups)

    def cached(self) -> dict[tuple[int, bytes], list[BlockId]]:
        """Return every block that a hash finds: (group, hash) to its copies, oldest first."""
        return {(group, digest): copies for group, digest, copies in self._core.cached()}

    def free_queue(self) -> list[BlockId]:
        """Return the free blocks; the one that is evicted next comes first.

        Blocks that checkpoints keep are free but not in this queue: see `checkpoints`.
        """
        return self._core.free_queue()

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that are evicted once the free queue is empty (`ByValue`).

        The one with the least value comes first.
        """
        return [Checkpoint(*checkpoint) for checkpoint in self._core.checkpoints()]

    def cursors(self, request: int) -> list[Cursor]:
        """Return the progress of each of a request's tables.

        Raises:
            UnknownError: The request is not known.
        """
        return [Cursor(*cursor) for cursor in self._core.cursors(request)]

    def fresh_states(self) -> set[tuple[int, bytes]]:
        """Return the groups and hashes of the states that are written in this step.

        No request can resume from them before the next step.
        """
        return set(self._core.fresh_states())

    def kept_blocks(
        self, group: int, blocks: range, boundaries: Sequence[int]
    ) -> list[bool] | None:
        """Return which of a request's blocks in a group the retention keeps; None: all of them.

        Args:
            group: The group.
            blocks: Consecutive positions in the request's table.
            boundaries: Where other requests are expected to resume, in tokens.

        Raises:
            InvalidValueError: The group does not exist.
        """
        check("group", group, self._group)
        return self._core.kept_blocks(group, blocks, boundaries)

    def memory_bytes(self) -> int:
        """Return the bytes that are allocated for blocks, hashes and checkpoints."""
        return self._core.memory_bytes()

    def check_integrity(self, outside: Sequence[BlockId] = ()) -> None:
        """Panic unless blocks, hashes and requests agree.

        `outside` lists one block per reference that the caller holds, no more and no fewer: blocks
        that were popped, blocks of `pool.take` and `pool.hold`, and the ends of copies that the
        caller frees.
        """
        self._core.check_integrity(outside)
