"""The smallest engine around a cache: one request at a time, a step at a time.

Its law is the order in which a real engine's scheduler asks: a step starts, the first one looks
up, blocks are allocated for one chunk, the ends of copies are freed, a token is generated when
all known ones are computed, a finished request gives its blocks back, and only then are the
step's events taken. The last generated token is never computed. It computes nothing itself:
generated tokens come with the request.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Generic, Protocol, TypeVar

from kvbraid.cache.chunk import ChunkRules, Position, plan_chunk
from kvbraid.cache.step import Match, Need
from kvbraid.errors import InvalidValueError, TooLargeError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys


class Fit(Protocol):
    """What an allocation says: how many of the requests, in order, it served."""

    @property
    def num_fit(self) -> int: ...  # noqa: D102


class Batch(Protocol):
    """The events of one step."""

    def __len__(self) -> int: ...


BatchT = TypeVar("BatchT", bound=Batch)
Batch_co = TypeVar("Batch_co", bound=Batch, covariant=True)


class Cache(Protocol[Batch_co]):
    """The calls that a scheduler makes; `kvbraid.cache.CacheManager` explains each."""

    def add(  # noqa: D102
        self, tokens: Sequence[int], *, extra: ExtraKeys = ..., lora_id: int | None = ...
    ) -> int: ...
    def extend(self, request: int, tokens: Sequence[int]) -> None: ...  # noqa: D102
    def match(self, request: int) -> Match: ...  # noqa: D102
    def allocate(self, needs: Sequence[Need]) -> Fit: ...  # noqa: D102
    def release(self, requests: Sequence[int]) -> None: ...  # noqa: D102
    def free_blocks(self, block_ids: Sequence[int]) -> None: ...  # noqa: D102
    def start_step(self) -> None: ...  # noqa: D102
    def take_copies(self) -> Sequence[tuple[int, int]]: ...  # noqa: D102
    def take_events(self) -> Batch_co: ...  # noqa: D102


class SequentialScheduler(Generic[BatchT]):
    """Runs requests over a cache; `publish` gets the events of every step that had some."""

    def __init__(
        self,
        cache: Cache[BatchT],
        *,
        rules: ChunkRules,
        max_step_tokens: int,
        publish: Callable[[BatchT], object],
    ) -> None:
        self._cache = cache
        self._rules = rules
        self._max_step_tokens = max_step_tokens
        self._publish = publish

    def run(
        self,
        prompt: Sequence[int],
        outputs: Sequence[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
        *,
        lora_id: int | None = None,
    ) -> int:
        """Run one request to its end and return the tokens it reused.

        Raises TooLargeError when the pool is short of blocks, InvalidValueError for an empty
        prompt; what the request did until then is published.
        """
        if not prompt:
            raise InvalidValueError("the prompt has 0 tokens; give at least one")
        request = self._cache.add(prompt, extra=extra, lora_id=lora_id)
        try:
            return self._compute(request, len(prompt), outputs)
        finally:
            self._cache.release([request])
            self._end_step()

    def _compute(self, request: int, num_prompt_tokens: int, outputs: Sequence[int]) -> int:
        """Take every step; the last one is ended by the caller."""
        self._cache.start_step()
        match = self._cache.match(request)
        computed, num_tokens, left = match.num_tokens, num_prompt_tokens, deque(outputs)
        hit: Match | None = match
        while True:
            position = Position(
                start=computed,
                num_prompt_tokens=num_prompt_tokens,
                num_tokens=num_tokens,
                budget=min(self._max_step_tokens, num_tokens - computed),
                junction=match.junction,
            )
            chunk = plan_chunk(self._rules, position)
            self._allocate(request, chunk, hit)
            hit = None
            computed += chunk
            if computed == num_tokens:
                if left:
                    self._cache.extend(request, [left.popleft()])
                    num_tokens += 1
                if not left:
                    return match.num_tokens
            self._end_step()
            self._cache.start_step()

    def _allocate(self, request: int, num_new_tokens: int, hit: Match | None) -> None:
        """Get blocks for a chunk; the first one also takes what the match found."""
        need = Need(
            request=request,
            num_new_tokens=num_new_tokens,
            num_hit_tokens=hit.num_tokens if hit else 0,
            junction=hit.junction if hit else None,
        )
        if not self._cache.allocate([need]).num_fit:
            raise TooLargeError(
                f"{num_new_tokens} more tokens of request {request} do not fit into the free "
                "blocks: finish a request or enlarge the pool"
            )
        # Nothing is computed, so the copies are as good as done.
        self._cache.free_blocks(list(chain.from_iterable(self._cache.take_copies())))

    def _end_step(self) -> None:
        events = self._cache.take_events()
        if len(events):
            self._publish(events)
