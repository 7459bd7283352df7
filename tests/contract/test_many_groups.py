"""Layouts of published hybrids: many groups, unequal blocks, hashes shared between groups.

A hash names a prefix and not a group, so the groups of one model publish the same hashes at common
boundaries; each group must count its own copies.
"""

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import (
    FULL,
    MODEL,
    TEXT,
    Group,
    Text,
    an_index,
    answer,
    exactly,
    tell,
)

# Sparse attention with four windows of small blocks, as DeepSeek V4 lays its cache out.
SPARSE_FULL = Group(idx=0, kind="mla_attention", block=256)
SPARSE = [
    SPARSE_FULL,
    Group(idx=1, kind="sliding_window_mla", block=64, window=128),
    Group(idx=2, kind="sliding_window_mla", block=64, window=128),
    Group(idx=3, kind="sliding_window_mla", block=4, window=8),
    Group(idx=4, kind="sliding_window_mla", block=8, window=128),
]


def tail(group: Group, end: int) -> range:
    """The blocks that a window group needs to resume at token `end`."""
    assert group.window is not None
    needed = -(-(group.window - 1) // group.block)
    return range(end // group.block - needed, end // group.block)


def publish_sparse(index: FleetIndex, ends: tuple[int, ...] = (1024,)) -> None:
    """The full group whole, and each window at these ends only."""
    for group in reversed(SPARSE[1:]):
        keep = sorted({j for end in ends for j in tail(group, end)})
        tell(index, TEXT.stored(group, keep=keep))
    tell(index, TEXT.stored(SPARSE_FULL))


SPARSE_TOPOLOGY = Topology(
    groups=tuple(
        GroupSpec(kind=SpecKind(group.kind), block_size=group.block, window=group.window)
        for group in SPARSE
    )
)


@pytest.mark.parametrize("topology", [None, SPARSE_TOPOLOGY], ids=["learned", "configured"])
def test_five_groups_of_four_block_sizes(topology: Topology | None) -> None:
    index = an_index(topology)
    for group in SPARSE[1:]:
        tell(index, TEXT.stored(group))
    tell(index, TEXT.stored(SPARSE_FULL))
    assert answer(index) == exactly(1024)
    assert answer(index, TEXT.tokens) == exactly(768), "the blocks meet at multiples of 256"
    tell(index, *TEXT.removed(SPARSE[3], [255]))
    assert answer(index) == exactly(768)
    tell(index, *TEXT.removed(SPARSE_FULL, [1]))
    assert answer(index) == exactly(256)
    tell(index, *TEXT.removed(SPARSE[4], [31]))
    assert answer(index) == exactly(0)


def test_kept_tails_of_small_windows_are_a_bound_that_holds_the_truth() -> None:
    """Between the full group's boundaries only order tells where a kept block stands."""
    index = an_index()
    publish_sparse(index)
    lower, upper = answer(index)
    assert lower <= 1024 == upper
    index = an_index()
    publish_sparse(index, (512,))
    lower, upper = answer(index)
    assert lower <= 512 <= upper


def test_removing_a_shared_hash_from_one_group_leaves_the_others() -> None:
    index = an_index()
    for group in SPARSE:
        tell(index, TEXT.stored(group))
    tell(index, *TEXT.removed(SPARSE[1], [15]))
    (row,) = index.score(Request(model=MODEL, token_ids=TEXT.prompt)).rows
    assert (row.lower, row.upper) == exactly(768)
    assert row.limiting is not None
    assert row.limiting.group == 1
    tell(index, TEXT.stored(SPARSE[1], range(15, 16)))
    assert answer(index) == exactly(1024)


# Full attention in large blocks, and states at the same boundaries: equal hashes in each group.
KIMI = Text(num_tokens=768 * 5)
KIMI_FULL = Group(idx=0, kind="mla_attention", block=768)
KIMI_STATES = [Group(idx=i, kind="mamba", block=768) for i in (1, 2, 3)]


def test_states_with_the_hashes_of_full_attention() -> None:
    index = an_index()
    tell(index, *(KIMI.stored(group, keep=[4]) for group in KIMI_STATES), KIMI.stored(KIMI_FULL))
    assert answer(index, KIMI.prompt) == exactly(3840)
    assert answer(index, KIMI.tokens) == exactly(0), "no state before the last token"
    tell(index, *KIMI.removed(KIMI_STATES[2], [4]))
    assert answer(index, KIMI.prompt) == exactly(0)
    tell(index, KIMI.stored(KIMI_STATES[2], keep=[1]), KIMI.stored(KIMI_STATES[2], keep=[4]))
    assert answer(index, KIMI.prompt) == exactly(3840)


def test_removing_a_hash_of_full_attention_leaves_the_state() -> None:
    index = an_index()
    tell(index, KIMI.stored(KIMI_FULL), *(KIMI.stored(group, keep=[4]) for group in KIMI_STATES))
    tell(index, *KIMI.removed(KIMI_FULL, [4]))
    assert answer(index, KIMI.prompt) == exactly(0)
    tell(index, KIMI.stored(KIMI_FULL, range(4, 5)))
    assert answer(index, KIMI.prompt) == exactly(3840)


def test_a_sparse_store_of_an_attention_hash_makes_up_no_blocks() -> None:
    """Spread over the span's blocks, one kept state would seem to be four."""
    state = Group(idx=1, kind="mamba")
    index = an_index()
    tell(index, TEXT.stored(FULL, range(4)), TEXT.stored(state, range(4), keep=[3]))
    assert answer(index, TEXT.tokens[:65]) == exactly(64)
    assert answer(index, TEXT.tokens[:64]) == exactly(0)
    tell(index, *TEXT.removed(FULL, [3]))
    assert answer(index, TEXT.tokens[:65]) == exactly(0)
    tell(index, *TEXT.removed(state, [3]))
    tell(index, TEXT.stored(state, range(3), keep=[2]))
    assert answer(index, TEXT.tokens[:65]) == exactly(48), "blocks 0 to 2 were never removed"


# --- one group index, two block sizes -------------------------------------------------------

SMALL = Group(idx=0, kind="mla_attention", block=4)


@pytest.mark.parametrize("small_first", [False, True])
@pytest.mark.parametrize("topology", [None, SPARSE_TOPOLOGY], ids=["learned", "configured"])
def test_stores_of_small_blocks_under_the_same_group_index_are_no_hits(
    topology: Topology | None, *, small_first: bool
) -> None:
    """A side cache of another kind announces itself as group 0 (llm-d-router #2679)."""
    stores = [TEXT.stored(SPARSE_FULL, range(3)), TEXT.stored(SMALL)]
    if topology is not None:
        stores = [*(TEXT.stored(group) for group in SPARSE[1:]), *stores]
    index = an_index(topology)
    for store in reversed(stores) if small_first else stores:
        tell(index, store)
    assert answer(index) == exactly(768)
    assert index.pods()[0].state is PodState.EXACT


def test_a_copy_of_either_size_is_never_taken_for_the_other() -> None:
    index = an_index()
    tell(index, TEXT.stored(SPARSE_FULL), TEXT.stored(SMALL))
    tell(index, *TEXT.removed(SMALL, [255]))  # The removal does not say which copy it means.
    lower, upper = answer(index)
    assert lower <= 1024 <= upper, "the whole block may still be there"
    assert lower <= 768 <= upper, "or it may be what was removed"


# --- numbers of groups ------------------------------------------------------------------------


@pytest.mark.parametrize("num_groups", [32, 64, 200])
def test_each_of_many_groups_can_end_the_prefix(num_groups: int) -> None:
    index = an_index()
    groups = [Group(idx=i, kind="sliding_window", window=128) for i in range(num_groups - 1)]
    groups.append(Group(idx=num_groups - 1))
    short = Text(num_tokens=256)
    tell(index, *(short.stored(group) for group in groups))
    tell(index, *(short.stored(group, medium="CPU") for group in groups))
    assert answer(index, short.prompt) == exactly(256)
    for i in {0, num_groups // 2, num_groups - 2}:
        tell(index, *short.removed(groups[i], [15]))
        (row,) = index.score(Request(model=MODEL, token_ids=short.prompt)).rows
        assert (row.lower, row.upper) == exactly(240)
        assert row.limiting is not None
        assert row.limiting.group == i
        assert row.tiers["gpu+cpu"].lower == 256
        tell(index, short.stored(groups[i], range(15, 16)))
    tell(index, *short.removed(groups[-1], [7]))
    assert answer(index, short.prompt) == exactly(112)


def test_a_group_that_is_not_known_yet_is_a_bound() -> None:
    index = an_index()
    tell(index, TEXT.stored(Group(idx=2)))
    assert answer(index) == (0, 1024)


def test_windows_kept_whole_are_placed_where_the_retention_is_told() -> None:
    told = an_index(SPARSE_TOPOLOGY, engine=EngineProfile(retention=0))
    publish_sparse(told, ends=(512, 1024))
    assert answer(told) == exactly(1024)
    assert answer(told, TEXT.tokens) == exactly(512)


def test_what_no_retention_can_have_kept_degrades_the_pod_that_was_said_to_have_one() -> None:
    """Windows of two blocks of 64 that end at multiples of 256: block 1 is in none of them."""
    told = an_index(SPARSE_TOPOLOGY, engine=EngineProfile(retention=0))
    tell(told, TEXT.stored(SPARSE_FULL), TEXT.stored(SPARSE[1], range(2)))
    assert told.pods()[0].state is PodState.EXACT
    tell(told, TEXT.stored(SPARSE[2], keep=(1, 9)))
    (pod,) = told.pods()
    assert (pod.state, pod.reason) == (PodState.DEGRADED, "contradicts_earlier_place")


# --- block sizes learned after a chain began ------------------------------------------------


def test_a_chain_below_a_parent_that_nobody_published_is_found_at_smaller_steps_too() -> None:
    """Two windows, no full group: the blocks end at 320, the parents are on no event."""
    large = Group(idx=0, kind="sliding_window", block=64, window=32)
    small = Group(idx=1, kind="sliding_window", block=16, window=16)
    index = an_index(options=IndexOptions(keys="join"))
    tell(index, TEXT.stored(large, range(4, 5)))
    tell(index, TEXT.stored(small, range(19, 20)))
    assert answer(index) == (0, 320)
