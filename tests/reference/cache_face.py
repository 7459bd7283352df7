"""The model's `pool` and `debug`, as `CacheManager` has them."""

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

    def take(self, count: int) -> list[int]:
        return self._memory().pool.take(count)

    def hold(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            self._memory().pool.touch(block)

    def free(self, block_ids: Sequence[int]) -> None:
        self._memory().pool.release(block_ids)

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
        self._memory().pool.check()
