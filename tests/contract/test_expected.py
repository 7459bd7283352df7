"""The expected value: what the events have shown, between the bounds."""

import pytest
from kvbraid.events import AllBlocksCleared
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodState

from tests.contract.prompts import FULL, MODEL, POD, TEXT, an_index, tell
from tests.contract.test_wire_tolerance import SGLANG, SGLANG_HYBRID, page, publish


def row_of(index: FleetIndex, tiers: tuple[str, ...] = ()) -> PodScore:
    request = Request(model=MODEL, token_ids=list(TEXT.prompt), tiers=list(tiers) or None)
    (row,) = index.score(request).rows
    return row


def values(row: PodScore) -> tuple[int, int, int]:
    return row.lower, row.expected, row.upper


def a_pod() -> FleetIndex:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32)))
    return index


def test_it_equals_the_bounds_where_they_meet() -> None:
    assert values(row_of(a_pod())) == (512, 512, 512)


@pytest.mark.parametrize("state", [PodState.STALE, PodState.REBUILDING, PodState.DEGRADED])
def test_what_was_shown_probably_stands_where_nothing_is_promised(state: PodState) -> None:
    index = a_pod()
    index.set_state(POD, state)
    assert values(row_of(index)) == (0, 512, 1024)


def test_a_copy_in_doubt_is_probably_there() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32), medium="CPU"), AllBlocksCleared())
    assert values(row_of(index, ("gpu", "cpu"))) == (0, 512, 512)
    assert values(row_of(index)) == (0, 0, 0)


def test_what_hangs_on_an_unknown_parent_probably_is_not_part_of_the_prompt() -> None:
    index = a_pod()
    tell(index, TEXT.stored(FULL, range(48, 64)))
    assert values(row_of(index))[1] == 512


def test_groups_of_which_nothing_is_told_are_expected_to_hold_what_full_attention_holds() -> None:
    index = an_index(SGLANG_HYBRID, engine=SGLANG)
    publish(index, [page(TEXT, 0, 32, "GPU")])
    assert values(row_of(index)) == (0, 512, 512)


def test_it_is_part_of_the_body() -> None:
    index = a_pod()
    request = Request(model=MODEL, token_ids=list(TEXT.prompt))
    assert b'"upper":512,"expected":512,' in index.score(request).to_json()
