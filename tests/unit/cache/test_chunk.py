"""Where chunks end: whole prefills by brute force, and each case that has a reason of its own."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cache.chunk import ChunkRules, Position, chunk_rules
from kvbraid.cache.manager import CacheManager
from kvbraid.errors import InvalidValueError
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.unit.cache.caches import config, full, mamba

WHOLE = ChunkRules(block_size=64, checkpoint_size=64, alignment=64, hash_block_size=64)
FINE = replace(WHOLE, hash_block_size=16, partial_hits=True)
PROMPT = Position(start=0, num_prompt_tokens=300, num_tokens=300, budget=300)


def ends(rules: ChunkRules, position: Position, budget: int) -> Iterator[int]:
    """Chunk ends of a whole prefill with the same budget in every step."""
    while position.start < position.prefill_end:
        left = position.prefill_end - position.start
        planned = rules.plan(replace(position, budget=min(budget, left)))
        assert 0 <= planned <= min(budget, left)
        if not planned:
            return
        position = replace(position, start=position.start + planned)
        yield position.start


@pytest.mark.parametrize(
    ("rules", "position", "budget", "expected"),
    [
        pytest.param(WHOLE, PROMPT, 999, [256, 300], id="it stops where the prompt resumes"),
        pytest.param(WHOLE, PROMPT, 200, [192, 256, 300], id="it ends at whole blocks"),
        pytest.param(
            WHOLE,
            replace(PROMPT, num_prompt_tokens=256, num_tokens=256),
            999,
            [192, 256],
            id="an aligned prompt leaves a token to compute",
        ),
        pytest.param(
            replace(WHOLE, eagle=True), PROMPT, 999, [192, 300], id="a draft head drops a block"
        ),
        pytest.param(
            WHOLE, replace(PROMPT, junction=128), 999, [128, 256, 300], id="it stops at a junction"
        ),
        pytest.param(
            WHOLE, replace(PROMPT, junction=140), 999, [128, 256, 300], id="a junction in a block"
        ),
        pytest.param(
            replace(FINE, partial_junctions=True),
            replace(PROMPT, junction=144),
            999,
            [144, 192, 256, 288, 300],
            id="a junction kept inside a block, then the boundary",
        ),
        pytest.param(
            replace(WHOLE, interval=128),
            replace(PROMPT, start=64),
            999,
            [128, 256, 300],
            id="it stops at the interval of checkpoints",
        ),
        pytest.param(FINE, PROMPT, 999, [256, 288, 300], id="partial hits keep the tail"),
        pytest.param(
            FINE, replace(PROMPT, start=80), 999, [128, 256, 288, 300], id="a start in a block"
        ),
        pytest.param(
            replace(WHOLE, max_chunk_tokens=50),
            replace(PROMPT, num_tokens=160, num_prompt_tokens=160),
            50,
            [50, 64, 114, 128, 160],
            id="a block wider than any chunk is taken in parts",
        ),
        pytest.param(
            replace(WHOLE, max_chunk_tokens=200), PROMPT, 50, [], id="a small budget waits"
        ),
        pytest.param(
            replace(WHOLE, checkpoint_alignment=64), PROMPT, 999, [300], id="a state saved inside"
        ),
        pytest.param(
            replace(WHOLE, checkpoint_alignment=48), PROMPT, 999, [256, 300], id="one it cannot"
        ),
        pytest.param(
            replace(WHOLE, checkpoint_alignment=64),
            replace(PROMPT, junction=128),
            999,
            [128, 300],
            id="a junction is not saved inside",
        ),
        pytest.param(
            WHOLE,
            replace(PROMPT, num_prompt_tokens=100),
            999,
            [256, 299],
            id="output computed again after a preemption is a prompt",
        ),
        pytest.param(
            replace(WHOLE, block_size=0),
            replace(PROMPT, junction=128),
            200,
            [200, 300],
            id="without states nothing is clipped",
        ),
    ],
)
def test_a_prefill_ends_its_chunks(
    rules: ChunkRules, position: Position, budget: int, expected: list[int]
) -> None:
    assert list(ends(rules, position, budget)) == expected


def test_decoding_is_never_clipped() -> None:
    drafted = Position(start=300, num_prompt_tokens=300, num_tokens=301, budget=5, junction=302)
    assert WHOLE.plan(drafted) == 5


SIZES = st.integers(1, 6)


@st.composite
def all_rules(draw: st.DrawFn) -> ChunkRules:
    hash_block_size = draw(SIZES)
    block_size = hash_block_size * draw(SIZES)
    alignment = block_size * draw(st.integers(1, 2))
    partial_hits = hash_block_size < block_size and draw(st.booleans())
    return ChunkRules(
        block_size=block_size,
        checkpoint_size=draw(st.sampled_from([block_size, alignment])),
        alignment=alignment,
        hash_block_size=hash_block_size,
        partial_hits=partial_hits,
        eagle=draw(st.booleans()),
        partial_junctions=partial_hits and draw(st.booleans()),
    )


@st.composite
def prompts(draw: st.DrawFn) -> Position:
    num_tokens = draw(st.integers(1, 120))
    start = draw(st.integers(0, num_tokens - 1))
    junction = draw(st.just(0) | st.integers(start, num_tokens - 1))
    return Position(
        start=start,
        num_prompt_tokens=num_tokens,
        num_tokens=num_tokens,
        budget=0,
        junction=junction,
    )


def resume_boundaries(rules: ChunkRules, num_tokens: int) -> Iterator[int]:
    """Where the same prompt could resume, found by trying each boundary."""
    for size in {rules.checkpoint_size, rules.hash_block_size if rules.partial_hits else 0} - {0}:
        left = size if rules.eagle else 1
        yield max(
            n for n in range(num_tokens) if n % size == 0 and (n == 0 or n + left <= num_tokens)
        )


def wanted(rules: ChunkRules, prompt: Position) -> set[int]:
    """Every boundary whose state somebody resumes at, that is still ahead."""
    block_size, junction = rules.block_size, prompt.junction
    first = next(n for n in range(prompt.start, 1_000) if n % block_size == 0)
    floored = max((n for n in range(first, junction + 1) if n % block_size == 0), default=0)
    kept = junction if rules.partial_junctions else floored
    boundaries = {*resume_boundaries(rules, prompt.num_tokens), kept}
    return {n for n in boundaries if prompt.start < n < prompt.num_tokens}


@given(all_rules(), prompts(), st.integers(1, 150))
def test_every_state_that_somebody_resumes_at_is_the_end_of_a_step(
    rules: ChunkRules, prompt: Position, budget: int
) -> None:
    assert wanted(rules, prompt) <= set(ends(rules, prompt, budget))


@given(all_rules(), prompts(), st.integers(1, 150))
def test_no_step_crosses_a_block_boundary_from_inside_a_block_or_ends_in_one_without_need(
    rules: ChunkRules, prompt: Position, budget: int
) -> None:
    size, start = rules.block_size, prompt.start
    for end in ends(rules, prompt, budget):
        boundary = -(-start // size) * size
        assert start % size == 0 or end <= boundary
        needed = {prompt.num_tokens, *wanted(rules, prompt)}
        assert end % size == 0 or end in needed or (end - start == budget < size)
        start = end
    assert start == prompt.num_tokens


@given(all_rules(), prompts(), st.integers(1, 150))
def test_no_step_is_shorter_than_it_must_be(
    rules: ChunkRules, prompt: Position, budget: int
) -> None:
    start, stops = prompt.start, {prompt.num_tokens, *wanted(rules, prompt)}
    for end in ends(rules, prompt, budget):
        further = min(start + budget, prompt.num_tokens)
        boundaries = [n for n in range(end + 1, further + 1) if n % rules.block_size == 0]
        assert not boundaries or end in stops or start % rules.block_size
        start = end


def group(kind: SpecKind, block_size: int, *, eagle: bool = False) -> GroupSpec:
    return GroupSpec(kind=kind, block_size=block_size, window=99, chunk=99, eagle=eagle)


FULL, STATE = SpecKind.FULL_ATTENTION, SpecKind.MAMBA


def test_the_groups_say_where_chunks_end() -> None:
    groups = group(FULL, 48, eagle=True), group(STATE, 32), group(STATE, 64)
    pure = Topology(groups=groups)
    assert chunk_rules(pure) == ChunkRules(
        block_size=64, checkpoint_size=192, alignment=192, hash_block_size=16, eagle=True
    )
    engine = replace(pure, partial_hits=True, alignment=384)
    assert chunk_rules(engine, dialect=EngineDialect.VLLM, max_chunk_tokens=512) == ChunkRules(
        block_size=32,
        checkpoint_size=32,
        alignment=384,
        hash_block_size=16,
        partial_hits=True,
        eagle=True,
        max_chunk_tokens=512,
    )


def test_groups_without_a_state_clip_nothing() -> None:
    assert chunk_rules(Topology(groups=(group(FULL, 16),))).block_size == 0
    assert chunk_rules(Topology(groups=())).block_size == 0


@pytest.mark.parametrize(
    ("dialect", "planned"), [(EngineDialect.PURE, 32), (EngineDialect.VLLM, 48)]
)
def test_a_cache_ends_chunks_where_its_dialect_does(dialect: EngineDialect, planned: int) -> None:
    cache = CacheManager(config(full(16), mamba(32), dialect=dialect))
    assert cache.plan_chunk(cache.add(range(100)), 50) == planned


SIZE_FIELDS = ("block_size", "checkpoint_size", "alignment", "hash_block_size")


@pytest.mark.parametrize("name", [*SIZE_FIELDS, "max_chunk_tokens", "checkpoint_alignment"])
def test_a_size_that_no_cache_has_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} is -1; expected an integer of at least"):
        ChunkRules(**{**dict.fromkeys(SIZE_FIELDS, 1), name: -1})  # type: ignore[arg-type]


def test_a_position_before_the_request_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="start is -1; expected an integer of at least 0"):
        replace(PROMPT, start=-1)
