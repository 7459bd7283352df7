"""The interface to a cache, ours or the rival's, in the cache benchmarks; and the models they use.

Invariant: a benchmark is written once, against `MeasuredCache`. Both sides make the same calls in
the same order, and each call costs both sides one additional method call. The block size is 16,
all groups share one pool, and there are no draft tokens. Nothing here imports either cache,
because the rival is installed in an environment of its own.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
from kvbraid.cache import Match
from kvbraid.cache.chunk import ChunkRules, Position, chunk_rules
from kvbraid.spec import GroupSpec, SpecKind, Topology

BLOCK: Final = 16

STEP_TOKENS: Final = 8_192
"""The token budget of a step."""

RequestT = TypeVar("RequestT")

Groups: TypeAlias = tuple[GroupSpec, ...]


class MeasuredCache(Protocol[RequestT]):
    """The calls that both sides offer. A request is the value that `add` returned."""

    def add(self, tokens: list[int]) -> RequestT:
        """Make a request known; its hashes are computed here."""
        ...

    def match(self, request: RequestT) -> Match:
        """Look up what the request can reuse, and remember it for `allocate`."""
        ...

    def allocate(self, request: RequestT, num_new_tokens: int, hit: Match | None = None) -> None:
        """Allocate and commit; `hit` is given when a request starts."""
        ...

    def decode(self, requests: Sequence[RequestT], tokens: Sequence[int]) -> None:
        """Append one token to each request and allocate for it."""
        ...

    def release(self, request: RequestT) -> None:
        """Give the request's blocks back."""
        ...

    def start_step(self) -> None:
        """Begin an engine step."""
        ...

    def take_events(self) -> object:
        """Take a batch of the events since the last call."""
        ...

    def encoded(self, events: object) -> bytes:
        """Return the wire bytes of a batch of `take_events`, with time 0."""
        ...

    def blocks(self, request: RequestT) -> Sequence[Sequence[int]]:
        """Return the block table per group."""
        ...

    def forget(self, block_ids: Sequence[int]) -> None:
        """Drop the hashes of blocks."""
        ...

    def reset(self) -> None:
        """Drop the hashes of all blocks; no request may be running."""
        ...

    def num_free_blocks(self) -> int:
        """Count the blocks that can be handed out."""
        ...


AnyCache: TypeAlias = MeasuredCache[Any]


class Factory(Protocol):
    """Makes an empty cache. `retention` is an interval in tokens; None keeps all (dense)."""

    def __call__(
        self,
        groups: Groups,
        num_blocks: int,
        *,
        events: bool = False,
        retention: int | None = None,
    ) -> AnyCache:
        """Make the cache."""
        ...


FULL: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=BLOCK)
STATE: Final = GroupSpec(kind=SpecKind.MAMBA, block_size=BLOCK)


def window(tokens: int) -> GroupSpec:
    """Return a sliding-window group."""
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=BLOCK, window=tokens)


FULL_ONLY: Final[Groups] = (FULL,)
GPT_OSS: Final[Groups] = (FULL, window(128))
GEMMA3: Final[Groups] = (FULL, *[window(1_024)] * 5)
QWEN3_NEXT: Final[Groups] = (FULL, *[STATE] * 3)


def random_tokens(seed: int, count: int) -> list[int]:
    """Return random token ids of a large vocabulary."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, 150_000, count).tolist()
    return tokens


def prefill(cache: AnyCache, groups: Groups, tokens: list[int]) -> tuple[Any, int]:
    """Run a prompt as the engine does, chunk by chunk; return the request and its hit."""
    cache.start_step()
    request = cache.add(tokens)
    hit = cache.match(request)
    start, count = hit.num_tokens, len(tokens)
    while start < count:
        position = Position(
            start=start,
            num_prompt_tokens=count,
            num_tokens=count,
            budget=min(STEP_TOKENS, count - start),
            junction=hit.junction,
        )
        is_first = start == hit.num_tokens
        if not is_first:
            cache.start_step()
        chunk = rules(groups).plan(position)
        cache.allocate(request, chunk, hit if is_first else None)
        start += chunk
    return request, hit.num_tokens


@functools.cache
def rules(groups: Groups) -> ChunkRules:
    """Return where an engine that keeps states of these groups ends its chunks."""
    return chunk_rules(Topology(groups=groups), max_chunk_tokens=STEP_TOKENS)
