"""Traces small enough to work out by hand, and what each policy reuses of them.

Blocks have 16 tokens, and windows see 32: a resume reads the two blocks before it. Prompts have
eight blocks and one token.
"""

from collections.abc import Sequence
from typing import Final

import pytest
from kvbraid.cache import ByValue, Dense, Interval, Retention
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.policies import CACHE_POLICIES, retention_of
from kvbraid.sim.traces.simulation import HitRate, simulate
from kvbraid.sim.traces.trace import Trace, TraceRequest
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
WINDOW: Final = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=32)
CHUNKED: Final = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=64)
STATE: Final = GroupSpec(kind=SpecKind.MAMBA, block_size=16)
PROMPT_TOKENS: Final = 8 * 16 + 1
AMPLE: Final = 1_000


def model(*groups: GroupSpec) -> SimulatedModel:
    return SimulatedModel(name="m", topology=Topology(groups=groups), block_bytes=1)


def trace(prompts: Sequence[Sequence[int]], num_tokens: int = PROMPT_TOKENS) -> Trace:
    """One conversation per prompt; an id is 16 tokens."""
    requests = [TraceRequest(at, num_tokens, ids) for at, ids in enumerate(prompts)]
    return Trace(
        name="t", block_tokens=16, num_requests=len(requests), play=lambda: iter(requests)
    )


A: Final = [1, 2, 3, 4, 5, 6, 7, 8]
B: Final = [1, 2, 3, 4, 15, 16, 17, 18]
C: Final = [1, 2, 3, 4, 25, 26, 27, 28]
OTHER: Final = [31, 32, 33, 34, 35, 36, 37, 38]


def hits(groups: Sequence[GroupSpec], retention: Retention, num_blocks: int = AMPLE) -> int:
    """Of A, two that branch off it after 64 tokens, and A again."""
    return simulate(trace([A, B, C, A]), model(*groups), num_blocks, retention).hit_tokens


@pytest.mark.parametrize(
    ("groups", "retention", "expected"),
    [
        # Every block is kept: B and C reuse 64 tokens, A 128, for one has to be computed.
        ([FULL], Dense(), 64 + 64 + 128),
        # All windows are kept, so nothing is lost.
        ([WINDOW, FULL], Dense(), 64 + 64 + 128),
        # Windows at prompt ends alone: B finds none at 64 and makes one, as a junction, for C.
        ([WINDOW, FULL], Interval(0), 0 + 64 + 128),
        # A window every 64 tokens is there for B too.
        ([WINDOW, FULL], Interval(64), 64 + 64 + 128),
        # A window every 48 tokens: B resumes at 48, and makes one at its junction, for C.
        ([WINDOW, FULL], Interval(48), 48 + 64 + 128),
        # A state exists where a chunk ended, at 128; B ends one at 64, its junction, for C.
        ([STATE, FULL], Dense(), 0 + 64 + 128),
        ([STATE, FULL], Interval(0), 0 + 64 + 128),
        ([STATE, FULL], Interval(64), 0 + 64 + 128),
    ],
)
def test_what_a_policy_keeps_is_reused(
    groups: list[GroupSpec], retention: Retention, expected: int
) -> None:
    assert hits(groups, retention) == expected


def test_a_pool_of_one_prompt_loses_tails_first() -> None:
    """Nine blocks and the null block: each prompt pins the shared four and evicts the rest."""
    assert hits([FULL], Dense(), num_blocks=10) == 3 * 64


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        # A second prompt takes 10 unused blocks and 8 of the first: its two partial ones and the
        # windows of its tail, so that it resumes at 32; and so do all after it.
        (Dense(), 32 + 32),
        # The first left 8 blocks that nobody can find: nothing is evicted.
        (Interval(0), 128 + 128),
    ],
)
def test_windows_that_serve_no_resume_cost_the_hits_of_others(
    retention: Retention, expected: int
) -> None:
    played = trace([A, OTHER, A, OTHER])
    result = simulate(played, model(WINDOW, FULL), 1 + 28, retention)
    assert result.hit_tokens == expected


def test_what_can_never_fit_is_counted_and_left_out() -> None:
    short = TraceRequest(0, 17, [1])
    long = TraceRequest(1, 33, [1, 2])
    played = Trace(
        name="t", block_tokens=16, num_requests=4, play=lambda: [short, long, short, long]
    )
    result = simulate(played, model(FULL), 1 + 2, Dense())
    assert result == HitRate(
        num_blocks=3, num_requests=2, num_left_out=2, prompt_tokens=34, hit_tokens=16
    )
    assert result.rate == 16 / 34
    assert result.to_json()["hit_rate"] == round(16 / 34, 6)


def test_nothing_that_fits_is_a_rate_of_zero() -> None:
    assert simulate(trace([A]), model(FULL), 3, Dense()).rate == 0.0


def test_a_window_is_kept_where_the_trace_knows_the_prompt_to_end() -> None:
    """A turn of 100 tokens, of which the trace knows 64, and the next one, which knows more. Were
    the windows kept at 96, the last place to resume at, the next turn would find none at 64."""
    ids = [1, 2]
    turns = [TraceRequest(0, 100, ids[:1]), TraceRequest(0, 200, ids)]
    played = Trace(name="t", block_tokens=64, num_requests=2, play=lambda: turns)
    result = simulate(played, model(WINDOW, FULL), AMPLE, Interval(0))
    assert (result.hit_tokens, result.prompt_tokens) == (64, 300)


def test_long_prompts_are_computed_in_chunks_and_states_kept_at_their_ends() -> None:
    """20 000 tokens: chunks end at 8 192, 16 384 and 19 984, the last place to resume at; a prompt
    that branches off at 9 600 finds the state at 8 192."""
    first = list(range(1_250))
    second = [*first[:600], *range(10_000, 10_650)]
    played = trace([first, second], num_tokens=20_000)
    assert simulate(played, model(STATE, FULL), 10_000, Dense()).hit_tokens == 8_192


def test_progress_counts_the_requests() -> None:
    seen: list[int] = []
    simulate(trace([A, B]), model(FULL), AMPLE, Dense(), progress=seen.append)
    assert seen == [1, 2]


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_pool_without_a_block_is_refused(num_blocks: int) -> None:
    with pytest.raises(InvalidValueError, match=f"a pool of {num_blocks} block.*more memory"):
        simulate(trace([A]), model(FULL), num_blocks, Dense())


def test_intervals_are_rounded_to_where_all_groups_agree() -> None:
    """Up where the engine would, down where a step of as many tokens has to reach it."""
    qwen, jamba = simulated_model("qwen3-next-80b-a3b"), simulated_model("jamba-mini")
    assert [retention_of(name, qwen) for name in CACHE_POLICIES] == [
        Dense(),
        Interval(0),
        Interval(2 * 544),
        Interval(16 * 544),
        ByValue(interval=15 * 544, cost=qwen.cost),
        ByValue(interval=15 * 544),
    ]
    assert retention_of("interval-8k", jamba) == Interval(103 * 80)
    assert ByValue(interval=8_192).aligned(10_000).interval == 10_000
    assert ByValue().aligned(80).interval == 0


@pytest.mark.parametrize("groups", [[FULL], [CHUNKED, FULL]])
def test_a_model_that_keeps_every_block_has_one_policy(groups: list[GroupSpec]) -> None:
    """Of the reference engine's; by value another block is evicted first."""
    of_engine = [name for name in CACHE_POLICIES if not name.startswith("value")]
    assert {retention_of(name, model(*groups)) for name in of_engine} == {Dense()}


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownError, match="policy 'lru' is not known; expected one of dense, "):
        retention_of("lru", simulated_model("jamba-mini"))
