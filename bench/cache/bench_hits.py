"""How many of the reusable tokens are reused if memory is just enough?

Twelve sessions take turns, six turns each. A session starts with a prompt of 4 096 tokens. Each
turn generates 64 tokens, and the next prompt contains them and 1 024 new tokens. The pool has a
share of the ideal footprint (for each session at its final length: every full block, one window,
one state), plus room for the blocks of a running first prompt. The rate counts from the second
turn on: tokens found, divided by the tokens that the session's previous turn left. Requests run
one at a time, each to its end.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from bench.cache.ours import OursByValue
from bench.cache.pair import rival
from bench.cache.side import (
    BLOCK,
    GEMMA3,
    GPT_OSS,
    QWEN3_NEXT,
    STATE,
    Factory,
    Groups,
    prefill,
    random_tokens,
)
from bench.harness.measure import Row, Slice, Target, counted

NUM_SESSIONS = 12
NUM_TURNS = 6
FIRST_PROMPT = 4_096
TURN_PROMPT = 1_024
TURN_OUTPUT = 64
FINAL_TOKENS = FIRST_PROMPT + (NUM_TURNS - 1) * TURN_PROMPT + NUM_TURNS * TURN_OUTPUT

Retentions: TypeAlias = Sequence[int | None]

OURS: Retentions = (8_192,)
"""Retention by value, with these intervals between checkpoints."""

RIVALS: Retentions = (None, 0)
"""Dense, and interval 0: only prompt ends and junctions, which is vLLM's default."""


LEAST: Final[Mapping[str, float]] = MappingProxyType(
    {
        "hit_rate_gemma3": 0.997,
        "hit_rate_gptoss": 0.99,
        "hit_rate_qwen3next": 0.99,
        "hit_rate_gemma3_tight": 0.556,
        "hit_rate_gptoss_tight": 0.61,
        "hit_rate_qwen3next_tight": 0.62,
    }
)
"""What ours must reach without the rival beside it."""


def ideal_blocks(groups: Groups, num_tokens: int) -> int:
    """Return the fewest blocks from which a prefix of `num_tokens` tokens can be resumed."""
    total = 0
    for group in groups:
        if group.window is not None:
            total += -(-(group.window - 1) // BLOCK)
        else:
            total += 1 if group == STATE else num_tokens // BLOCK
    return total


def running_blocks(groups: Groups) -> int:
    """Return the blocks that a first prompt takes while it runs: it reads one state and writes
    another."""
    return sum(2 if group == STATE else FIRST_PROMPT // BLOCK for group in groups)


def num_blocks(groups: Groups, share: float) -> int:
    """Return the size of the pool, its null block included."""
    footprint = NUM_SESSIONS * ideal_blocks(groups, FINAL_TOKENS)
    return int(share * footprint) + running_blocks(groups) + 1


def hit_rate(new: Factory, groups: Groups, share: float, retention: int | None) -> float:
    """Play all sessions through one cache."""
    cache = new(groups, num_blocks(groups, share), retention=retention)
    histories: list[list[int]] = [[] for _ in range(NUM_SESSIONS)]
    found = reusable = 0
    for turn in range(NUM_TURNS):
        for session, history in enumerate(histories):
            reusable += len(history)
            seed = turn * NUM_SESSIONS + session
            fresh = FIRST_PROMPT if turn == 0 else TURN_PROMPT
            tokens = random_tokens(seed, fresh + TURN_OUTPUT)
            history.extend(tokens[:fresh])
            request, hit = prefill(cache, groups, history)
            found += hit
            for token in tokens[fresh:-1]:  # The last token is generated, but never computed.
                cache.start_step()
                cache.decode([request], [token])
            history.extend(tokens[fresh:])
            cache.release(request)
    return found / reusable


def best(
    new: Factory, groups: Groups, share: float, retentions: Retentions
) -> Callable[[], float]:
    """Return what finds the highest rate among several retentions."""
    return lambda: max(hit_rate(new, groups, share, kept) for kept in retentions)


def row(name: str, groups: Groups, share: float) -> Row:
    """One model at one share of its ideal footprint. Its slice is all that ours does."""
    ours = best(OursByValue, groups, share, OURS)
    return Row(
        name=name,
        question=f"{share:g} x the ideal footprint, by value; the rival dense or interval 0",
        unit="hit tokens / reusable tokens",
        ours=counted(ours),
        rival=counted(best(rival, groups, share, RIVALS)),
        target=Target(least=0.99) if share >= 1 else Target(ratio=1),
        samples=1,
        slice=Slice(ours, Target(least=LEAST[name])),
        larger_is_better=True,
        beside={
            "rival, dense": counted(best(rival, groups, share, (None,))),
            "rival, interval 0": counted(best(rival, groups, share, (0,))),
        },
    )


PRELOAD = "bench.cache.rival"

ROWS = (
    row("hit_rate_gemma3", GEMMA3, 1.0),
    row("hit_rate_gptoss", GPT_OSS, 1.0),
    row("hit_rate_qwen3next", QWEN3_NEXT, 1.0),
    row("hit_rate_gemma3_tight", GEMMA3, 0.75),
    row("hit_rate_gptoss_tight", GPT_OSS, 0.75),
    row("hit_rate_qwen3next_tight", QWEN3_NEXT, 0.75),
)
