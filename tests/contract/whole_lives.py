"""A cache and a scheduler that runs whole requests on it, with a record of what each said."""

from collections.abc import Sequence
from typing import Any

from kvbraid.cache import CacheConfig
from kvbraid.events.model import BlockRemoved, BlockStored, Event
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.sim.one_by_one import OneByOne


class Engine:
    """A manager or a model; `said` has the events of each step of the last request.

    The integrity of the cache is checked after each.
    """

    def __init__(self, cache: Any, config: CacheConfig, max_step_tokens: int = 1024) -> None:  # noqa: ANN401
        self.cache = cache
        self.said: list[tuple[Event, ...]] = []
        self._scheduler = OneByOne(cache, max_step_tokens=max_step_tokens, publish=self.publish)

    def publish(self, events: Any) -> None:  # noqa: ANN401 - the model's are structs already
        self.said.append(events if isinstance(events, tuple) else events.structs())

    def run(
        self,
        prompt: Sequence[int],
        outputs: Sequence[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
    ) -> int:
        """Return how many tokens were reused."""
        self.said.clear()
        try:
            return self._scheduler.run(prompt, outputs, extra)
        finally:
            self.cache.debug.check_integrity()

    def hit(self, prompt: Sequence[int], extra: ExtraKeys = NO_EXTRA_KEYS) -> int:
        """Return what a request would reuse now."""
        request = self.cache.add(prompt, extra=extra)
        found: int = self.cache.match(request).num_tokens
        self.cache.release([request])
        return found

    def stores(self) -> list[BlockStored]:
        return [event for step in self.said for event in step if isinstance(event, BlockStored)]

    def removed(self) -> list[int]:
        events = [event for step in self.said for event in step if isinstance(event, BlockRemoved)]
        return [digest for event in events for digest in event.block_hashes]
