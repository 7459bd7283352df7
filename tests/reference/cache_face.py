"""The model's `pool` and `debug`, as `CacheManager` has them."""

from collections import Counter
from collections.abc import Callable, Sequence

from tests.reference.cache_memory import Memory


class ModelPool:
    """See `kvbraid.cache.BlockPool`. The model's memory is asked for anew, as it is copied."""

    def __init__(self, memory: Callable[[], Memory]) -> None:
        self._memory = memory

    @property
    def num_free(self) -> int:
        return self._memory().pool.num_free

    @property
    def usage(self) -> float:
        usable = self._memory().pool.num_blocks - 1
        return 1.0 - self.num_free / usable if usable else 0.0

    @property
    def num_held(self) -> int:
        return len(+self._memory().held)

    def take(self, count: int) -> list[int]:
        taken = self._memory().pool.take(count)
        self._memory().held.update(taken)
        return taken

    def hold(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            self._memory().pool.touch(block)
        self._memory().held.update(block_ids)
        self._memory().counts["num_held_blocks"] += len(block_ids)

    def free(self, block_ids: Sequence[int]) -> None:
        self._memory().pool.release(block_ids)
        self._memory().held.subtract(block_ids)

    def forget(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            self._memory().pool.forget(block)


class ModelDebug:
    """See `kvbraid.cache.CacheDebug`."""

    def __init__(self, memory: Callable[[], Memory]) -> None:
        self._memory = memory

    def cached(self) -> dict[tuple[int, bytes], list[int]]:
        return {key: list(blocks) for key, blocks in self._memory().pool.copies.items()}

    def free_queue(self) -> list[int]:
        return list(self._memory().pool.free)

    def check_integrity(self) -> None:
        memory = self._memory()
        memory.pool.check()
        tables = [table.blocks for known in memory.requests.values() for table in known.tables]
        pending = [pair for group in memory.groups for pair in group.copies]
        references = Counter(block for blocks in (*tables, *pending) for block in blocks if block)
        references += Counter(memory.being_copied) + memory.held
        assert memory.pool.references == references
