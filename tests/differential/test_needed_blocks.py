"""What a boundary needs of a group: as on paper, and as the word sweep has it in its own form."""

from collections.abc import Collection
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.resume import first_read, needed_blocks, resume
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference import resume as reference
from tests.reference.topologies import FULL, Case, cases, groups

ENDS_WITH_A_BLOCK = {*reference.WINDOW, SpecKind.CHUNKED_LOCAL_ATTENTION}
"""Kinds that are resumed where a block ends, partial hits or not."""


@given(group=groups(1, (1, 2, 3, 8), eagle=True), boundary=st.integers(0, 100))
def test_needed_blocks_are_those_of_the_tokens_that_are_read(
    group: GroupSpec, boundary: int
) -> None:
    if group.kind in ENDS_WITH_A_BLOCK:
        boundary -= boundary % group.block_size
    assert set(needed_blocks(group, boundary)) == reference.needed_blocks(group, boundary)


@given(group=groups(1, (1, 2, 3, 8), eagle=True), token=st.integers(0, 100))
def test_the_first_token_that_is_read_is_that_of_the_reference(
    group: GroupSpec, token: int
) -> None:
    expected = reference.first_needed(group, token)
    if group.kind in reference.NEVER:
        expected = token
    elif group.kind is SpecKind.MAMBA:
        expected = max(0, token - 1)
    assert first_read(group, token) == expected


def unit_of(topology: Topology, group: GroupSpec) -> int:
    """Tokens between two boundaries of one group."""
    is_fine = topology.partial_hits and group.kind not in ENDS_WITH_A_BLOCK
    return reference.hash_block(topology) if is_fine else group.block_size


def holds_what_is_needed(
    topology: Topology, group: GroupSpec, entries: Collection[int], boundary: int
) -> bool:
    """Whether all needed blocks are held, the last one as far as it is needed."""
    needed, unit = needed_blocks(group, boundary), unit_of(topology, group)
    if group.kind is SpecKind.MAMBA:
        return not needed or boundary in entries
    reach = boundary + (unit if group.eagle else 0)
    ends = [(block + 1) * group.block_size for block in needed]
    return all(any(e in entries for e in range(min(reach, end), end + 1, unit)) for end in ends)


@settings(max_examples=3 * settings().max_examples)
@given(case=cases())
def test_the_sweep_accepts_the_boundaries_at_which_all_needed_blocks_are_held(case: Case) -> None:
    topology = case.topology
    restricting = [
        index
        for index, group in enumerate(topology.groups)
        if reference.restricts(topology, group, strict=True)
    ]
    units = [unit_of(topology, topology.groups[index]) for index in restricting]
    step = lcm(reference.alignment(topology), *units)
    for held in case.holders:
        for num_tokens in range(case.num_tokens + 1):
            accepted = [
                boundary
                for boundary in range(0, num_tokens, step)
                if all(
                    holds_what_is_needed(
                        topology,
                        topology.groups[index],
                        [end for end in held[index] if end <= num_tokens],
                        boundary,
                    )
                    for index in restricting
                )
            ]
            hit = max(accepted, default=0)
            assert resume(topology, num_tokens, held) == max(hit - topology.replay_tokens, 0)


@pytest.mark.parametrize(
    ("group", "boundary", "message"),
    [
        (FULL, -4, r"boundary is -4; expected an integer from 0 to 4294967294"),
        (FULL, 1 << 32, r"boundary is 4294967296; expected an integer from 0 to 4294967294"),
        (
            GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=6),
            6,
            r"boundary 6: it lies inside a block of 4 tokens, and a sliding_window group is",
        ),
        (
            GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=4, chunk=6),
            6,
            r"take a multiple of the block size",
        ),
    ],
)
def test_a_boundary_that_no_group_has_is_refused(
    group: GroupSpec, boundary: int, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        needed_blocks(group, boundary)


def test_the_largest_boundary_and_block_are_counted() -> None:
    most = (1 << 32) - 2
    token = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=1, eagle=True)
    assert needed_blocks(token, most) == range(most + 1)
    huge = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=most, window=most)
    assert needed_blocks(huge, most) == range(1)
