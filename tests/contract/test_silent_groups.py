"""What stores of full attention promise of windows and states, of which SGLang tells nothing."""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid.fleet.index import FleetIndex
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import POD, TEXT, an_index, answer, exactly
from tests.contract.wires import SGLANG, page, publish, signed

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
STATES = Topology(groups=(FULL, GroupSpec(kind=SpecKind.MAMBA, block_size=16)))
WINDOWS = Topology(
    groups=(GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=128), FULL)
)
BOTH = Topology(groups=(*WINDOWS.groups, STATES.groups[1]))
CHUNKS = Topology(
    groups=(*STATES.groups, GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16))
)
ROOMY = replace(SGLANG, silent_pools_never_short=True)
HOST = ["gpu", "cpu"]


def store(first: int, last: int, medium: str = "GPU") -> list[Any]:
    return page(TEXT, first, last, medium)


def removed(*blocks: int) -> list[Any]:
    return ["BlockRemoved", [signed(TEXT.hash((j + 1) * 16)) for j in blocks], "GPU"]


def states(*, roomy: bool = False) -> FleetIndex:
    index = an_index(STATES, engine=ROOMY if roomy else SGLANG)
    publish(index, [store(0, 32)])
    return index


def test_the_state_at_the_end_of_a_leaf_is_there() -> None:
    index = states()
    assert answer(index) == exactly(512)
    assert answer(index, TEXT.prompt[:500]) == (0, 496)


def test_a_page_after_a_leaf_ends_the_promise_for_good() -> None:
    index = states()
    publish(index, [store(32, 48)])
    assert answer(index) == exactly(768)
    publish(index, [removed(*range(32, 48))])
    assert answer(index) == (0, 512)
    publish(index, [removed(31), store(31, 32)])
    assert answer(index) == exactly(512)


def test_where_the_pools_never_run_short_every_end_keeps_its_state() -> None:
    index = states(roomy=True)
    publish(index, [store(32, 48)])
    publish(index, [removed(*range(32, 48))])
    assert answer(index) == exactly(512)
    publish(index, [removed(31)])
    assert answer(index) == (0, 496)


def test_windows_are_promised_only_where_the_pools_never_run_short() -> None:
    for engine, lower in ((SGLANG, 0), (ROOMY, 512)):
        index = an_index(WINDOWS, engine=engine)
        publish(index, [store(0, 32), store(32, 36)])
        assert answer(index, TEXT.prompt[:513]) == (lower, 512)
        assert answer(index) == (576 if lower else 0, 576)


def test_a_window_that_lies_in_two_stores_is_promised_as_a_whole() -> None:
    """Eight pages are needed: of the last store there are four."""
    index = an_index(WINDOWS, engine=ROOMY)
    publish(index, [store(0, 4), store(4, 6)])
    assert answer(index) == exactly(96)
    publish(index, [store(6, 32), store(32, 36), removed(*range(30, 36)), store(30, 34)])
    assert answer(index) == exactly(544)


def test_what_is_stored_anew_after_a_loss_reaches_no_further_than_its_store() -> None:
    index = an_index(WINDOWS, engine=ROOMY)
    publish(index, [store(0, 32)])
    publish(index, [removed(*range(20, 32)), store(20, 24)])
    assert answer(index) == (0, 384)


def test_a_pod_with_windows_and_states_needs_both() -> None:
    index = an_index(BOTH, engine=ROOMY)
    publish(index, [store(0, 32)])
    assert answer(index) == exactly(512)
    index = an_index(BOTH, engine=SGLANG)
    publish(index, [store(0, 32)])
    assert answer(index) == (0, 512)


def test_nothing_is_inferred_beside_a_group_of_which_nothing_can_be() -> None:
    index = an_index(CHUNKS, engine=ROOMY)
    publish(index, [store(0, 32)])
    assert answer(index) == (0, 512)


def test_a_flush_ends_the_promises() -> None:
    index = states()
    publish(index, [["AllBlocksCleared"]])
    assert answer(index) == exactly(0)
    publish(index, [store(0, 16)])
    assert answer(index) == exactly(256)


def test_a_loss_ends_the_promises_and_later_stores_make_new_ones() -> None:
    index = states(roomy=True)
    index.lose(POD)
    assert answer(index)[0] == 0
    publish(index, [store(0, 16)])
    assert answer(index)[0] == 256


@pytest.mark.parametrize("roomy", [False, True])
def test_a_refused_event_ends_the_promises_until_a_clear(*, roomy: bool) -> None:
    """It may have stored a page after the leaf."""
    index = states(roomy=roomy)
    publish(index, [["BlockStored", [1], None, [-1], 16, None]])
    assert answer(index)[0] == 0
    publish(index, [["AllBlocksCleared"], store(0, 16)])
    assert answer(index) == exactly(256)


def test_an_engine_with_a_host_tier_promises_nothing_of_them() -> None:
    index = states(roomy=True)
    publish(index, [store(0, 16, "CPU_PINNED")])
    assert answer(index) == (0, 512)
    assert answer(index, tiers=HOST) == (0, 512)


def test_a_page_that_is_stored_twice_is_no_promise() -> None:
    """Two trees of the engine have it, and which of them has the state is not told."""
    index = states(roomy=True)
    publish(index, [store(0, 32)])
    assert answer(index) == (0, 512)


def test_an_engine_that_tells_of_components_is_not_inferred_from() -> None:
    index = states(roomy=True)
    told = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None,
            "token_ids": list(range(16)), "block_size": 16, "component_type": "full"}  # fmt: skip
    publish(index, [told])
    assert answer(index)[0] == 0


def test_the_grid_of_states_is_an_alignment() -> None:
    """States stand on a grid of 64 tokens, pages have 16: no hit ends elsewhere."""
    index = an_index(replace(STATES, alignment=64), engine=SGLANG)
    publish(index, [store(0, 32)])
    assert answer(index, TEXT.prompt[:500]) == (0, 448)
    assert answer(index) == exactly(512)
