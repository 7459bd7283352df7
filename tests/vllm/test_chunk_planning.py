"""Chunk ends against vLLM's own: its scheduler's split, called on the numbers that it reads."""

import warnings
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.cache.chunk import ChunkRules, Position

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Its dependencies' own.
    from vllm.v1.core.sched.scheduler import Scheduler

pytestmark = pytest.mark.timeout(300)

SIZES = st.sampled_from([1, 4, 8, 12, 16, 32])


@st.composite
def rules_and_thresholds(draw: st.DrawFn) -> tuple[ChunkRules, int, int]:
    """Rules, with the engine's two settings that limit a chunk: the step's and a request's."""
    hash_block_size = draw(st.sampled_from([1, 2, 4, 8]))
    block_size = hash_block_size * draw(st.integers(1, 6))
    alignment = block_size * draw(st.integers(1, 3))
    partial_hits = hash_block_size < alignment and draw(st.booleans())
    step, threshold = draw(st.integers(1, 120)), draw(st.sampled_from([0, 3, 20, 50]))
    rules = ChunkRules(
        block_size=block_size,
        checkpoint_size=block_size,
        alignment=alignment,
        hash_block_size=hash_block_size,
        partial_hits=partial_hits,
        eagle=draw(st.booleans()),
        partial_junctions=partial_hits and draw(st.booleans()),
        checkpoint_alignment=draw(st.none() | SIZES),
        max_chunk_tokens=min(step, threshold) if threshold else step,
    )
    return rules, step, threshold


@st.composite
def positions(draw: st.DrawFn) -> Position:
    num_prompt_tokens = draw(st.integers(1, 200))
    num_tokens = num_prompt_tokens + draw(st.integers(0, 40))
    return Position(
        start=draw(st.integers(0, num_tokens - 1)),
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_tokens,
        budget=draw(st.integers(1, 220)),
        junction=draw(st.integers(0, num_tokens)),
    )


def split_of_vllm(rules: ChunkRules, step: int, threshold: int, position: Position) -> int:
    scheduler = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=rules.block_size),
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=threshold),
        block_size=rules.alignment,
        hash_block_size=rules.hash_block_size,
        max_num_scheduled_tokens=step,
        mamba_partial_cache_hit=rules.partial_hits,
        mamba_shared_prefix_checkpoint=rules.partial_junctions,
        mamba_has_prefill_checkpoint_blocks=rules.checkpoint_alignment is not None,
        mamba_prefill_checkpoint_alignment=rules.checkpoint_alignment,
        use_eagle_block_drop=rules.eagle,
    )
    request = SimpleNamespace(
        num_computed_tokens=0,
        num_prompt_tokens=position.num_prompt_tokens,
        num_tokens=position.num_tokens,
        shared_prefix_boundary=position.junction,
    )
    split: int = Scheduler._mamba_block_aligned_split(
        scheduler, request, position.budget, position.start
    )
    return split


@settings(max_examples=4_000)
@given(rules_and_thresholds(), positions())
def test_a_chunk_ends_where_the_engine_ends_it(
    limits: tuple[ChunkRules, int, int], position: Position
) -> None:
    rules, step, threshold = limits
    assert rules.plan(position) == split_of_vllm(rules, step, threshold, position)
