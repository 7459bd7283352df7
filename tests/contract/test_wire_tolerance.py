"""Everything that engines write is read, in old and new spellings; a bad event costs the events
beside it nothing, and ends the promises that it may have broken.

SGLang's older forms are built by hand, byte for byte as its publisher lays them out.
"""

from typing import Any

import msgspec.msgpack
import pytest
from kvbraid.engine import EngineProfile
from kvbraid.events import AllBlocksCleared, BlockRemoved, Event, WireForm, encode_batch
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId, PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import (
    FULL,
    OTHER,
    POD,
    TEXT,
    Group,
    Text,
    an_index,
    answer,
    exactly,
    tell,
)
from tests.contract.wires import SGLANG, SGLANG_FULL, SGLANG_HYBRID, bigrams, page, publish, signed


def as_list(*events: Event, form: WireForm = "map") -> list[Any]:
    """The events of a batch as MessagePack values, to be changed by hand."""
    decoded: list[Any] = msgspec.msgpack.decode(encode_batch(events, form=form))
    return list(decoded[1])


# --- one bad event keeps the rest -------------------------------------------------------------

BAD: dict[str, Any] = {
    "unknown_event": {"type": "BlockMoved", "block_hashes": [1]},
    "malformed_event": ["BlockStored", [1]],
    "bad_hash": ["BlockRemoved", [1.5]],
    "bad_tokens": ["BlockStored", [1], None, [-1], 16, None],
    "unknown_component": {"type": "BlockRemoved", "block_hashes": [1], "component_type": "x"},
    "negative_group": {"type": "BlockRemoved", "block_hashes": [1], "group_idx": -1},
    "bad_extra_keys": {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": [1],
        "block_size": 1,
        "extra_keys": [None, None],
    },
}


MOST = 1040
"""The longest hit of the prompt and one block more."""
LONGER = [*TEXT.prompt, *range(16)]
BROKEN = {
    "unknown_event": (0, MOST),
    "malformed_event": (1024, MOST),
    "bad_hash": (0, 1024),
    "bad_tokens": (1024, MOST),
    "unknown_component": (0, 1024),
    "negative_group": (0, 1024),
    "bad_extra_keys": (1024, MOST),
}
"""What can be said after each, of which the first 1024 tokens are held: a removal may have been
refused, or a store, or either."""


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("reason", BAD)
def test_one_bad_event_costs_its_neighbours_nothing_and_ends_promises_until_a_clear(
    reason: str, form: WireForm
) -> None:
    index = an_index()
    first, second = TEXT.stored(FULL, range(32)), TEXT.stored(FULL, range(32, 64))
    publish(index, [*as_list(first, form=form), BAD[reason], *as_list(second, form=form)])
    assert answer(index, LONGER) == BROKEN[reason]
    (pod,) = index.pods()
    assert (pod.refused, pod.messages, pod.state) == ({reason: 1}, 1, PodState.DEGRADED)
    assert pod.reason == "an event was refused"
    publish(index, [*as_list(AllBlocksCleared()), *as_list(first), *as_list(second)])
    assert answer(index, LONGER) == exactly(1024)
    assert index.pods()[0].state is PodState.EXACT


def test_only_a_clear_after_a_bad_event_ends_what_it_broke() -> None:
    index = an_index()
    (cleared,), (stored,) = as_list(AllBlocksCleared()), as_list(TEXT.stored())
    publish(index, [cleared, BAD["bad_hash"], stored])
    assert answer(index) == (0, 1024)
    publish(index, [BAD["bad_hash"], cleared, stored])
    assert answer(index) == exactly(1024)


def test_what_is_lost_and_told_again_is_not_broken_any_more() -> None:
    index = an_index()
    publish(index, [BAD["unknown_event"]])
    index.lose(POD)
    assert index.pods()[0].reason == ""


def test_arrays_and_maps_may_stand_in_one_batch() -> None:
    index = an_index()
    first, second = TEXT.stored(FULL, range(32)), TEXT.stored(FULL, range(32, 64))
    publish(index, [*as_list(first, form="array"), *as_list(second, form="map")])
    assert answer(index) == exactly(1024)


def test_fields_that_are_not_known_yet_are_stepped_over() -> None:
    index = an_index()
    (array,) = as_list(TEXT.stored(FULL, range(32)), form="array")
    (mapped,) = as_list(TEXT.stored(FULL, range(32, 64)), form="map")
    publish(index, [[*array, "new", {"x": 1}], {**mapped, "session_id": "s", "new": [1]}])
    assert answer(index) == exactly(1024)
    assert index.pods()[0].refused == {}


def test_the_rank_of_a_batch_decides_over_the_feeds() -> None:
    index = an_index(dp_size=2)
    publish(index, as_list(TEXT.stored()), 1)
    assert answer(index, dp_rank=0) == exactly(0)
    assert answer(index, dp_rank=1) == exactly(1024)


def test_a_rank_that_nobody_registered_gets_a_row_of_its_own() -> None:
    index = an_index()
    publish(index, as_list(TEXT.stored()), 3)
    assert answer(index, dp_rank=0) == exactly(0)
    assert answer(index, dp_rank=3) == exactly(1024)


def test_bytes_that_are_no_batch_are_counted_and_may_have_told_anything() -> None:
    index = an_index()
    tell(index, TEXT.stored())
    for payload in (b"", b"\xc1", b"\x93\x00", b"not a batch"):
        assert index.apply(POD, payload).refused == 1
    index.check_integrity()
    assert answer(index, LONGER) == (0, MOST)
    assert index.pods()[0].refused == {"malformed_batch": 4}


# --- hashes -----------------------------------------------------------------------------------


def respelled(event: Any, spell: Any) -> Any:  # noqa: ANN401 - MessagePack values
    """A mapped event with every hash written another way."""
    parent = event.get("parent_block_hash")
    changed = {**event, "block_hashes": [spell(value) for value in event["block_hashes"]]}
    if "parent_block_hash" in event:
        changed["parent_block_hash"] = None if parent is None else spell(parent)
    return changed


DIGESTS = {TEXT.hash(end): TEXT.digest(end) for end in range(16, 1040, 16)}
SPELLINGS = {
    "unsigned": int,
    "signed": lambda value: value - 2**64 if value >= 2**63 else value,
    "32 bytes": DIGESTS.__getitem__,
    "16 bytes": lambda value: DIGESTS[value][-16:],
}


@pytest.mark.parametrize("later", SPELLINGS)
@pytest.mark.parametrize("first", SPELLINGS)
def test_a_hash_is_the_same_in_every_spelling(first: str, later: str) -> None:
    index = an_index()
    stores = as_list(TEXT.stored(FULL, range(32)), TEXT.stored(FULL, range(32, 64)))
    publish(index, [respelled(stores[0], SPELLINGS[first])])
    publish(index, [respelled(stores[1], SPELLINGS[later])])
    assert answer(index) == exactly(1024)
    removed = as_list(*TEXT.removed(FULL, [48]))
    publish(index, [respelled(event, SPELLINGS[first]) for event in removed])
    assert answer(index) == exactly(768)


def test_zero_is_a_hash_like_any_other() -> None:
    index = an_index()
    hashes = (0, *TEXT.stored().block_hashes[1:])
    tell(index, TEXT.stored(FULL, range(1), block_hashes=hashes[:1]))
    tell(index, TEXT.stored(FULL, range(1, 64), parent_block_hash=0))
    assert answer(index) == exactly(1024)
    tell(index, BlockRemoved(block_hashes=(0,), group_idx=0))
    assert answer(index) == exactly(0)


def test_a_parent_of_zero_that_nobody_stored_is_not_a_root() -> None:
    index = an_index()
    tell(index, TEXT.stored(parent_block_hash=0))
    lower, _ = answer(index)
    assert lower == 0


# --- parents ----------------------------------------------------------------------------------


def test_children_of_an_unknown_parent_wait_and_join_later() -> None:
    index = an_index()
    for first in (48, 32, 16):
        tell(index, TEXT.stored(FULL, range(first, first + 16)))
    lower, _ = answer(index)
    assert lower == 0
    assert index.pods()[0].placed["unplaced"] == 48
    tell(index, TEXT.stored(FULL, range(16)))
    assert answer(index) == exactly(1024)
    assert index.pods()[0].placed["unplaced"] == 0


def test_children_that_never_get_their_parent_are_not_rebased_to_the_start() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32, 64)))
    assert answer(index, TEXT.tokens[512:]) == exactly(0)


@pytest.mark.parametrize("pieces", [[(0, 64)], [(0, 5), (5, 13)], [(i, i + 1) for i in range(13)]])
def test_a_prefix_is_found_however_its_stores_were_cut(pieces: list[tuple[int, int]]) -> None:
    """Gateways with larger canonical blocks lose the next turn after one-block stores."""
    index = an_index()
    tell(index, Text(seed=1).stored())
    for start, end in pieces:
        tell(index, TEXT.stored(FULL, range(start, end)))
    held = 16 * pieces[-1][1]
    assert answer(index, TEXT.prompt[: held + 1]) == exactly(min(held, len(TEXT.tokens)))


def test_a_store_that_reaches_far_below_a_larger_block_continues_an_uneven_one() -> None:
    """80 tokens, then 128 below their last block: no multiple of 64, which some indexers need."""
    index = an_index()
    tell(index, TEXT.stored(FULL, range(5)))
    tell(index, TEXT.stored(FULL, range(5, 13)))
    assert answer(index, TEXT.tokens[:209]) == exactly(208)


def test_engines_with_other_block_sizes_share_their_boundaries() -> None:
    index = an_index(pods=[POD, OTHER])
    tell(index, TEXT.stored(FULL, range(4)))
    tell(index, Text(engine="other").stored(Group(block=32), range(4)), pod=OTHER)
    assert answer(index) == exactly(64)
    assert answer(index, pod=OTHER) == exactly(128)
    index.remove(OTHER)
    assert answer(index) == exactly(64)


def test_a_clear_is_the_clear_of_one_pod() -> None:
    index = an_index(pods=[POD, OTHER])
    for pod in (POD, OTHER):
        tell(index, TEXT.stored(), pod=pod)
    tell(index, AllBlocksCleared())
    assert answer(index) == exactly(0)
    assert answer(index, pod=OTHER) == exactly(1024)


def test_whole_blocks_go_on_below_blocks_stored_in_part() -> None:
    """Blocks of 64, of which one is told in parts of 16 (llm-d-router #2373)."""
    whole, part = Group(block=64), Group(block=16)
    index = an_index()
    tell(index, Text(seed=1).stored(whole))
    tell(index, TEXT.stored(whole, range(3)))
    for j in range(12, 15):
        tell(index, TEXT.stored(part, range(j, j + 1)))
    assert answer(index, TEXT.tokens[:241]) == exactly(192), "interior boundaries are no hits"
    tell(index, TEXT.stored(part, range(15, 16)))
    tell(index, TEXT.stored(whole, range(4, 16)))
    assert answer(index) == exactly(192), "the block between is there in parts only"
    tell(index, TEXT.stored(whole, range(3, 4)))
    assert answer(index) == exactly(1024)


def test_parts_of_blocks_are_hits_where_the_engine_has_them_on() -> None:
    state = GroupSpec(kind=SpecKind.MAMBA, block_size=64)
    full = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
    for partial_hits, reused in ((True, 80), (False, 64)):
        topology = Topology(groups=(full, state), hash_block_size=16, partial_hits=partial_hits)
        index = an_index(topology)
        tell(index, TEXT.stored(), TEXT.stored(Group(idx=1, kind="mamba", block=64), range(1)))
        tell(index, TEXT.stored(Group(idx=1, kind="mamba", block=16), range(4, 5)))
        assert answer(index) == exactly(reused)


def test_a_placeholder_for_offloaded_blocks_is_never_a_root_nor_a_block_size() -> None:
    index = an_index()
    tell(index, TEXT.stored(medium="CPU", token_ids=(), block_size=0))
    assert answer(index) == exactly(0)
    tell(index, TEXT.stored())
    assert answer(index) == exactly(1024)
    assert [group.block_size for group in index.pods()[0].groups] == [16]


def test_more_pods_than_any_list_per_block_can_be_told_apart() -> None:
    pods = [PodId(f"p{i:03}") for i in range(130)]
    index = an_index(pods=pods)
    for pod in pods:
        tell(index, TEXT.stored(), pod=pod)
    assert {answer(index, pod=pod) for pod in pods} == {exactly(1024)}


def test_a_full_report_of_blocks_held_already_is_a_bound_where_configured() -> None:
    groups = (GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),)
    index = an_index(Topology(groups=groups), engine=EngineProfile(report_mode="full"))
    tell(index, TEXT.stored())
    tell(index, TEXT.stored())  # Announced again, no second copy.
    tell(index, *TEXT.removed(FULL, range(64)))
    assert answer(index) == (0, 1024)


# --- SGLang -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param([], id="six fields"),
        pytest.param(["GPU"], id="medium"),
        pytest.param(["GPU", {"session_id": "x"}], id="metadata"),
        pytest.param(["GPU", {}], id="empty metadata"),
    ],
)
def test_every_age_of_sglang_is_read(rest: list[Any]) -> None:
    index = an_index(SGLANG_FULL, engine=SGLANG)
    publish(index, [page(TEXT, 0, 32, *rest), page(TEXT, 32, 64, *rest)], 0)
    assert answer(index) == exactly(1024)
    publish(index, [["BlockRemoved", [signed(TEXT.hash(1024)), signed(TEXT.hash(1008))]]])
    assert answer(index) == exactly(992)
    publish(index, [["AllBlocksCleared"]])
    assert answer(index) == exactly(0)


def test_a_salt_of_sglang_is_in_its_metadata() -> None:
    index = an_index(SGLANG_FULL, engine=SGLANG)
    metadata = {"cache_salt": "s", "session_id": "x"}
    publish(index, [page(TEXT, 0, 32, "GPU", metadata), page(TEXT, 32, 64, "GPU", metadata)])
    assert answer(index, cache_salt="s") == exactly(1024)
    assert answer(index) == exactly(0)


@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("lora", [None, "sql"])
def test_maps_of_sglang_carry_salt_and_adapter(salt: str | None, lora: str | None) -> None:
    index = an_index(SGLANG_FULL, engine=SGLANG)
    plain = Group(idx=None, kind=None)
    first = TEXT.stored(plain, range(32), cache_salt=salt, lora_name=lora)
    tell(index, first, form="sglang_map")
    second = TEXT.stored(plain, range(32, 64), cache_salt=salt, lora_name=lora)
    tell(index, second, form="sglang_map")
    assert answer(index, cache_salt=salt, lora=lora) == exactly(1024)
    assert answer(index, cache_salt="t", lora=lora) == exactly(0)
    assert answer(index, cache_salt=salt, lora="other") == exactly(0)


@pytest.mark.parametrize("medium", ["CPU_PINNED", "CPU_TIER1", "cpu", "DISK", "EXTERNAL"])
def test_lower_tiers_of_sglang_are_not_on_the_gpu(medium: str) -> None:
    index = an_index(SGLANG_FULL, engine=SGLANG)
    publish(index, [page(TEXT, 0, 64, medium)])
    assert answer(index) == exactly(0)
    assert answer(index, tiers=["gpu", "cpu", "storage"]) == exactly(1024)
    publish(index, [["BlockRemoved", [signed(TEXT.hash(1024))], medium]])
    assert answer(index, tiers=["gpu", "cpu", "storage"]) == exactly(1008)


@pytest.mark.parametrize("topology", [None, SGLANG_FULL], ids=["learned", "configured"])
def test_pairs_of_tokens_cover_one_token_more(topology: Topology | None) -> None:
    index = an_index(topology)
    publish(index, [bigrams(TEXT, 0, 32), bigrams(TEXT, 32, 64)])
    forked = (*TEXT.tokens[:512], 9, *TEXT.tokens[513:])
    if topology is not None:
        assert answer(index, TEXT.tokens) == exactly(1008), "the last pair has no second token"
        assert answer(index) == exactly(1024)
        assert answer(index, forked) == exactly(496)
    else:  # Of what kind the cache is, is not known.
        assert answer(index) == (0, 1024)


def test_an_sglang_hybrid_publishes_its_full_part_so_that_its_answer_is_an_upper_bound() -> None:
    index = an_index(SGLANG_HYBRID, engine=SGLANG)
    publish(index, [page(TEXT, 0, 32, "GPU")])
    assert answer(index) == (0, 512)
    publish(index, [["BlockRemoved", [signed(TEXT.hash(512))], "GPU"]])
    assert answer(index) == (0, 496)


def test_an_sglang_engine_of_unknown_groups_is_an_upper_bound() -> None:
    index = an_index(engine=SGLANG)
    publish(index, [page(TEXT, 0, 32, "GPU")])
    assert answer(index) == (0, 512)


def test_media_identifiers_are_no_adapters() -> None:
    """An older reader took the adapter's name for a medium, so that its keys never met."""
    index = an_index()
    item = MediaItem(identifier="cat", offset=20, length=4)
    keys = ((), (("cat", 4),), *((),) * 62)
    tell(index, TEXT.stored(lora_name="cat", extra_keys=keys))
    assert answer(index, lora="cat", extra_keys=[item]) == exactly(1024)
    assert answer(index, lora="cat") == exactly(16)
