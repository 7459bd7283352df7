"""The native resume rule against brute force, several holders in one word at a time."""

from dataclasses import replace
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kvbraid._native import resume as native_resume
from kvbraid._native import resume_accepted, resume_limiting, resume_present
from kvbraid.resume import ResumeQuery
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.differential.native_rule import bits_of, native, words_of
from tests.reference import resume as reference
from tests.reference.topologies import Case, cases

# Examples are cheap here, and a wrong search shows in few of them.
MANY_EXAMPLES = settings(max_examples=6 * settings().max_examples)
MANY_GROUPS = st.sampled_from((32, 64))

BLOCKS_OF_4_AND_6 = Case(
    Topology(
        groups=(
            GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4),
            GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=6, window=4),
        ),
    ),
    24,
    ((frozenset({4, 8, 12, 16, 20}), frozenset({6, 18})),),
)
"""Nobody gave an alignment: hits end at multiples of 12, not at 18."""


def brute_force(case: Case, *, strict: bool = True) -> list[int]:
    return [
        reference.resume(case.topology, case.num_tokens, holder, strict=strict)
        for holder in case.holders
    ]


@MANY_EXAMPLES
@given(case=cases(), seed=st.integers(0, 9), strict=st.booleans())
@example(case=BLOCKS_OF_4_AND_6, seed=0, strict=True)
def test_native_answers_equal_brute_force(case: Case, seed: int, strict: bool) -> None:
    assert native(case, seed, strict=strict) == brute_force(case, strict=strict)


@given(case=cases(st.integers(1, 3), max_tokens=300))
def test_long_requests_equal_brute_force(case: Case) -> None:
    assert native(case) == brute_force(case)


@given(case=cases(MANY_GROUPS, max_tokens=24))
def test_thirty_two_and_sixty_four_groups_work(case: Case) -> None:
    assert native(case) == brute_force(case)


@given(case=cases(), seed=st.integers(0, 99))
def test_the_order_of_groups_never_changes_an_answer(case: Case, seed: int) -> None:
    order = list(range(len(case.topology.groups)))
    Random(seed).shuffle(order)
    shuffled = Case(
        replace(case.topology, groups=tuple(case.topology.groups[i] for i in order)),
        case.num_tokens,
        tuple(tuple(holder[i] for i in order) for holder in case.holders),
    )
    assert native(shuffled) == native(case)


@given(case=cases(), seed=st.integers(0, 99))
def test_holding_more_never_shortens_an_answer(case: Case, seed: int) -> None:
    random = Random(seed)
    fewer = Case(
        case.topology,
        case.num_tokens,
        tuple(
            tuple(frozenset(e for e in sorted(group) if random.random() < 0.9) for group in holder)
            for holder in case.holders
        ),
    )
    assert all(a <= b for a, b in zip(native(fewer), native(case), strict=True))


@given(case=cases())
def test_a_strict_answer_never_exceeds_a_lax_one(case: Case) -> None:
    strict, lax = native(case, strict=True), native(case, strict=False)
    assert all(a <= b for a, b in zip(strict, lax, strict=True))


@given(case=cases(), seed=st.integers(0, 9))
def test_present_equals_brute_force(case: Case, seed: int) -> None:
    bits = bits_of(case, seed)
    query = ResumeQuery(case.num_tokens, sum(1 << bit for bit in bits), True)
    answers = resume_present(case.topology, [], words_of(case, bits), query)
    assert [answers[bit] for bit in bits] == [
        reference.present(case.topology, case.num_tokens, holder) for holder in case.holders
    ]


def accepted_by_brute_force(
    topology: Topology, num_tokens: int, holder: tuple[frozenset[int], ...], group: int
) -> list[int] | None:
    if not reference.restricts(topology, topology.groups[group], strict=True):
        return None
    return [
        length
        for length in range(1, num_tokens)
        if reference.accepts(topology, group, holder[group], length, num_tokens, strict=True)
    ]


STATES_INSIDE_BLOCKS = Case(
    Topology(
        groups=(GroupSpec(kind=SpecKind.MAMBA, block_size=2),),
        alignment=2,
        hash_block_size=1,
        partial_hits=True,
    ),
    4,
    ((frozenset({1, 3}),),),
)


@given(case=cases(), seed=st.integers(0, 9))
@example(case=STATES_INSIDE_BLOCKS, seed=0)
def test_accepted_boundaries_equal_brute_force(case: Case, seed: int) -> None:
    bits = bits_of(case, seed)
    words = words_of(case, bits)
    for bit, holder in zip(bits, case.holders, strict=True):
        for group in range(len(case.topology.groups)):
            query = ResumeQuery(case.num_tokens, 1 << bit, True)
            found = resume_accepted(case.topology, [], words, query, group)
            expected = accepted_by_brute_force(case.topology, case.num_tokens, holder, group)
            assert found == expected


@given(case=cases(), seed=st.integers(0, 9))
def test_the_limiting_group_refuses_the_next_boundary(case: Case, seed: int) -> None:
    case = replace(case, topology=replace(case.topology, replay_tokens=0))
    bits = bits_of(case, seed)
    words, mask = words_of(case, bits), sum(1 << bit for bit in bits)
    query = ResumeQuery(case.num_tokens, mask, True)
    answers = native_resume(case.topology, [], words, query)
    limits = resume_limiting(case.topology, [], words, query, answers)
    for bit, holder in zip(bits, case.holders, strict=True):
        refused = [
            (group, length)
            for length in range(answers[bit] + 1, case.num_tokens)
            if reference.is_boundary(case.topology, length)
            for group in range(len(case.topology.groups))
            if not reference.accepts(
                case.topology, group, holder[group], length, case.num_tokens, strict=True
            )
        ]
        assert limits[bit] == (refused[0] if refused else None)
