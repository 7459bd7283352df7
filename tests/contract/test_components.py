"""Events about the components of SGLang's blocks: full attention, windows and states.

Full attention answers as ever; windows and states never pass for it, and nothing is promised by
them.
"""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid import FleetIndex, PodId, Request, topology_from_mapping
from kvbraid.engine import EngineProfile
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, encode_batch
from kvbraid.events.wire import WireForm
from kvbraid.ids import PodState
from kvbraid.spec import EngineDialect

POD = PodId("a")
TOKENS = tuple(range(100, 164))
HASHES = (11, 12, 13, 14)
FULL: dict[str, Any] = {"kind": "full_attention", "block_size": 16}
WINDOW: dict[str, Any] = {"kind": "sliding_window", "block_size": 16, "window": 33}
STATE: dict[str, Any] = {"kind": "mamba", "block_size": 64}
STORED = BlockStored(block_hashes=HASHES, parent_block_hash=None, token_ids=TOKENS, block_size=16)
WINDOWS = replace(STORED, component_type="swa")
STATE_AT_END = replace(
    STORED, block_hashes=HASHES[3:], token_ids=TOKENS[48:], component_type="mamba"
)
FORMS: tuple[WireForm, ...] = ("sglang_map", "sglang_array")


def index_of(*groups: dict[str, Any], dialect: str = "sglang") -> FleetIndex:
    mapping = {"dialect": dialect, "groups": list(groups), "alignment": 16}
    index = FleetIndex()
    engine = EngineProfile(dialect=EngineDialect(dialect))
    index.register(POD, model="m", topology=topology_from_mapping(mapping), engine=engine)
    return index


def tell(index: FleetIndex, *events: Event, form: WireForm = "sglang_map") -> None:
    for event in events:
        index.apply(POD, encode_batch([event], form=form))
    index.check_integrity()


def bounds(index: FleetIndex) -> tuple[int, int]:
    request = Request(model="m", token_ids=[*TOKENS, 7])
    (row,) = index.score(request).rows
    return row.lower, row.upper


def removed(*hashes: int, component: Any = None) -> BlockRemoved:  # noqa: ANN401
    return BlockRemoved(block_hashes=hashes, component_type=component)


def unknown_removals(index: FleetIndex) -> int:
    return index.pods()[0].refused.get("removed_unknown", 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [(FULL, WINDOW), (FULL, STATE), (FULL, WINDOW, STATE), ()])
def test_what_is_held_of_windows_and_states_is_told_apart(
    groups: tuple[dict[str, Any], ...], form: WireForm
) -> None:
    index = index_of(*groups)
    others = [event for event, group in ((WINDOWS, WINDOW), (STATE_AT_END, STATE))
              if group in groups or not groups]  # fmt: skip
    tell(index, replace(STORED, component_type="full"), *others, form=form)
    (pod,) = index.pods()
    assert (pod.state, pod.refused) == (PodState.EXACT, {})
    assert bounds(index) == (0, 64)
    gone = [removed(*event.block_hashes, component=event.component_type) for event in others]
    tell(index, *gone, form=form)
    assert unknown_removals(index) == 0
    assert bounds(index) == (0, 64)
    tell(index, *gone, form=form)
    assert unknown_removals(index) == sum(len(event.block_hashes) for event in gone)
    tell(index, removed(13, 14, component="full"), form=form)
    assert bounds(index) == (0, 32)


@pytest.mark.parametrize("events", [(STATE_AT_END,), (WINDOWS, STATE_AT_END)])
def test_windows_and_states_alone_hold_no_full_attention(events: tuple[Event, ...]) -> None:
    index = index_of(FULL, WINDOW, STATE)
    tell(index, *events)
    assert bounds(index) == (0, 0)
    assert index.pods()[0].state is PodState.EXACT


def test_a_state_that_comes_before_its_page_is_joined_by_its_hash() -> None:
    index = index_of(FULL, STATE)
    tell(index, STATE_AT_END, replace(STORED, component_type="full"))
    assert (index.pods()[0].state, bounds(index)) == (PodState.EXACT, (0, 64))
    assert index.pods()[0].placed["unplaced"] == 0


def test_a_state_is_never_a_root() -> None:
    index = index_of(FULL, STATE)
    tell(index, replace(STORED, component_type="full"), STATE_AT_END)
    (row,) = index.score(Request(model="m", token_ids=[*TOKENS[48:], 7])).rows
    assert (row.lower, row.upper) == (0, 0)


@pytest.mark.parametrize("event", [WINDOWS, STATE_AT_END])
def test_a_component_without_a_group_contradicts_the_groups_that_are_listed(
    event: BlockStored,
) -> None:
    index = index_of(FULL)
    tell(index, STORED)
    assert bounds(index) == (64, 64)
    tell(index, event)
    assert index.pods()[0].reason == "contradicts_group_count"
    assert bounds(index) == (0, 64)


def test_components_promise_nothing_whatever_the_dialect() -> None:
    index = index_of(FULL, WINDOW, dialect="vllm")
    tell(index, replace(STORED, component_type="full"), WINDOWS)
    assert bounds(index) == (0, 64)


def listed(*components: Any) -> BlockStored:  # noqa: ANN401
    return replace(STORED, component_types=components)


def test_a_store_that_lists_components_again_is_no_second_copy() -> None:
    index = index_of(FULL, WINDOW)
    tell(index, listed("full", "swa"), listed("full"), listed("full", "swa"), removed(*HASHES))
    assert bounds(index) == (0, 0)
    assert unknown_removals(index) == 0


def test_the_newest_list_of_components_replaces_the_one_before() -> None:
    index = index_of(FULL, WINDOW, STATE)
    tell(index, listed("full", "swa", "mamba"), listed("full", "mamba"))
    tell(index, removed(*HASHES, component="mamba"))
    assert unknown_removals(index) == 0
    tell(index, removed(*HASHES, component="swa"))
    assert unknown_removals(index) == 4
    assert bounds(index) == (0, 64)


def test_a_removal_that_names_no_component_is_of_all() -> None:
    index = index_of(FULL, WINDOW, STATE)
    tell(index, listed("full", "swa", "mamba"), removed(*HASHES))
    assert (bounds(index), unknown_removals(index)) == ((0, 0), 0)
    tell(index, removed(14, component="swa"), removed(14, component="mamba"))
    assert unknown_removals(index) == 2


def test_a_list_with_a_component_that_has_no_group_contradicts_the_groups() -> None:
    index = index_of(FULL)
    tell(index, listed("full", "swa"))
    assert index.pods()[0].reason == "contradicts_group_count"


def test_a_component_of_an_unknown_name_is_refused_with_its_event() -> None:
    index = index_of(FULL, WINDOW)
    event: Any = {"block_hashes": HASHES, "parent_block_hash": None, "token_ids": TOKENS}
    tell(index, STORED, BlockStored(**event, block_size=16, component_type="indexer"))  # type: ignore[arg-type]
    assert index.pods()[0].refused == {"unknown_component": 1}


def test_a_clear_is_of_all_components() -> None:
    index = index_of(FULL, WINDOW, STATE)
    tell(index, listed("full", "swa", "mamba"), AllBlocksCleared())
    tell(index, removed(14), removed(14, component="swa"), removed(14, component="mamba"))
    assert (bounds(index), unknown_removals(index)) == ((0, 0), 3)
