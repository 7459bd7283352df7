"""After a loss of messages, the size of the engine's pool bounds what it holds unknown."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError
from kvbraid.events import AllBlocksCleared, BlockRemoved
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodState
from kvbraid.spec import EngineDialect, Topology

from tests.unit.fleet.pods import (
    HYBRID,
    POD,
    bounds,
    index_of,
    info,
    row_of,
    stored,
    tell,
    window_stored,
)

POOL = EngineProfile(num_gpu_blocks=9)
"""Eight blocks for entries, and the null block. PROMPT needs four and one of them."""
OTHER = tuple(range(100, 120))


def late(topology: Topology | None = HYBRID, engine: EngineProfile = POOL) -> FleetIndex:
    """An index that was started after its engine."""
    index = index_of(topology, engine=engine)
    lose(index)
    return index


def lose(index: FleetIndex) -> None:
    index.lose(POD)
    index.set_state(POD, PodState.DEGRADED, reason="batches 0 to 7 are lost")
    index.check_integrity()


def tell_other(index: FleetIndex, blocks: int = 5) -> None:
    """Blocks of another prompt are stored."""
    hashes = tuple(range(100, 100 + blocks))
    tell(index, stored(block_hashes=hashes, token_ids=OTHER[: 4 * blocks]))


def remove(index: FleetIndex, *hashes: int, group: int = 0) -> None:
    tell(index, BlockRemoved(block_hashes=hashes, group_idx=group))


def shown(row: PodScore) -> tuple[int, int, str, PodState]:
    return row.lower, row.upper, row.exactness, row.state


def test_bounds_narrow_as_blocks_become_known_until_the_pod_is_exact_again() -> None:
    index = late()
    assert shown(row_of(index)) == (0, 16, "bound", PodState.DEGRADED)
    tell_other(index)
    assert bounds(index) == (0, 8), "three unknown blocks: two of full attention and a window's"
    remove(index, 900)
    assert bounds(index) == (0, 4)
    remove(index, 901)
    assert shown(row_of(index)) == (0, 0, "exact", PodState.DEGRADED)
    assert info(index).reason == "batches 0 to 7 are lost"
    remove(index, 902, 903)
    assert shown(row_of(index)) == (0, 0, "exact", PodState.EXACT)
    assert (info(index).state, info(index).reason) == (PodState.EXACT, "")


def test_a_degraded_pod_of_which_no_loss_was_told_may_hold_anything_that_fits() -> None:
    index = index_of(HYBRID, engine=POOL)
    tell_other(index)
    index.set_state(POD, PodState.DEGRADED, reason="some")
    assert bounds(index) == (0, 8)
    index.set_state(POD, PodState.STALE, reason="not connected")
    assert bounds(index) == (0, 16)
    remove(index, 900, 901)
    index.set_state(POD, PodState.DEGRADED, reason="the same loss")
    assert bounds(index) == (0, 0)
    index.set_state(POD, PodState.EXACT)
    index.set_state(POD, PodState.DEGRADED, reason="another")
    assert bounds(index) == (0, 8)


SGLANG = replace(POOL, dialect=EngineDialect.SGLANG)


@pytest.mark.parametrize(
    ("topology", "engine"),
    [
        (HYBRID, EngineProfile()),
        (HYBRID, replace(POOL, report_mode="full")),
        (HYBRID, replace(POOL, extra_keys=True)),
        (HYBRID, SGLANG),
        (replace(HYBRID, hash_block_size=4, partial_hits=True), POOL),
        (None, POOL),
    ],
    ids=["no_size", "full_reports", "extra_keys", "sglang", "partial_hits", "learned"],
)
def test_the_size_of_a_pool_says_nothing_where_entries_cannot_be_counted(
    topology: Topology | None, engine: EngineProfile
) -> None:
    index = late(topology, engine)
    tell_other(index)
    remove(index, 900, 901, 902)
    assert row_of(index).upper == 16


def test_an_entry_inside_a_block_ends_the_counting() -> None:
    index = late(replace(HYBRID, hash_block_size=2))
    tell_other(index)
    assert bounds(index) == (0, 8)
    tell(index, stored(block_hashes=(200,), token_ids=OTHER[:2], block_size=2))
    assert bounds(index) == (0, 16)


def test_a_removal_tells_nothing_where_it_may_be_of_an_entry_inside_a_block() -> None:
    index = late(replace(HYBRID, hash_block_size=2))
    tell_other(index)
    remove(index, 900, 901, 902)
    assert bounds(index) == (0, 8)


def test_other_tiers_stay_unbounded() -> None:
    index = late()
    tell_other(index)
    tell(index, stored(block_hashes=(300,), token_ids=OTHER[:4], medium="CPU"))
    row = row_of(index)
    both = row.tiers["gpu+cpu"]
    assert (row.upper, both.upper) == (8, 16)


def test_more_entries_than_blocks_contradict_the_size_of_the_pool() -> None:
    index = index_of(HYBRID, engine=POOL)
    tell_other(index)
    tell(index, window_stored(4))
    assert (info(index).state, info(index).refused) == (
        PodState.DEGRADED, {"contradicts_num_gpu_blocks": 1},
    )  # fmt: skip
    assert bounds(index) == (0, 16)


def test_a_removal_that_was_refused_ends_the_counting_until_a_clear() -> None:
    index = late()
    tell_other(index)
    refused = ["BlockRemoved", "no list of hashes", "GPU", 0]
    index.apply(POD, msgspec.msgpack.encode([0.0, [refused]]))
    assert bounds(index) == (0, 16)
    tell(index, AllBlocksCleared())
    assert shown(row_of(index)) == (0, 0, "exact", PodState.EXACT)


def test_a_store_that_was_refused_may_have_taken_any_block_that_is_not_known() -> None:
    index = index_of(HYBRID, engine=POOL)
    tell_other(index)
    assert bounds(index) == (0, 0)
    refused: list[object] = ["BlockStored", "no list of hashes", None, [], 4, None, "GPU"]
    index.apply(POD, msgspec.msgpack.encode([0.0, [refused]]))
    assert bounds(index) == (0, 8)


@pytest.mark.parametrize("value", [0, -1, 2**32, "27000"])
def test_a_pool_has_at_least_one_block(value: Any) -> None:  # noqa: ANN401 - of any type
    with pytest.raises(InvalidValueError) as caught:
        EngineProfile(num_gpu_blocks=value)
    expected = "expected an integer from 1 to 4294967295, or None"
    assert str(caught.value) == f"EngineProfile.num_gpu_blocks is {value!r}; {expected}"
