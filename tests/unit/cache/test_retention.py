"""What a retention promises: what it claims to keep is kept, nothing else is, and hits follow.

The claims are restated here token by token: a block is kept if the token after some kept boundary
reads it. Steps end at every block, so that each state that may be kept exists.
"""

from collections.abc import Sequence
from math import lcm

from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.cache import CacheManager, Dense, Interval
from kvbraid.spec import GroupSpec, SpecKind

from tests.reference import resume
from tests.unit.cache.caches import (
    blocks_held,
    chunked,
    compute,
    config,
    full,
    leave,
    mamba,
    window,
)

UNIT = 4


def kept_boundaries(num_prompt: int, retention: Dense | Interval, alignment: int) -> set[int]:
    """Where a resume shall work: every unit, or multiples of the interval and the prompt's end.

    Multiples continue after the prompt: generated tokens may get there.
    """
    every = alignment if isinstance(retention, Dense) else retention.tokens
    ends = set(range(every, num_prompt + 80, every)) if every else set()
    return ends if isinstance(retention, Dense) else ends | {resent(num_prompt, alignment)}


def resent(num_prompt: int, alignment: int) -> int:
    return (num_prompt - 1) // alignment * alignment


def claimed(spec: GroupSpec, boundaries: set[int], committed: int) -> set[int]:
    """The ends of the blocks that the token after some boundary reads."""
    ends = set(range(spec.block_size, committed + 1, spec.block_size))
    if spec.kind is SpecKind.MAMBA:
        return ends & boundaries
    read = {token for at in boundaries for token in range(resume.first_needed(spec, at), at)}
    return {end for end in ends if read & set(range(end - spec.block_size, end))}


@st.composite
def sparse_groups(draw: st.DrawFn) -> list[GroupSpec]:
    sizes = st.sampled_from((UNIT, UNIT, 2 * UNIT))
    others = st.one_of(
        st.builds(window, st.integers(1, 20), sizes),
        st.builds(chunked, st.integers(1, 20), st.just(UNIT)),
        sizes.map(mamba),
    )
    sparse = draw(st.one_of(st.builds(window, st.integers(1, 20), sizes), sizes.map(mamba)))
    groups = [full(UNIT), sparse, *draw(st.lists(others, max_size=2))]
    return draw(st.permutations(groups))


@given(
    groups=sparse_groups(),
    num_prompt=st.integers(1, 60),
    every=st.sampled_from((None, 0, 1, 2, 3)),
)
@example(groups=[full(UNIT), window(5, UNIT)], num_prompt=24, every=2)
@example(groups=[full(UNIT), mamba(UNIT)], num_prompt=21, every=0)
def test_what_is_kept_is_what_a_kept_boundary_reads(
    groups: list[GroupSpec], num_prompt: int, every: int | None
) -> None:
    unit = lcm(*(spec.block_size for spec in groups))
    retention: Dense | Interval = Dense() if every is None else Interval(every * unit)
    cache = CacheManager(config(*groups, num_blocks=200, retention=retention))
    tokens = list(range(num_prompt))
    leave(cache, tokens, UNIT)
    boundaries, committed = kept_boundaries(num_prompt, retention, unit), num_prompt // unit * unit
    held = blocks_held(cache, tokens, UNIT)
    for spec, ends in zip(groups, held, strict=True):
        kept = {end for end in ends if spec.kind is not SpecKind.MAMBA or end % unit == 0}
        if spec.kind.is_window or spec.kind is SpecKind.MAMBA:
            assert kept == claimed(spec, boundaries, committed), spec
        else:
            assert kept >= claimed(spec, boundaries, committed), spec
    for length in range(1, num_prompt + 1):
        hit = cache.match(cache.add([*tokens[:length], 99_999])).num_tokens
        assert hit >= max(at for at in boundaries | {0} if at <= length), length
        assert is_explained(groups, held, hit), length


def is_explained(groups: Sequence[GroupSpec], held: Sequence[set[int]], hit: int) -> bool:
    """A longer hit than promised is no accident of the look-up: all it reads is kept."""
    for spec, ends in zip(groups, held, strict=True):
        size = spec.block_size
        first = max(0, hit - 1) if spec.kind is SpecKind.MAMBA else resume.first_needed(spec, hit)
        if any((token // size + 1) * size not in ends for token in range(first, hit)):
            return False
    return True


def test_generated_tokens_are_kept_by_the_interval_alone() -> None:
    cache = CacheManager(config(full(UNIT), window(5, UNIT), retention=Interval(16)))
    tokens = list(range(40))
    request = cache.add(tokens[:10])
    compute(cache, request, [10])
    for token in tokens[10:]:
        cache.start_step()
        cache.decode([request], [token])
    cache.release([request])
    assert blocks_held(cache, tokens, UNIT)[1] == {8, 16, 32}


def test_every_retention_keeps_all_of_full_and_chunked_groups() -> None:
    for retention in (Dense(), Interval(0), Interval(8)):
        cache = CacheManager(
            config(full(UNIT), chunked(8, UNIT), window(3, UNIT), retention=retention)
        )
        leave(cache, list(range(20)), 20)
        held = blocks_held(cache, list(range(20)), UNIT)
        assert held[0] == held[1] == {4, 8, 12, 16, 20}
