"""Two engines of one model at the same time: one on its own cache, one on ours.

Each runs in a process of its own on one thread, so that both start and answer at once.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from tests.vllm.live_engine import Answer, LiveEngine, LiveModel, running

SCHEDULER: Final = "kvbraid.integrations.vllm.KvbraidScheduler"

T = TypeVar("T")


def events_of(payload: bytes) -> list[Any]:
    """Return all of a payload but its time."""
    batch: list[Any] = msgspec.msgpack.decode(payload)
    return batch[1:]


class LivePair:
    """Two running engines, which are always asked the same."""

    def __init__(self, pool: ThreadPoolExecutor, theirs: LiveEngine, ours: LiveEngine) -> None:
        self._pool = pool
        self._engines = (theirs, ours)

    def _both(self, ask: Callable[[LiveEngine], T]) -> tuple[T, T]:
        theirs, ours = self._pool.map(ask, self._engines)
        return theirs, ours

    def generate_together(
        self, prompts: list[list[int]], max_tokens: int
    ) -> tuple[Answer, Answer]:
        """Have both answer prompts; return what came of them on its own cache, and on ours."""
        return self._both(lambda engine: engine.generate_together(prompts, max_tokens))

    def reset(self) -> tuple[bool, bool]:
        """Have both forget their cache; return whether they did."""
        return self._both(LiveEngine.reset)


@contextlib.contextmanager
def running_both(
    model: LiveModel, *, options: Mapping[str, object] = MappingProxyType({})
) -> Iterator[LivePair]:
    """Start the model's engine twice, with seeded weights; `options` are our scheduler's."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = (
            running(model, is_seeded=True),
            running(model, scheduler=SCHEDULER, options=options, is_seeded=True),
        )
        theirs, ours = pool.map(stack.enter_context, starts)
        yield LivePair(pool, theirs, ours)
