"""The smallest engine around a cache: one request at a time, a step at a time.

The law of `SequentialScheduler` is the order in which a real engine's scheduler asks: a step
starts, the first one looks up, blocks are allocated for one chunk, the step's work is taken, a
token is generated when all known ones are computed, a finished request gives its blocks back, and
only then are the step's events taken. The last generated token is never computed. It computes
nothing itself: generated tokens come with the request.

`chunk_ends` and `chunks` are the parts of that order that whoever drives a cache by hand shares:
where the steps of a prompt end, and what each of them asks for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from kvbraid.cache.chunk import ChunkRules, Position
from kvbraid.cache.step import Match, Need
from kvbraid.errors import InvalidValueError, TooLargeError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys


class Fit(Protocol):
    """What an allocation says."""

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
        """Return what the request could reuse now; nothing changes."""
        ...

    def allocate(self, needs: Sequence[Need]) -> Fit:
        """Give requests their blocks, as far as the pool has them, and register full ones."""
        ...

    def release(self, requests: Sequence[int]) -> None:
        """Give back the blocks of requests that are not known any more from now on."""
        ...

    def start_step(self) -> None:
        """Begin a step."""
        ...

    def take_work(self) -> object:
        """Return what the device must do before the step computes."""
        ...

    def take_events(self) -> Events_co:
        """Return what has happened since the last call."""
        ...


class Chunk(NamedTuple):
    """What one step computes of a request; `hit` is what the first step reuses, then None."""

    num_tokens: int
    hit: Match | None = None

    def need(self, request: int) -> Need:
        """Return what the request asks of that step."""
        return Need(
            request=request,
            num_new_tokens=self.num_tokens,
            num_hit_tokens=self.hit.num_tokens if self.hit else 0,
            junction=self.hit.junction if self.hit else None,
        )


def chunk_ends(
    rules: ChunkRules, match: Match, num_tokens: int, *, max_step_tokens: int
) -> Iterator[int]:
    """Yield where the steps end that compute a prompt, from the end of its hit on."""
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
    """Runs requests over a cache; `publish` gets the events of every step that had some."""

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
        """Run a request that the cache knows already, as `run` does."""
        try:
            return self._compute(request, num_prompt_tokens, outputs)
        finally:
            self._cache.release([request])
            self._end_step()

    def _compute(self, request: int, num_prompt_tokens: int, outputs: Sequence[int]) -> int:
        """Take every step; the last one is ended by the caller."""
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
            if number:  # The first token is generated by the step that ends the prompt.
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
