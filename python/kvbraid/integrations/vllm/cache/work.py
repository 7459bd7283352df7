"""The work of a step in three parts: vLLM asks separately for states, copies and blocks to zero.

Invariant: each part is handed out once, in whatever order vLLM asks. vLLM frees both ends of
copies itself, because it may start a step before the previous one has run.
"""

from typing import TypeVar

from kvbraid.cache import CacheManager, Work
from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache.requests import Requests

T = TypeVar("T")


class StepWork:
    """Work that was taken from the cache and that vLLM has not asked for yet."""

    def __init__(self, cache: CacheManager, requests: Requests) -> None:
        self._cache = cache
        self._requests = requests
        self._left = Work([], [], [])

    def start_step(self) -> None:
        """Begin a step; states that vLLM did not ask for are dropped."""
        self._left.kept_states.clear()
        self._cache.start_step()

    def take_copies(self) -> list[tuple[BlockId, BlockId]]:
        """Take the copies, as (source, destination); the caller has to free both blocks."""
        return _drain(self._gather().copies)

    def take_blocks_to_zero(self) -> list[BlockId]:
        """Take the blocks to zero."""
        return _drain(self._gather().blocks_to_zero)

    def take_states(self) -> dict[str, list[tuple[int, int, int]]]:
        """Take the states that a connector may store, by request: group, block, tokens."""
        taken: dict[str, list[tuple[int, int, int]]] = {}
        for state in sorted(_drain(self._gather().kept_states), key=lambda state: state.group):
            request_id = self._requests.id_of(state.request)
            if request_id is not None:  # The request may have ended since.
                taken.setdefault(request_id, []).append(state[1:])
        return taken

    def _gather(self) -> Work:
        work = self._cache.take_work(caller_frees=True)
        self._left.copies.extend(work.copies)
        self._left.blocks_to_zero.extend(work.blocks_to_zero)
        self._left.kept_states.extend(work.kept_states)
        return self._left


def _drain(items: list[T]) -> list[T]:
    taken = items.copy()
    items.clear()
    return taken
