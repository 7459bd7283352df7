"""vLLM's dialect against an emulation of its search, and each of its flags on its own."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from kvbraid._native import resume as native_resume
from kvbraid.resume import ResumeQuery
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.differential.native_rule import native, words_of
from tests.reference import resume as rule
from tests.reference import vllm_search
from tests.reference.topologies import Case, engine_topologies, in_front_of

A_SECOND_FULL_SPEC_REACHES_LESS = Case(
    Topology(
        groups=(
            GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=2, eagle=True),
            GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=1),
        ),
        hash_block_size=1,
        partial_hits=True,
    ),
    23,
    ((frozenset(range(2, 23, 2)), frozenset(range(1, 11))),),
)


@settings(max_examples=6 * settings().max_examples)
@given(case=engine_topologies().flatmap(in_front_of))
@example(case=A_SECOND_FULL_SPEC_REACHES_LESS)
def test_the_dialect_answers_as_the_engine_searches(case: Case) -> None:
    assert native(case, dialect=EngineDialect.VLLM) == [
        vllm_search.resume(case.topology, case.num_tokens, holder) for holder in case.holders
    ]


def full(block_size: int, *, eagle: bool = False) -> GroupSpec:
    return GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=block_size, eagle=eagle)


def window(tokens: int, block_size: int, *, eagle: bool = False) -> GroupSpec:
    return GroupSpec(
        kind=SpecKind.SLIDING_WINDOW, block_size=block_size, window=tokens, eagle=eagle
    )


def chunk(tokens: int, block_size: int) -> GroupSpec:
    return GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=block_size, chunk=tokens)


def state(block_size: int) -> GroupSpec:
    return GroupSpec(kind=SpecKind.MAMBA, block_size=block_size)


@dataclass(frozen=True)
class Departure:
    """A case in which one flag changes the answer."""

    flag: str
    topology: Topology
    num_tokens: int
    held: tuple[frozenset[int], ...]
    pure: int
    engine: int


def ends(block_size: int, count: int) -> frozenset[int]:
    """The first `count` blocks."""
    return frozenset(block_size * block for block in range(1, count + 1))


def topology(*groups: GroupSpec, hash_block: int, partial_hits: bool = False) -> Topology:
    return Topology(groups=groups, hash_block_size=hash_block, partial_hits=partial_hits)


DEPARTURES = (
    Departure(
        "window_of_one_needs_a_block",
        topology(full(16), window(1, 16), hash_block=16),
        50,
        (ends(16, 3), frozenset({32})),
        pure=48,
        engine=32,
    ),
    Departure(
        "chunk_start_of_the_candidate",
        # The candidate 152 lies in the chunk from 140, which starts inside block 17; the answer
        # 136 needs the chunk from 120 on, of which nothing is held.
        topology(full(8), chunk(20, 8), hash_block=8),
        160,
        (ends(8, 19), ends(8, 14)),
        pure=120,
        engine=136,
    ),
    Departure(
        "eagle_single_group_within_prompt",
        topology(full(16, eagle=True), hash_block=16),
        64,
        (ends(16, 4),),
        pure=48,
        engine=32,
    ),
    Departure(
        "eagle_unequal_blocks_realign",
        # Blocks 0 and 1 and the extra block 2 are all there is, fewer than the window wants.
        topology(full(16), window(64, 8, eagle=True), hash_block=8),
        70,
        (ends(16, 4), ends(8, 3)),
        pure=16,
        engine=0,
    ),
    Departure(
        "eagle_three_specs_unverified",
        # The second window lowers 48 to 32 by its own drop; the first one's extra block beyond 32
        # was only looked for beyond 48.
        topology(full(16), window(17, 16, eagle=True), window(33, 16, eagle=True), hash_block=16),
        100,
        (ends(16, 6), frozenset({16, 32, 64, 80}), frozenset({16, 32, 48, 96})),
        pure=16,
        engine=32,
    ),
    Departure(
        "eagle_shared_by_equal_specs",
        topology(full(16, eagle=True), full(16), hash_block=16),
        100,
        (ends(16, 4), ends(16, 3)),
        pure=48,
        engine=32,
    ),
    Departure(
        "partial_hits_are_probed",
        # The prompt ends where the whole block does; nothing is registered inside the block.
        topology(full(64), state(64), hash_block=16, partial_hits=True),
        64,
        (ends(64, 1), frozenset({48})),
        pure=48,
        engine=0,
    ),
)


def answer(departure: Departure, dialect: list[str]) -> int:
    case = Case(departure.topology, departure.num_tokens, (departure.held,))
    query = ResumeQuery(departure.num_tokens, 1)
    return native_resume(departure.topology, dialect, words_of(case, [0]), query)[0]


@pytest.mark.parametrize("departure", DEPARTURES, ids=lambda departure: departure.flag)
def test_each_flag_makes_its_own_difference(departure: Departure) -> None:
    assert rule.resume(departure.topology, departure.num_tokens, departure.held) == departure.pure
    assert (
        vllm_search.resume(departure.topology, departure.num_tokens, departure.held)
        == departure.engine
    )
    assert answer(departure, []) == departure.pure
    assert answer(departure, [departure.flag]) == departure.engine
    assert answer(departure, ["vllm"]) == departure.engine


def test_an_engine_may_look_up_only_the_pairs_of_tokens_before_the_last_one() -> None:
    pairs = replace(topology(full(16), hash_block=16), hash_lookahead=1)
    for num_tokens, pure, engine in ((64, 48, 48), (65, 64, 48), (66, 64, 64)):
        departure = Departure("", pairs, num_tokens, (ends(16, 4),), pure, engine)
        assert answer(departure, []) == answer(departure, ["vllm"]) == pure
        assert answer(departure, ["lookahead_before_the_last_token"]) == engine
        assert answer(departure, ["sglang"]) == engine


def test_every_other_flag_leaves_the_case_alone() -> None:
    for departure in DEPARTURES:
        others = [other.flag for other in DEPARTURES if other.flag != departure.flag]
        for flag in others:
            assert answer(departure, [flag]) == departure.pure, (departure.flag, flag)
