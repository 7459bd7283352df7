"""The smallest engine around a cache: it runs one request at a time, step by step.

The law of `SequentialScheduler` is to make the calls in the order of a real engine's scheduler.
A step starts. The request's first step looks the request up. Blocks are allocated for one chunk,
and the step's work is taken. A token is generated once all known tokens are computed. A finished
request gives its blocks back, and only then are the step's events taken. The last generated token
is never computed. The scheduler computes nothing itself: generated tokens come with the request.

Code that drives a cache by hand shares `chunk_ends` and `chunks`: where the steps of a prompt end,
and what each step asks for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from kvbraid.cache.chunk import ChunkRules, Position
from kvbraid.cache.step import Match, Need
from kvbraid.errors import InvalidValueError, TooLargeError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys


class Fit(Protocol):
    """The part of an allocation's result that a scheduler reads."""

    @property
    def num_fit(self) -> int:
        """How many of the requests, in order, the allocation served."""
        ...


class StepEvents(Protocol):
    """The events of one step."""

    def __len__(self) -> int:
        """Count the events; a step without any is not published."""
        ...


EventsT = TypeVar("EventsT", bound=StepEvents)
Events_co = TypeVar("Events_co", bound=StepEvents, covariant=True)


class Cache(Protocol[Events_co]):
    """The calls that a scheduler makes, as `kvbraid.cache.CacheManager` answers them."""

    def add(
        self, tokens: Sequence[int], *, extra: ExtraKeys = ..., lora_id: int | None = ...
    ) -> int:
        """Make a request known and return its number."""
        ...

    def extend(self, request: int, tokens: Sequence[int]) -> None:
        """Append tokens that the request has generated."""
        ...

    def match(self, request: int) -> Match:
        """Return how much the request could reuse now; nothing changes."""
        ...

    def allocate(self, needs: Sequence[Need]) -> Fit:
        """Give requests their blocks, as far as the pool has enough; register computed blocks."""
        ...

    def release(self, requests: Sequence[int]) -> None:
        """Give back the blocks of requests and forget the requests."""
        ...

    def start_step(self) -> None:
        """Begin a step."""
        ...

    def take_work(self) -> object:
        """Return what the device must do before the step computes."""
        ...

    def take_events(self) -> Events_co:
        """Return the events since the last call."""
        ...


class Chunk(NamedTuple):
    """What one step computes of a request. Only the first step has a `hit`: what it reuses."""

    num_tokens: int
    hit: Match | None = None

    def need(self, request: int) -> Need:
        """Return what the request asks for in that step."""
        return Need(
            request=request,
            num_new_tokens=self.num_tokens,
            num_hit_tokens=self.hit.num_tokens if self.hit else 0,
            junction=self.hit.junction if self.hit else None,
        )


def chunk_ends(
    rules: ChunkRules, match: Match, num_tokens: int, *, max_step_tokens: int
) -> Iterator[int]:
    """Yield the ends of the steps that compute a prompt, starting at the end of its hit."""
    end = match.num_tokens
    while end < num_tokens:
        position = Position(
            start=end,
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            budget=min(max_step_tokens, num_tokens - end),
            junction=match.junction,
        )
        chunk = rules.plan(position)
        assert chunk > 0, f"no chunk of {max_step_tokens} tokens can be planned at {position}"
        end += chunk
        yield end


def chunks(match: Match, ends: Iterable[int]) -> Iterator[Chunk]:
    """Yield what each step computes of a prompt whose steps end at `ends`."""
    start = match.num_tokens
    hit: Match | None = match
    for end in ends:
        yield Chunk(end - start, hit)
        start, hit = end, None


class SequentialScheduler(Generic[EventsT]):
    """Runs requests over a cache; `publish` is called with the events of a step that has any."""

    def __init__(
        self,
        cache: Cache[EventsT],
        *,
        rules: ChunkRules,
        max_step_tokens: int,
        publish: Callable[[EventsT], object],
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
        return self.finish(request, len(prompt), outputs)

    def finish(self, request: int, num_prompt_tokens: int, outputs: Sequence[int] = ()) -> int:
        """Run a request that the cache already knows, in the same way as `run`."""
        try:
            return self._compute(request, num_prompt_tokens, outputs)
        finally:
            self._cache.release([request])
            self._end_step()

    def _compute(self, request: int, num_prompt_tokens: int, outputs: Sequence[int]) -> int:
        """Run every step; the caller ends the last one."""
        self._cache.start_step()
        match = self._cache.match(request)
        ends = chunk_ends(
            self._rules, match, num_prompt_tokens, max_step_tokens=self._max_step_tokens
        )
        for chunk in chunks(match, ends):
            if chunk.hit is None:
                self._next_step()
            self._allocate(request, chunk)
        for number, token in enumerate(outputs):
            if number:  # The step that ends the prompt generates the first token.
                self._next_step()
                self._allocate(request, Chunk(1))
            self._cache.extend(request, [token])
        return match.num_tokens

    def _allocate(self, request: int, chunk: Chunk) -> None:
        if not self._cache.allocate([chunk.need(request)]).num_fit:
            raise TooLargeError(
                f"{chunk.num_tokens} more tokens of request {request} do not fit into the free "
                "blocks: finish a request or enlarge the pool"
            )
        self._cache.take_work()

    def _next_step(self) -> None:
        self._end_step()
        self._cache.start_step()

    def _end_step(self) -> None:
        events = self._cache.take_events()
        if len(events):
            self._publish(events)
