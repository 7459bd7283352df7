"""Plays requests through a cache, one at a time, and counts what is reused.

Invariant: every policy gets the same requests, in steps of at most `STEP_TOKENS` tokens, planned
as an engine plans them. What is counted begins after a warm-up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

from kvbraid.cache import (
    ByValue,
    CacheConfig,
    CacheManager,
    Dense,
    Interval,
    Match,
    Need,
    Retention,
)
from kvbraid.spec import GroupSpec, SpecKind, Topology

from bench.retention.workloads import Ask, Tokens

STEP_TOKENS: Final = 8_192
WARM_UP: Final = 500
"""Requests that are not counted."""


def full(block_size: int = 16) -> GroupSpec:
    """A group of full attention."""
    return GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=block_size)


def window(tokens: int) -> GroupSpec:
    """A group of windows."""
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=tokens)


def state() -> GroupSpec:
    """A group of states."""
    return GroupSpec(kind=SpecKind.MAMBA, block_size=64)


@dataclass(frozen=True, slots=True)
class Model:
    """The groups of a model, and three pools in blocks."""

    groups: tuple[GroupSpec, ...]
    pools: tuple[int, int, int]

    @property
    def unit(self) -> int:
        """Hits are multiples of this many tokens."""
        return self.groups[-1].block_size

    @property
    def has_states(self) -> bool:
        """Whether where steps end decides what can be resumed."""
        return any(group.kind is SpecKind.MAMBA for group in self.groups)

    @property
    def rivals(self) -> dict[str, Retention]:
        """The engine's policies; all are the same where every block is kept."""
        dense: dict[str, Retention] = {"dense": Dense()}
        if all(group.kind is SpecKind.FULL_ATTENTION for group in self.groups):
            return dense
        intervals = {"interval-0": 0, "interval-1k": 1_024, "interval-8k": 8_192}
        return dense | {name: Interval(tokens) for name, tokens in intervals.items()}


MODELS: Final = {
    "full": Model((full(),), (600, 1_500, 4_000)),
    "gptoss": Model((window(128), full()), (600, 1_500, 4_000)),
    "gemma": Model((window(512),) * 4 + (full(),), (1_200, 3_000, 8_000)),
    "mamba": Model((state(), state(), state(), full(64)), (150, 400, 1_000)),
}
"""Shapes of groups like those of models that people run, small enough to fill a pool soon."""

OURS: Final = ByValue()


class Engine:
    """One cache, and the steps that an engine would make with it."""

    def __init__(self, model: Model, num_blocks: int, retention: Retention) -> None:
        topology = Topology(groups=model.groups)
        self.cache = CacheManager(
            CacheConfig(topology=topology, num_blocks=num_blocks, retention=retention)
        )
        self.has_states = model.has_states
        self.num_steps = 0

    def serve(self, tokens: Tokens, hint: bool | None = None) -> int:
        """Compute a prompt to its end, of which `hint` is said; return how much was reused."""
        cache = self.cache
        request = cache.add(tokens, will_return=hint)
        cache.start_step()
        match = cache.match(request)
        done, first = match.num_tokens, True
        while done < len(tokens):
            need = Need(request=request, num_new_tokens=min(STEP_TOKENS, len(tokens) - done))
            if self.has_states:
                need.num_new_tokens = cache.plan_chunk(
                    request,
                    need.num_new_tokens,
                    match=match if first else Match(0, 0),
                    max_chunk_tokens=STEP_TOKENS,
                )
            if first:
                need.num_hit_tokens, need.junction = done, match.junction
            assert cache.allocate([need]).num_fit == 1
            first = False
            done += need.num_new_tokens
            self.num_steps += 1
            cache.start_step()
        cache.release([request])
        return match.num_tokens


def hit_rate(
    model: Model,
    num_blocks: int,
    retention: Retention,
    asks: Iterable[Ask],
    *,
    hints: Sequence[bool] = (),
    warm_up: int = WARM_UP,
) -> float:
    """Return the reused share of the reusable tokens after the warm-up, in percent.

    Requests that the empty pool cannot hold are left out. `hints` say of the first requests
    whether a later one goes on from their end.
    """
    engine = Engine(model, num_blocks, retention)
    reused = reusable = 0
    for number, (ask, hint) in enumerate(zip(asks, chain(hints, repeat(None)), strict=False)):
        if engine.cache.can_ever_fit(len(ask.tokens)):
            hit = engine.serve(ask.tokens, hint)
            if number >= warm_up:
                reused += min(hit, ask.reusable)
                reusable += ask.reusable
    return 100 * reused / max(reusable, 1)
