"""The worked examples of docs/resume-rule.md, and one case for every kind and refinement.

Blocks of 16 tokens, a request of three whole blocks and a tail unless said otherwise. What a group
holds is written as the indices of its blocks.
"""

from dataclasses import dataclass, replace
from math import lcm

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.resume import accepted, resume
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference import resume as reference

BLOCK = 16
REQUEST = 3 * BLOCK + 5

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=BLOCK)
STATE = GroupSpec(kind=SpecKind.MAMBA, block_size=BLOCK)


def window(tokens: int) -> GroupSpec:
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=BLOCK, window=tokens)


def chunk(tokens: int | None) -> GroupSpec:
    return GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=BLOCK, chunk=tokens)


def eagle(group: GroupSpec) -> GroupSpec:
    return replace(group, eagle=True)


@dataclass(frozen=True)
class Example:
    why: str
    groups: tuple[GroupSpec, ...]
    blocks: tuple[str, ...]
    hit: int  # In blocks.
    num_tokens: int = REQUEST

    @property
    def topology(self) -> Topology:
        return Topology(groups=self.groups)

    @property
    def held(self) -> list[set[int]]:
        return [{(int(block) + 1) * BLOCK for block in held.split()} for held in self.blocks]


FULL_AND_WINDOW = (FULL, window(32))

EXAMPLES = (
    Example("everything is held", FULL_AND_WINDOW, ("0 1 2", "0 1 2"), 3),
    Example("no boundary has its window", FULL_AND_WINDOW, ("0 1 2", ""), 0),
    Example("the window of boundary 3 is incomplete", FULL_AND_WINDOW, ("0 1 2", "0 1"), 2),
    Example("block 0 is out of the window of boundary 3", FULL_AND_WINDOW, ("0 1 2", "1 2"), 3),
    Example("a prefix shorter than the window suffices", FULL_AND_WINDOW, ("0 1 2", "0"), 1),
    Example("full attention has no prefix", FULL_AND_WINDOW, ("", "0 1 2"), 0),
    Example("full attention ends first", FULL_AND_WINDOW, ("0 1", "0 1 2"), 2),
    Example("a window longer than the prefix", (FULL, window(64)), ("0 1 2", "0 1 2"), 3),
    Example(
        "two groups must hold the same window",
        (FULL, window(32), window(32)),
        ("0 1 2", "0 1", "1 2"),
        0,
    ),
    Example(
        "the minimum of each group's best is wrong",
        (FULL, window(32), window(17)),
        ("0 1 2", "1 2", "0"),
        0,
    ),
    Example("nothing needs block 0 without full attention", (window(32),), ("1 2",), 3),
    Example("the one state ends at boundary 2", (FULL, STATE), ("0 1 2", "1"), 2),
    Example("the chunk of boundary 3 starts at block 2", (FULL, chunk(32)), ("0 1 2", "2"), 3),
    Example("a chunk boundary needs nothing", (FULL, chunk(32)), ("0 1 2", ""), 2),
    Example("one token is left", FULL_AND_WINDOW, ("0 1 2", "0 1 2"), 2, num_tokens=3 * BLOCK),
    Example("boundary 3 has no block beyond it", (eagle(FULL), window(32)), ("0 1 2", "0 1 2"), 2),
    # Beyond the published table.
    Example(
        "the extra unit may end with the prompt",
        (eagle(FULL), window(32)),
        ("0 1 2", "0 1 2"),
        2,
        num_tokens=3 * BLOCK,
    ),
    Example(
        "an EAGLE window needs its extra block next to it",
        (FULL, eagle(window(17))),
        ("0 1 2", "0 2"),
        0,
    ),
    Example("a state is never rewound", (FULL, eagle(STATE)), ("0 1 2", "2"), 3),
    Example("a window of one token needs nothing", (FULL, window(1)), ("0 1 2", ""), 3),
    Example("a chunk may start inside a block", (FULL, chunk(40)), ("0 1 2", "2"), 3),
    Example("and then needs that block", (FULL, chunk(40)), ("0 1 2", "0 1"), 2),
    Example("several full groups: all of them", (FULL, FULL), ("0 1 2", "0"), 1),
    Example(
        "groups no prefix is looked up in have no say",
        (
            FULL,
            GroupSpec(kind=SpecKind.CROSS_ATTENTION, block_size=BLOCK),
            replace(window(32), prefix_cacheable=False),
        ),
        ("0 1 2", "", ""),
        3,
    ),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.why)
def test_worked_examples(example: Example) -> None:
    expected = example.hit * BLOCK
    assert resume(example.topology, example.num_tokens, example.held) == expected
    assert reference.resume(example.topology, example.num_tokens, example.held) == expected


# What one group of each kind accepts of boundaries 1 to 3 when it holds only block 1.
ACCEPTED_WITH_BLOCK_1 = {
    SpecKind.FULL_ATTENTION: [],
    SpecKind.MLA_ATTENTION: [],
    SpecKind.SINK_FULL_ATTENTION: [],
    SpecKind.SLIDING_WINDOW: [2],
    SpecKind.SLIDING_WINDOW_MLA: [2],
    SpecKind.CHUNKED_LOCAL_ATTENTION: [2],
    SpecKind.MAMBA: [2],
    SpecKind.ENCODER_ONLY_ATTENTION: None,
    SpecKind.CROSS_ATTENTION: None,
    SpecKind.UNKNOWN: [],
}


def test_every_kind_has_a_rule() -> None:
    assert set(ACCEPTED_WITH_BLOCK_1) == set(SpecKind)


@pytest.mark.parametrize("kind", SpecKind)
def test_each_kind_accepts_its_own_boundaries(kind: SpecKind) -> None:
    group = GroupSpec(
        kind=kind,
        block_size=BLOCK,
        window=17 if kind.is_window else None,
        chunk=BLOCK if kind is SpecKind.CHUNKED_LOCAL_ATTENTION else None,
    )
    if kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
        group = replace(group, chunk=2 * BLOCK)
    topology = Topology(groups=(group,))
    blocks = ACCEPTED_WITH_BLOCK_1[kind]
    expected = None if blocks is None else [block * BLOCK for block in blocks]
    assert accepted(topology, REQUEST, [{2 * BLOCK}], 0) == expected


@pytest.mark.parametrize("group", [replace(FULL, kind=SpecKind.UNKNOWN), chunk(None)])
def test_what_nobody_said_is_bounded_from_both_sides(group: GroupSpec) -> None:
    topology = Topology(groups=(FULL, group))
    held = [{16, 32, 48}, {16, 48}]
    assert resume(topology, REQUEST, held) == 16
    assert resume(topology, REQUEST, held, strict=False) == 48


def test_an_alignment_larger_than_the_blocks_is_kept() -> None:
    topology = Topology(groups=(FULL,), alignment=32)
    assert resume(topology, REQUEST, [{16, 32, 48}]) == 32


def test_unequal_blocks_meet_at_their_common_multiple() -> None:
    groups = (FULL, replace(STATE, block_size=24))
    topology = Topology(groups=groups)
    assert lcm(16, 24) == 48
    assert resume(topology, 100, [range(16, 97, 16), {24, 48, 72}]) == 48


PARTIAL = Topology(
    groups=(replace(FULL, block_size=64), replace(STATE, block_size=64)),
    hash_block_size=16,
    partial_hits=True,
)


def test_a_partial_hit_ends_inside_a_block() -> None:
    assert resume(PARTIAL, 200, [{64, 112}, {96}]) == 96


def test_a_partial_hit_needs_a_state_at_its_end() -> None:
    assert resume(PARTIAL, 200, [{64, 112}, {64, 128}]) == 64


def test_interior_entries_are_no_hits_where_partial_hits_are_off() -> None:
    off = replace(PARTIAL, partial_hits=False)
    assert resume(off, 200, [{64, 112}, {96}]) == 0


def test_bounded_replay_leaves_windows_out_and_recomputes_one() -> None:
    replayed = Topology(groups=FULL_AND_WINDOW, replay_tokens=32)
    assert resume(replayed, REQUEST, [{16, 32, 48}, ()]) == 16
    assert resume(replayed, REQUEST, [{16, 32}, ()]) == 0


@pytest.mark.parametrize("num_tokens", [0, 1, 15, 16])
def test_requests_without_a_boundary_before_their_last_token_reuse_nothing(
    num_tokens: int,
) -> None:
    topology = Topology(groups=FULL_AND_WINDOW)
    assert resume(topology, num_tokens, [{16}, {16}]) == 0


def test_a_group_without_entries_may_be_missing() -> None:
    topology = Topology(groups=FULL_AND_WINDOW)
    assert resume(topology, REQUEST, {1: {16}}) == 0


def test_an_entry_that_no_group_can_have_is_refused() -> None:
    topology = Topology(groups=FULL_AND_WINDOW)
    with pytest.raises(InvalidValueError, match=r"group 0: no entry ends at token 20"):
        resume(topology, REQUEST, [{20}])
