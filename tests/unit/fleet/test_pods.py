"""Pods are registered, describe themselves, contradict that, and are removed."""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, encode_batch
from kvbraid.fleet.index import SECRET_BYTES, FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId, PodState
from kvbraid.spec import EngineDialect, SpecKind, Topology

from tests.unit.fleet.pods import (
    FULL,
    HYBRID,
    POD,
    PROMPT,
    bounds,
    index_of,
    info,
    row_of,
    stored,
    tell,
    window_stored,
)


def parts_stored(*hashes: int) -> list[BlockStored]:
    """Parts of two tokens, one after another, each in a store of its own as engines send them."""
    return [
        stored(
            block_hashes=(own,),
            parent_block_hash=parent,
            token_ids=PROMPT[2 * at : 2 * at + 2],
            block_size=2,
        )
        for at, (parent, own) in enumerate(zip((None, *hashes), hashes, strict=False))
    ]


# --- registration ----------------------------------------------------------------------------


def test_registering_the_same_again_keeps_what_is_known() -> None:
    index = index_of(HYBRID)
    tell(index, stored(), window_stored())
    index.register(POD, model="m", topology=HYBRID)
    assert bounds(index) == (16, 16)


def test_registering_something_else_starts_anew() -> None:
    index = index_of(HYBRID)
    tell(index, stored(), window_stored())
    index.register(POD, model="m", topology=replace(HYBRID, alignment=8))
    index.check_integrity()
    assert bounds(index) == (0, 0)
    index.register(POD, model="another")
    assert index.models() == ["another"]


def test_a_removed_pod_leaves_nothing_behind_and_may_come_back() -> None:
    index = index_of(HYBRID)
    tell(index, stored(), window_stored())
    index.remove(POD)
    index.check_integrity()
    assert (index.pods(), index.models()) == ([], [])
    index.register(POD, model="m", topology=HYBRID)
    assert bounds(index) == (0, 0)
    tell(index, stored(), window_stored())
    assert bounds(index) == (16, 16)


def test_a_column_that_is_used_again_inherits_no_bits() -> None:
    index = index_of(HYBRID)
    index.register(PodId("b"), model="m", topology=HYBRID)
    for pod in (POD, PodId("b")):
        tell(index, stored(), window_stored(), pod=pod)
    index.remove(POD)
    index.register(PodId("c"), model="m", topology=HYBRID)
    rows = index.score(Request(model="m", token_ids=PROMPT)).rows
    assert [(row.pod, row.lower, row.upper) for row in rows] == [("b", 16, 16), ("c", 0, 0)]


def test_unknown_names_are_errors_that_show_them() -> None:
    index = index_of()
    with pytest.raises(UnknownError, match="nobody"):
        index.apply(PodId("nobody"), b"")
    with pytest.raises(UnknownError, match="nobody"):
        index.remove(PodId("nobody"))
    with pytest.raises(UnknownError, match="no such model"):
        index.score(Request(model="no such model", token_ids=PROMPT))
    with pytest.raises(UnknownError, match="nobody"):
        index.score(Request(model="m", token_ids=PROMPT, pods=["nobody"]))
    with pytest.raises(UnknownError, match="rank 3"):
        index.reset(POD, dp_rank=3)


def test_a_pod_needs_a_rank_and_a_possible_topology() -> None:
    index = FleetIndex()
    with pytest.raises(InvalidValueError, match="dp_size of pod 'a' is 0"):
        index.register(POD, model="m", dp_size=0)
    with pytest.raises(InvalidValueError, match="block_size 4"):
        index.register(POD, model="m", topology=replace(HYBRID, hash_block_size=3))
    assert index.pods() == []


def test_the_rank_that_a_batch_names_goes_before_that_of_its_feed() -> None:
    index = FleetIndex()
    index.register(POD, model="m", dp_size=2, topology=HYBRID)
    index.apply(POD, encode_batch([stored(), window_stored()], dp_rank=1), dp_rank=0)
    rows = index.score(Request(model="m", token_ids=PROMPT)).rows
    assert [(row.dp_rank, row.lower) for row in rows] == [(0, 0), (1, 16)]


# --- states ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [PodState.REBUILDING, PodState.DEGRADED, PodState.STALE])
def test_in_all_states_but_exact_nothing_aligned_is_excluded(state: PodState) -> None:
    index = index_of(replace(HYBRID, alignment=8))
    tell(index, stored(3), window_stored(3))
    index.set_state(POD, state, reason="because")
    row = row_of(index, range(40))
    assert (row.state, row.upper, row.exactness) == (state, 32, "bound")
    assert row.lower == (8 if state is PodState.DEGRADED else 0)
    assert info(index).reason == "because"
    index.set_state(POD, PodState.EXACT)
    assert bounds(index) == (8, 8)


def test_with_partial_hits_the_bound_is_a_multiple_of_the_hash_block() -> None:
    index = index_of(Topology(groups=(FULL,), hash_block_size=2, partial_hits=True))
    index.set_state(POD, PodState.STALE)
    assert bounds(index, range(16)) == (0, 14)


def test_a_loss_forgets_what_was_held_and_a_clear_makes_the_gpu_certain_again() -> None:
    index = index_of(HYBRID)
    tell(index, stored(), window_stored())
    index.lose(POD)
    index.check_integrity()
    assert bounds(index) == (0, 16)
    tell(index, AllBlocksCleared())
    assert bounds(index) == (0, 0)
    tell(index, stored(2), window_stored(2), stored(2, medium="CPU"))
    row = row_of(index)
    assert (row.lower, row.upper) == (8, 8)
    both = row.tiers["gpu+cpu"]
    assert (both.lower, both.upper) == (8, 16), "copies on the host may have been lost from sight"


def test_a_restart_forgets_the_gpu_and_what_hashes_meant() -> None:
    index = index_of(HYBRID)
    tell(index, stored(), window_stored())
    index.reset(POD)
    index.check_integrity()
    assert bounds(index) == (0, 0)
    other = tuple(range(100, 116))
    tell(index, stored(token_ids=other), window_stored(token_ids=other))
    assert (bounds(index), bounds(index, (*other, 0))) == ((0, 0), (16, 16))
    assert info(index).state is PodState.EXACT


# --- what configuration and events say of groups ---------------------------------------------


def test_groups_are_learned_in_the_order_of_their_indices() -> None:
    index = index_of()
    tell(index, window_stored(), stored())
    assert [(g.group, g.kind, g.block_size, g.window) for g in info(index).groups] == [
        (0, SpecKind.FULL_ATTENTION, 4, None),
        (1, SpecKind.SLIDING_WINDOW, 4, 5),
    ]
    assert bounds(index) == (16, 16)


def test_a_group_not_heard_of_yet_leaves_the_lower_bound_at_nothing() -> None:
    index = index_of()
    tell(index, window_stored())
    assert bounds(index) == (0, 16)


CONTRADICTIONS = {
    "contradicts_kind": window_stored(group_idx=0),
    "contradicts_window": window_stored(kv_cache_spec_sliding_window=6),
    "contradicts_block_size": stored(block_hashes=(9, 10), block_size=8),
    "contradicts_group_count": window_stored(group_idx=2),
}


@pytest.mark.parametrize("reason", CONTRADICTIONS)
def test_a_contradicted_configuration_degrades_the_pod_until_it_restarts(reason: str) -> None:
    index = index_of(HYBRID)
    tell(index, stored(), window_stored())
    tell(index, CONTRADICTIONS[reason])
    pod = info(index)
    assert (pod.state, pod.reason, pod.refused[reason]) == (PodState.DEGRADED, reason, 1)
    assert bounds(index) == (0, 16)
    index.reset(POD)
    assert (info(index).state, bounds(index)) == (PodState.EXACT, (0, 0))


@pytest.mark.parametrize("reason", ["contradicts_kind", "contradicts_window"])
def test_what_was_learned_can_be_contradicted_too(reason: str) -> None:
    index = index_of()
    tell(index, stored(), window_stored())
    tell(index, CONTRADICTIONS[reason])
    assert info(index).reason == reason


def test_two_hashes_at_one_boundary_leave_a_bound_from_there_on_and_nothing_else() -> None:
    index = index_of()
    other = (*PROMPT[:4], *range(40, 53))
    tell(index, stored(), stored(token_ids=other[:16], block_hashes=(0, 21, 22, 23)))
    tell(index, stored(parent_block_hash=0, blocks=1, token_ids=PROMPT[4:8], block_hashes=(10,)))
    assert info(index).refused == {"two_hashes_at_one_boundary": 1}
    assert info(index).state is PodState.EXACT
    assert bounds(index) == (4, 16)
    assert bounds(index, other) == (16, 16)
    # What it would take to find the first hash is not known to be there without the second either.
    tell(index, BlockRemoved(block_hashes=(10,), group_idx=0))
    assert bounds(index) == (4, 16)


def test_a_clear_forgets_that_there_were_two_hashes_at_one_boundary() -> None:
    index = index_of()
    tell(index, stored(), stored(block_hashes=(10, 11, 12, 13)))
    assert (bounds(index), info(index).state) == ((0, 16), PodState.EXACT)
    tell(index, AllBlocksCleared())
    assert bounds(index) == (0, 0)
    tell(index, stored())
    assert bounds(index) == (16, 16)


def test_one_of_two_hashes_at_a_boundary_goes_and_the_other_still_shows() -> None:
    index = index_of(Topology(groups=(FULL,)))
    tell(index, stored(), stored(block_hashes=(10, 11, 12, 13)))
    tell(index, BlockRemoved(block_hashes=(10, 11, 12, 13), group_idx=0))
    assert bounds(index) == (0, 16)
    tell(index, BlockRemoved(block_hashes=(0, 1, 2, 3), group_idx=0))
    assert bounds(index) == (0, 0)


def test_a_copy_in_doubt_stays_in_the_upper_bound_across_a_restart() -> None:
    """Two hashes at one boundary on disk, a clear, the removal of one: the other may be there."""
    index = index_of(Topology(groups=(FULL,)))
    tell(index, stored(1, medium="disk"), stored(1, medium="disk", block_hashes=(10,)))
    tell(index, AllBlocksCleared())
    tell(index, BlockRemoved(block_hashes=(10,), medium="disk", group_idx=0))
    for _ in range(2):
        (row,) = index.score(Request(model="m", token_ids=PROMPT, tiers=["gpu", "storage"])).rows
        assert (row.lower, row.upper) == (0, 4)
        index.check_integrity()
        index.reset(POD)


def test_one_hash_at_two_boundaries_degrades_the_pod() -> None:
    index = index_of()
    tell(index, stored(), stored(token_ids=tuple(range(50, 66))))
    assert info(index).reason == "contradicts_earlier_place"


def test_a_configured_hash_function_that_events_refute_degrades_the_pod() -> None:
    configured = EngineProfile(hash_algo=HashAlgo.SHA256, hash_seed="0")
    index = index_of(HYBRID, engine=configured)
    assert info(index).hash_function == "configured"
    tell(index, stored())
    pod = info(index)
    assert (pod.hash_function, pod.reason) == ("refuted", "contradicts_hash_function")
    joined = index_of(HYBRID, IndexOptions(keys="join"), engine=configured)
    tell(joined, stored(), window_stored())
    assert (info(joined).hash_function, bounds(joined)) == ("unknown", (16, 16))


def test_blocks_smaller_than_the_group_s_are_parts_also_when_they_come_first() -> None:
    parts = stored(block_hashes=(20, 21, 22, 23), token_ids=PROMPT[:8], block_size=2)
    first = index_of()
    tell(first, parts)
    assert bounds(first) == (8, 8)
    tell(first, stored(block_hashes=(21, 23, 30, 31)), BlockRemoved(block_hashes=(21,)))
    assert info(first).state is PodState.EXACT
    assert [group.block_size for group in info(first).groups] == [4]
    configured = index_of(Topology(groups=(FULL,), hash_block_size=2))
    tell(configured, *parts_stored(20, 21, 22, 23))
    assert (bounds(configured), info(configured).state) == ((0, 0), PodState.EXACT)


NO_PARTS: dict[str, tuple[int, BlockStored]] = {
    "several blocks": (2, stored(block_hashes=(20, 21), token_ids=PROMPT[:4], block_size=2)),
    "one block that ends inside a hash block": (4, parts_stored(20)[0]),
}


@pytest.mark.parametrize("case", NO_PARTS)
def test_smaller_blocks_that_are_no_parts_degrade_the_pod_until_one_of_its_size_comes(
    case: str,
) -> None:
    hash_block, small = NO_PARTS[case]
    index = index_of(Topology(groups=(FULL,), hash_block_size=hash_block))
    for _ in range(2):
        tell(index, small)
        pod = info(index)
        assert (pod.state, pod.reason) == (PodState.DEGRADED, "contradicts_block_size")
        assert bounds(index) == (0, 16)
        index.reset(POD)
        assert info(index).state is PodState.EXACT
    tell(index, small, stored(), small)
    assert (info(index).state, bounds(index)) == (PodState.EXACT, (16, 16))
    assert info(index).refused == {"contradicts_block_size": 3}


def test_parts_count_inside_blocks_where_partial_hits_are_on_and_nowhere_else() -> None:
    topology = Topology(groups=(FULL,), hash_block_size=2, partial_hits=True)
    parts = parts_stored(20, 21, 22)
    for partial_hits, expected in ((True, 2), (False, 0)):
        index = index_of(replace(topology, partial_hits=partial_hits))
        tell(index, *parts)
        # The part that ends at token 4 is not the whole block that token 6 rests on.
        assert bounds(index) == (expected, expected)


# --- engines that do not say everything ------------------------------------------------------


def test_full_reports_promise_nothing_and_count_copies_for_the_upper_bound() -> None:
    index = index_of(HYBRID, engine=EngineProfile(report_mode="full"))
    tell(index, stored(), window_stored())
    assert bounds(index) == (0, 16)
    tell(index, BlockRemoved(block_hashes=(2,), group_idx=0))
    assert bounds(index) == (0, 8)


def test_an_sglang_hybrid_is_bounded_by_its_full_attention_part() -> None:
    sglang = EngineProfile(dialect=EngineDialect.SGLANG)
    index = index_of(HYBRID, engine=sglang)
    event = stored(group_idx=None, kv_cache_spec_kind=None)
    index.apply(POD, encode_batch([event], form="sglang_array"))
    assert bounds(index) == (0, 16)
    plain = index_of(Topology(groups=(FULL,)), engine=sglang)
    plain.apply(POD, encode_batch([event], form="sglang_array"))
    assert bounds(plain) == (16, 16)


def test_hash_0_is_a_parent_like_any_other() -> None:
    index = index_of(HYBRID)
    first: dict[str, Any] = {"block_hashes": (0,), "token_ids": PROMPT[:4]}
    rest: dict[str, Any] = {
        "block_hashes": (1, 2, 3),
        "token_ids": PROMPT[4:16],
        "parent_block_hash": 0,
    }
    tell(index, stored(**rest), window_stored(**rest))
    assert bounds(index, PROMPT[4:])[0] == 0, "an unknown parent is not the root"
    assert bounds(index) == (0, 0), "token 0 is held by nobody"
    tell(index, stored(**first), window_stored(**first))
    assert bounds(index) == (16, 16)


# --- memory ----------------------------------------------------------------------------------


def test_storing_and_removing_for_ever_does_not_grow() -> None:
    """In miniature: so many new blocks in each round, a few of which live a little longer.

    The first rounds fill what a rank may keep of names that nobody holds; then nothing grows. When
    a table doubles depends on the secret, within those rounds or, seldom, after them.
    """
    options = IndexOptions(secret=bytes(SECRET_BYTES), seen_limit_bytes=1 << 16)
    index = index_of(Topology(groups=(FULL,)), options)
    num_blocks, live = 20_000, 16
    after: list[int] = []
    for number in range(20):
        first = number * num_blocks
        hashes = tuple(range(first, first + num_blocks))
        tokens = tuple(range(4 * first, 4 * (first + num_blocks)))
        index.apply(POD, encode_batch([stored(block_hashes=hashes, token_ids=tokens)]))
        index.apply(POD, encode_batch([BlockRemoved(block_hashes=hashes[live:], group_idx=0)]))
        index.check_integrity()
        assert bounds(index, tokens[:65]) == (64, 64)
        index.apply(POD, encode_batch([BlockRemoved(block_hashes=hashes[:live], group_idx=0)]))
        index.check_integrity()
        after.append(index.memory_bytes())
    assert after[-1] <= 1.05 * after[2]


def test_what_was_forgotten_for_want_of_memory_is_not_excluded_until_a_clear() -> None:
    index = index_of(HYBRID, IndexOptions(memory_limit_bytes=1))
    tell(index, stored(), window_stored())
    for _ in range(8):
        index.enforce_limits()
        index.check_integrity()
    assert bounds(index) == (0, 16)
    tell(index, AllBlocksCleared())
    assert bounds(index) == (0, 0)


def test_many_batches_at_once_are_the_same_as_one_after_the_other() -> None:
    payloads = [
        encode_batch([stored()], ts=1.0),
        b"\x00",
        encode_batch([AllBlocksCleared()], ts=2.0),
        encode_batch([stored(2)], ts=3.0),
    ]
    together, apart = FleetIndex(), FleetIndex()
    for index in (together, apart):
        index.register(POD, model="m")
    applied = together.apply_many(POD, payloads, budget_s=60)
    assert applied == [apart.apply(POD, payload) for payload in payloads]
    assert [row.cleared for row in applied] == [0, 0, 1, 0]
    assert together.pods() == apart.pods()
    assert together.apply_many(POD, [], budget_s=60) == []


def test_without_time_one_batch_is_applied_and_the_rest_is_left() -> None:
    index = FleetIndex()
    index.register(POD, model="m")
    payload = encode_batch([stored()], ts=1.0)
    assert len(index.apply_many(POD, [payload] * 3, budget_s=0)) == 1
    assert index.pods()[0].messages == 1
    with pytest.raises(UnknownError):
        index.apply_many(PodId("b"), [payload], budget_s=0)
