"""What tests and people look at in a cache. No engine needs it, and nothing here changes anything.

Most calls walk the whole cache.
"""

from collections.abc import Sequence

from kvbraid._native import CacheCore
from kvbraid.cache.counts import check_group
from kvbraid.cache.step import Checkpoint, Cursor
from kvbraid.ids import BlockId


class CacheDebug:
    """The inside of a cache: `CacheManager.debug`."""

    def __init__(self, core: CacheCore, *, num_groups: int) -> None:
        self._core = core
        self._num_groups = num_groups

    def cached(self) -> dict[tuple[int, bytes], list[BlockId]]:
        """Return everything findable: (group, hash) to its copies, oldest first."""
        return {(group, digest): copies for group, digest, copies in self._core.cached()}

    def free_queue(self) -> list[BlockId]:
        """Return the free blocks, next victim first.

        Blocks that checkpoints keep are free, but in no queue: see `checkpoints`.
        """
        return self._core.free_queue()

    def checkpoints(self) -> list[Checkpoint]:
        """Return what is let go when the free queue is empty, least value first (`ByValue`)."""
        return [Checkpoint(*checkpoint) for checkpoint in self._core.checkpoints()]

    def cursors(self, request: int) -> list[Cursor]:
        """Return how far each table of a request is.

        Raises:
            UnknownError: The request is not known.
        """
        return [Cursor(*cursor) for cursor in self._core.cursors(request)]

    def fresh_states(self) -> set[tuple[int, bytes]]:
        """Return the groups and hashes of the states that are written in this step.

        Nobody can resume from them before the next one.
        """
        return set(self._core.fresh_states())

    def kept_blocks(
        self, group: int, blocks: range, boundaries: Sequence[int]
    ) -> list[bool] | None:
        """Return which of a group's blocks the retention keeps of a request; None: all of them.

        Args:
            group: The group.
            blocks: Positions in the request's table, one after the other.
            boundaries: Where others are expected to resume, in tokens.

        Raises:
            InvalidValueError: A group that does not exist.
        """
        check_group(group, self._num_groups)
        return self._core.kept_blocks(group, blocks, boundaries)

    def memory_bytes(self) -> int:
        """Return the bytes that blocks, hashes and checkpoints take, by capacity."""
        return self._core.memory_bytes()

    def check_integrity(self, outside: Sequence[BlockId] = ()) -> None:
        """Panic unless blocks, hashes and requests agree.

        `outside`: one entry per reference that the caller holds: popped blocks, those of
        `pool.take` and `pool.hold`, the ends of copies that the caller frees.
        """
        self._core.check_integrity(outside)
