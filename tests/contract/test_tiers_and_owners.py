"""Copies in host memory, on storage and with owners: what each set of tiers can reuse.

A block may have copies on several tiers at once; each copy needs its own removal.
"""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, WireForm
from kvbraid.fleet.answer import Bounds, PodScore
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import Tier
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import (
    FULL,
    MODEL,
    POD,
    TEXT,
    WINDOW,
    Bound,
    Group,
    an_index,
    answer,
    exactly,
    tell,
)

FULL_KIND = SpecKind.FULL_ATTENTION
ONE_GROUP = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
HALF = range(32)
ALL = range(64)


def row(index: FleetIndex, **request: Any) -> PodScore:  # noqa: ANN401 - fields of the request
    (found,) = index.score(Request(model=MODEL, token_ids=TEXT.prompt, **request)).rows
    index.check_integrity()
    return found


def tiers(index: FleetIndex) -> dict[str, Bound]:
    return {name: (bounds.lower, bounds.upper) for name, bounds in row(index).tiers.items()}


def offloaded(
    medium: str = "CPU",
    blocks: range = ALL,
    group: Group = FULL,
    **fields: Any,  # noqa: ANN401 - fields of the event, as they are
) -> BlockStored:
    """A copy as offloading announces it: hashes only, neither tokens nor parent nor size."""
    event = {"token_ids": (), "parent_block_hash": None, "block_size": 0, **fields}
    return TEXT.stored(
        Group(idx=group.idx, kind=None, block=group.block), blocks, medium=medium, **event
    )


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_cpu_tier_adds_to_what_the_gpu_holds(form: WireForm) -> None:
    index = an_index()
    tell(index, TEXT.stored(), form=form)
    tell(index, TEXT.stored(medium="cpu"), form=form)
    tell(index, *TEXT.removed(FULL, range(32, 64)), form=form)
    assert tiers(index) == {"gpu": exactly(512), "gpu+cpu": exactly(1024)}
    assert row(index).lower == 512
    assert row(index, tiers=["gpu", "cpu"]).lower == 1024
    assert row(index, tiers=["cpu"]).lower == 1024


@pytest.mark.parametrize("form", ["map", "array"])
def test_an_offloaded_copy_without_tokens_is_found_by_its_hash(form: WireForm) -> None:
    index = an_index()
    tell(index, TEXT.stored(), form=form)
    tell(index, offloaded(), form=form)
    tell(index, *TEXT.removed(FULL, ALL), form=form)
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": exactly(1024)}


def test_an_offloaded_copy_may_be_announced_before_its_tokens_are() -> None:
    index = an_index()
    tell(index, offloaded())
    tell(index, TEXT.stored())
    tell(index, *TEXT.removed(FULL, ALL))
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": exactly(1024)}


@pytest.mark.parametrize("first", ["GPU", "CPU"])
def test_copies_leave_their_own_tier_in_any_order(first: str) -> None:
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(medium="CPU"))
    tell(index, *TEXT.removed(FULL, ALL, medium=first))
    left = {"GPU": {"gpu": 0, "gpu+cpu": 1024}, "CPU": {"gpu": 1024, "gpu+cpu": 1024}}[first]
    assert tiers(index) == {name: exactly(tokens) for name, tokens in left.items()}
    second = {"GPU": "CPU", "CPU": "GPU"}[first]
    tell(index, *TEXT.removed(FULL, ALL, medium=second))
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": exactly(0)}


@pytest.mark.parametrize("group", [0, None])
@pytest.mark.parametrize("form", ["map", "array"])
def test_offloading_that_names_no_group_means_the_only_full_one(
    group: int | None, form: WireForm
) -> None:
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(WINDOW), form=form)
    tell(index, offloaded(group=Group(idx=group)), form=form)
    tell(index, *TEXT.removed(FULL, range(32, 64)), form=form)
    assert tiers(index) == {"gpu": exactly(512), "gpu+cpu": exactly(1024)}
    tell(index, *TEXT.removed(Group(idx=group), range(48, 64), medium="CPU"), form=form)
    assert tiers(index) == {"gpu": exactly(512), "gpu+cpu": exactly(768)}


def test_three_tiers_are_answered_nearest_first() -> None:
    index = an_index()
    tell(index, TEXT.stored())
    tell(index, offloaded("CPU"), offloaded("STORAGE"))
    tell(index, *TEXT.removed(FULL, range(16, 64)))
    tell(index, *TEXT.removed(FULL, range(32, 64), medium="CPU"))
    assert list(tiers(index).items()) == [
        ("gpu", exactly(256)),
        ("gpu+cpu", exactly(512)),
        ("gpu+cpu+storage", exactly(1024)),
    ]
    assert row(index).score == pytest.approx(256 * 1.0 + 256 * 0.8 + 512 * 0.5)


def test_storage_without_host_memory_skips_a_tier() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, HALF), offloaded("STORAGE"), TEXT.stored(FULL, ALL))
    tell(index, *TEXT.removed(FULL, [*HALF, *ALL]))
    assert tiers(index) == {"gpu": exactly(0), "gpu+storage": exactly(1024)}
    assert row(index).score == pytest.approx(512.0)


@pytest.mark.parametrize("tiers", [["gpu"], ["cpu"], ["storage"]])
def test_the_score_counts_all_tiers_whichever_are_requested(tiers: list[str]) -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, HALF), offloaded("CPU", blocks=HALF))
    assert row(index, tiers=tiers).score == 512


def test_weights_are_the_operators() -> None:
    index = an_index(options=IndexOptions(tier_weights={Tier.CPU: 0.25}))
    tell(index, TEXT.stored(), offloaded())
    tell(index, *TEXT.removed(FULL, range(32, 64)))
    assert row(index).score == pytest.approx(512 + 512 * 0.25)


@pytest.mark.parametrize(
    ("weights", "score"),
    [
        (None, 512 + 512 * 0.25),
        ({}, 512 + 512 * 0.25),
        ({Tier.CPU: 0.75}, 512 + 512 * 0.75),
        ({Tier.GPU: 2, Tier.CPU: 0.0}, 1024),
        ({Tier.STORAGE: 9.0}, 512 + 512 * 0.25),
    ],
)
def test_a_request_may_have_weights_of_its_own(
    weights: dict[Tier, float] | None, score: float
) -> None:
    """Tiers that it leaves out keep the index's; the next request has those again."""
    index = an_index(options=IndexOptions(tier_weights={Tier.CPU: 0.25}))
    tell(index, TEXT.stored(), offloaded())
    tell(index, *TEXT.removed(FULL, range(32, 64)))
    assert row(index, tier_weights=weights).score == pytest.approx(score)
    blocks = row(index, tier_weights=weights, strategy="weighted_blocks").score
    assert blocks == pytest.approx(score / 16)
    assert row(index).score == pytest.approx(512 + 512 * 0.25)


def test_a_token_is_worth_its_furthest_group() -> None:
    """The window of the end is in host memory only, so that its 127 tokens must be loaded."""
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(WINDOW))
    tell(index, offloaded(group=WINDOW))
    tell(index, *TEXT.removed(WINDOW, range(64)))
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": exactly(1024)}
    assert row(index).score == pytest.approx(896 * 1.0 + 128 * 0.8)


@pytest.mark.parametrize("kind", [SpecKind.FULL_ATTENTION, SpecKind.MAMBA])
def test_a_hit_inside_a_block_has_the_tier_of_the_entry_there(kind: SpecKind) -> None:
    groups = (GroupSpec(kind=kind, block_size=32), GroupSpec(kind=FULL_KIND, block_size=16))
    index = an_index(Topology(groups=groups, hash_block_size=16, partial_hits=True))
    whole = Group(kind=kind.value, block=32)
    tell(index, TEXT.stored(replace(FULL, idx=1)))
    tell(index, TEXT.stored(whole, range(1), medium="CPU"))
    tell(index, TEXT.stored(replace(whole, block=16), range(2, 3), medium="CPU"))
    found = index.score(Request(model=MODEL, token_ids=TEXT.prompt[:49])).rows[0]
    assert found.tiers["gpu+cpu"] == Bounds(48, 48)
    on_gpu = 32 if kind is SpecKind.MAMBA else 0  # The state's block is the last one.
    assert found.score == pytest.approx(on_gpu + (48 - on_gpu) * 0.8)


@pytest.mark.parametrize("is_placed", [True, False])
def test_an_offloaded_copy_may_end_inside_a_block(is_placed: bool) -> None:
    """A placeholder says no size, so its place alone shows that its state ends inside a block."""
    groups = (
        GroupSpec(kind=SpecKind.MAMBA, block_size=32),
        GroupSpec(kind=FULL_KIND, block_size=16),
    )
    index = an_index(Topology(groups=groups, hash_block_size=16, partial_hits=True))
    full, state = replace(FULL, idx=1), Group(idx=0, kind="mamba", block=16)
    tell(index, TEXT.stored(full, range(3 if is_placed else 2)))
    tell(
        index,
        offloaded(group=full, blocks=range(2, 3)),
        offloaded(group=state, blocks=range(2, 3)),
    )
    found = index.score(Request(model=MODEL, token_ids=TEXT.prompt[:49])).rows[0]
    assert found.tiers["gpu"] == Bounds(0, 0)
    assert found.tiers["gpu+cpu"] == Bounds(48 if is_placed else 0, 48)


def test_a_window_that_the_engine_replays_counts_on_no_tier() -> None:
    window = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=128)
    full = GroupSpec(kind=FULL_KIND, block_size=16)
    index = an_index(Topology(groups=(full, window), replay_tokens=128))
    tell(index, TEXT.stored(medium="CPU"))
    assert tiers(index)["gpu+cpu"] == exactly(896)
    assert row(index).score == pytest.approx(896 * 0.8)


def test_a_prefix_may_be_pieced_together_from_tiers() -> None:
    index = an_index()
    tell(index, TEXT.stored(), offloaded())
    tell(index, *TEXT.removed(FULL, range(0, 64, 2)))
    tell(index, *TEXT.removed(FULL, range(1, 64, 2), medium="CPU"))
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": exactly(1024)}
    assert row(index).score == pytest.approx(512 * 1.0 + 512 * 0.8)


# --- owners -----------------------------------------------------------------------------------


def remote(owner: str | None) -> dict[str, Any]:
    return {"medium": "STORAGE", "locality": "REMOTE", "ownership": owner}


def test_a_removal_takes_away_a_copy_of_its_own_owner_only() -> None:
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(**remote("x")), TEXT.stored(**remote("y")))
    tell(index, *TEXT.removed(FULL, ALL))
    tell(index, *TEXT.removed(FULL, ALL, **remote("x")))
    assert tiers(index)["gpu+storage"] == exactly(1024)
    tell(index, *TEXT.removed(FULL, ALL, **remote("z")))
    tell(index, *TEXT.removed(FULL, ALL, medium="STORAGE", ownership="y"))
    assert tiers(index)["gpu+storage"] == exactly(1024), "neither was this copy"
    assert index.pods()[0].refused == {"removed_unknown": 128}
    tell(index, *TEXT.removed(FULL, range(10, 64), **remote("y")))
    assert tiers(index) == {"gpu": exactly(0), "gpu+storage": exactly(160)}


def test_a_remote_copy_is_not_on_this_gpu() -> None:
    index = an_index(ONE_GROUP)
    tell(index, TEXT.stored(locality="REMOTE"))
    assert tiers(index) == {"gpu": exactly(0), "gpu+storage": exactly(1024)}


def test_an_unknown_medium_counts_as_storage_and_is_noted() -> None:
    index = an_index(ONE_GROUP)
    tell(index, TEXT.stored(medium="mooncake"))
    assert tiers(index) == {"gpu": exactly(0), "gpu+storage": exactly(1024)}
    assert index.pods()[0].refused == {"unknown_medium": 1}


# --- clears -----------------------------------------------------------------------------------


def test_a_clear_takes_the_gpu_tier_and_leaves_the_others_in_doubt() -> None:
    index = an_index()
    tell(index, TEXT.stored(), offloaded())
    tell(index, AllBlocksCleared())
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": (0, 1024)}


def test_doubt_ends_when_an_event_speaks_of_the_copy() -> None:
    index = an_index()
    tell(index, TEXT.stored(), offloaded())
    tell(index, AllBlocksCleared())
    tell(index, *TEXT.removed(FULL, range(32, 64), medium="CPU"))
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": (0, 512)}
    tell(index, offloaded(blocks=HALF))
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": exactly(512)}


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_a_removal_takes_one_copy_in_doubt_away(medium: str) -> None:
    index = an_index()
    tell(index, TEXT.stored(medium=medium), TEXT.stored(medium=medium), AllBlocksCleared())
    key = f"gpu+{medium.lower()}"
    tell(index, *TEXT.removed(FULL, ALL, medium=medium))
    assert tiers(index)[key] == (0, 1024), "an engine that keeps its copies has another"
    tell(index, *TEXT.removed(FULL, ALL, medium=medium))
    assert tiers(index)[key] == exactly(0)


def test_a_copy_in_doubt_stays_so_beside_one_that_was_stored_since() -> None:
    index = an_index()
    tell(index, TEXT.stored(), offloaded(), AllBlocksCleared(), offloaded())
    assert tiers(index)["gpu+cpu"] == exactly(1024)
    tell(index, *TEXT.removed(FULL, ALL, medium="CPU"))
    assert tiers(index)["gpu+cpu"] == (0, 1024)


def test_copies_in_doubt_add_up_over_clears() -> None:
    index = an_index()
    tell(index, TEXT.stored())
    for _ in range(3):
        tell(index, offloaded(), AllBlocksCleared())
    for _ in range(2):
        tell(index, *TEXT.removed(FULL, ALL, medium="CPU"))
        assert tiers(index)["gpu+cpu"] == (0, 1024)
    tell(index, *TEXT.removed(FULL, ALL, medium="CPU"))
    assert tiers(index)["gpu+cpu"] == exactly(0)


def test_whole_and_interior_entries_in_doubt_are_counted_together() -> None:
    index = an_index(Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=32),)))
    whole, parts = (replace(FULL, block=size) for size in (32, 16))
    tell(index, *[TEXT.stored(group, medium="CPU") for group in (whole, parts)])
    tell(index, AllBlocksCleared())
    for bound in ((0, 1024), exactly(0)):
        tell(index, *TEXT.removed(whole, range(32), medium="CPU"))
        assert tiers(index)["gpu+cpu"] == bound


def test_a_restart_leaves_other_tiers_in_doubt_too() -> None:
    index = an_index()
    tell(index, TEXT.stored(), offloaded())
    index.reset(POD)
    assert tiers(index) == {"gpu": exactly(0), "gpu+cpu": (0, 1024)}
    tell(index, TEXT.stored(FULL, HALF))
    assert tiers(index) == {"gpu": exactly(512), "gpu+cpu": (512, 1024)}


def test_events_around_a_clear_in_one_batch_keep_their_order() -> None:
    index = an_index()
    tell(index, TEXT.stored(), AllBlocksCleared(), TEXT.stored(FULL, HALF))
    assert tiers(index) == {"gpu": exactly(512)}


def test_removing_what_was_cleared_is_counted_and_harmless() -> None:
    index = an_index()
    tell(index, TEXT.stored(), AllBlocksCleared())
    tell(index, BlockRemoved(block_hashes=(TEXT.hash(16),), group_idx=0))
    tell(index, TEXT.stored())
    assert tiers(index) == {"gpu": exactly(1024)}
    assert index.pods()[0].refused == {"removed_unknown": 1}


# --- data-parallel ranks ----------------------------------------------------------------------


def test_ranks_hold_and_clear_apart() -> None:
    index = an_index(dp_size=2)
    for rank in (0, 1):
        tell(index, TEXT.stored(), dp_rank=rank)
    tell(index, AllBlocksCleared(), dp_rank=1)
    assert answer(index, dp_rank=0) == exactly(1024)
    assert answer(index, dp_rank=1) == exactly(0)


def test_a_row_counts_what_each_group_holds_on_each_tier_and_its_memory() -> None:
    index = an_index()
    tell(index, TEXT.stored(), TEXT.stored(WINDOW, HALF), TEXT.stored(medium="CPU"))
    tell(index, *TEXT.removed(FULL, range(48, 64)))

    def held() -> tuple[list[dict[str, int]], int]:
        index.check_integrity()
        (info,) = index.pods()
        return [group.held for group in info.groups], info.memory_bytes

    by_group, memory_bytes = held()
    assert by_group == [
        {"gpu": 48, "cpu": 64, "storage": 0}, {"gpu": len(HALF), "cpu": 0, "storage": 0},
    ]  # fmt: skip
    assert 0 < memory_bytes <= index.memory_bytes()
    tell(index, AllBlocksCleared())
    by_group, _ = held()
    assert by_group == [dict.fromkeys(("gpu", "cpu", "storage"), 0)] * 2
