"""The forms in which failures come, what of them does not count, and that no order matters."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, GroupBlock
from kvbraid.recovery import Ignored, RecoveryPlan, State, decide, read

from tests.unit.recovery.states import (
    GROUPS,
    NUM_BLOCKS,
    SHARED,
    Json,
    as_bytes,
    run,
    state,
    states,
)


def pairs(*each: tuple[int, int]) -> list[GroupBlock]:
    return [GroupBlock(group, BlockId(block)) for group, block in each]


def blocks(*each: int) -> list[BlockId]:
    return [BlockId(block) for block in each]


def two_runs() -> State:
    """Request 7 loads two blocks of each group; request 8 found two blocks, and loads none."""
    return read(
        as_bytes(
            state(
                run(7),
                run(
                    8, num_local_tokens=8, num_loaded_tokens=0, tables=[[11, 12, 13], [0, 15, 16]]
                ),
            )
        )
    )


def decided(found: State, **failures: Any) -> RecoveryPlan:  # noqa: ANN401 - fields of failures
    return replace(found, failures=Failures(**failures)).decide()


ONE_BLOCK: dict[str, Any] = {
    "place": {"places": {7: {0: [1]}}},
    "place, of all groups": {"places": {7: {0: [1], 1: []}}},
    "pair": {"group_blocks": pairs((0, 2))},
    "block": {"blocks": blocks(2)},
    "all of them": {"places": {7: {0: {1}}}, "group_blocks": pairs((0, 2)), "blocks": blocks(2)},
}


@pytest.mark.parametrize("form", ONE_BLOCK)
def test_every_form_of_one_failure_gives_one_plan(form: str) -> None:
    plan = decided(two_runs(), **ONE_BLOCK[form])
    assert plan == decided(two_runs(), blocks=blocks(2))
    assert plan.tainted == (2, 3, 6)
    assert plan.requests.keys() == {7}
    assert plan.requests[7].resume == 4
    assert plan.ignored == {}


def test_of_a_whole_request_all_that_its_load_fills_has_failed() -> None:
    plan = decided(two_runs(), requests=[7])
    assert plan == decided(two_runs(), blocks=blocks(1, 2, 4, 5))
    assert (plan.tainted, plan.requests[7].resume) == ((1, 2, 3, 4, 5, 6), 0)


def test_a_failed_load_of_a_run_that_has_ended_taints_and_gives_no_plan_for_it() -> None:
    ended = read(as_bytes(state(run(7, ended=True))))
    plan = decided(ended, requests=[7])
    assert (plan.tainted, plan.requests) == ((1, 2, 3, 4, 5, 6), {})
    assert plan.recovery.forget == plan.tainted


IGNORED: dict[str, tuple[Any, dict[Ignored, int]]] = {
    "the null block": ({"blocks": blocks(0)}, {Ignored.NULL_BLOCK: 1}),
    "the null block of a group": ({"group_blocks": pairs((1, 0))}, {Ignored.NULL_BLOCK: 1}),
    "a place without a block": ({"places": {8: {1: [0]}}}, {Ignored.NULL_BLOCK: 1}),
    "an unknown request": ({"requests": [99]}, {Ignored.UNKNOWN_REQUEST: 1}),
    "places of an unknown request": (
        {"places": {99: {0: [1, 2], 1: [0]}}},
        {Ignored.UNKNOWN_REQUEST: 3},
    ),
    "a block that the pool has not": (
        {"blocks": blocks(NUM_BLOCKS, NUM_BLOCKS + 7)},
        {Ignored.OUT_OF_RANGE: 2},
    ),
    "a group that there is not": ({"group_blocks": pairs((2, 1))}, {Ignored.OUT_OF_RANGE: 1}),
    "a place in no group": ({"places": {7: {2: [0]}}}, {Ignored.OUT_OF_RANGE: 1}),
    "a place after the table": ({"places": {7: {0: [3]}}}, {Ignored.OUT_OF_RANGE: 1}),
    "a block of another group": ({"group_blocks": pairs((1, 2))}, {Ignored.NOT_LOADED: 1}),
    "a block that nobody owns": ({"blocks": blocks(29)}, {Ignored.NOT_LOADED: 1}),
    "a block that was computed": ({"blocks": blocks(3)}, {Ignored.NOT_LOADED: 1}),
    "a block that was found": ({"blocks": blocks(11)}, {Ignored.NOT_LOADED: 1}),
    "a place that was computed": ({"places": {7: {0: [2]}}}, {Ignored.NOT_LOADED: 1}),
    "a request that loads nothing": ({"requests": [8]}, {Ignored.NOT_LOADED: 1}),
    "several, each by its reason": (
        {"blocks": blocks(0, 0, 29, 99), "requests": [99, 99], "places": {7: {0: [2], 9: [1]}}},
        {
            Ignored.NULL_BLOCK: 1,
            Ignored.NOT_LOADED: 2,
            Ignored.OUT_OF_RANGE: 2,
            Ignored.UNKNOWN_REQUEST: 1,
        },
    ),
}


@pytest.mark.parametrize("case", IGNORED)
def test_what_does_not_count_is_ignored_and_counted(case: str) -> None:
    failures, expected = IGNORED[case]
    plan = decided(two_runs(), **failures)
    assert plan == replace(decided(two_runs()), ignored=expected)
    assert (plan.tainted, plan.requests) == ((), {})


@pytest.mark.parametrize("case", IGNORED)
def test_what_does_not_count_changes_nothing_of_what_does(case: str) -> None:
    failures, expected = IGNORED[case]
    both = Failures.union([Failures(**failures), Failures(group_blocks=pairs((0, 2)))])
    found = two_runs()
    plan = replace(found, failures=both).decide()
    assert plan == replace(decided(found, blocks=blocks(2)), ignored=expected)


def test_ranks_that_report_one_block_count_it_once() -> None:
    reports = [Failures(blocks=blocks(29, 2)), Failures(blocks=blocks(29))]
    plan = replace(two_runs(), failures=Failures.union(reports)).decide()
    assert plan.ignored == {Ignored.NOT_LOADED: 1}
    assert plan.requests[7].recompute == 4


WRONG: dict[str, tuple[Callable[[State], State], str]] = {
    "a table too few": (
        lambda s: with_tables(s, [blocks(1, 2, 3)]),
        r"request 7 has 1 tables for 2 groups",
    ),
    "a table too many": (
        lambda s: with_tables(s, [blocks(1), blocks(2), []]),
        r"request 7 has 3 tables for 2 groups",
    ),
    "a table too few of a run that has ended": (
        lambda s: replace(s, runs=[s.runs[0]._replace(ended_tables=[[]]), s.runs[1]]),
        r"request 7 has 1 tables for 2 groups",
    ),
    "one request twice": (
        lambda s: replace(s, runs=[s.runs[0], s.runs[0]]),
        r"request 7 is given twice",
    ),
}


def with_tables(found: State, tables: list[list[BlockId]]) -> State:
    held = replace(found.snapshot.tables[7], blocks=tables)
    return replace(
        found, snapshot=replace(found.snapshot, tables={**found.snapshot.tables, 7: held})
    )


@pytest.mark.parametrize("case", WRONG)
def test_runs_that_do_not_fit_the_groups_are_refused(case: str) -> None:
    spoil, message = WRONG[case]
    with pytest.raises(InvalidValueError, match=message):
        decided(spoil(two_runs()), requests=[7])


# No order matters.


@given(found=states(), data=st.data())
def test_the_order_of_runs_and_reports_does_not_matter(found: Json, data: st.DataObject) -> None:
    held = read(as_bytes(found))
    whole = held.failures
    parts = [
        Failures(places=whole.places, causes=whole.causes),
        Failures(group_blocks=whole.group_blocks),
        Failures(blocks=list(reversed(list(whole.blocks)))),
        Failures(requests=whole.requests),
    ]
    other = replace(
        held,
        runs=data.draw(st.permutations(held.runs)),
        failures=Failures.union(data.draw(st.permutations(parts))),
        busy=data.draw(st.permutations(list(held.busy))),
    )
    assert other.decide() == held.decide()


def test_the_earliest_request_owns_what_is_shared_in_whatever_order_the_runs_come() -> None:
    found = read(as_bytes(SHARED))
    for runs in permutations(found.runs):
        plan = replace(found, runs=runs).decide()
        assert list(plan.requests) == [3, 4]
        assert plan.requests[3].owner_of == (1,)
        assert plan.requests[4].waits_for == {1: 3}


@given(found=states(), data=st.data())
def test_the_order_of_groups_does_not_matter(found: Json, data: st.DataObject) -> None:
    """The pools stay as they are: the blocks of a group keep their numbers."""
    num_groups = len(found["topology"]["groups"])
    order = data.draw(st.permutations(range(num_groups)))
    place = {old: new for new, old in enumerate(order)}

    def moved(rows: list[Json]) -> list[Json]:
        return [{**row, "group": place.get(row["group"], row["group"])} for row in rows]

    def sorted_anew(rows: list[Any]) -> list[Any]:
        return [rows[old] for old in order] if rows else rows

    def pairs_anew(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(place.get(group, group), block) for group, block in rows]

    failures, busy = found["failures"], found["busy"]
    other = {
        **found,
        "topology": {"groups": sorted_anew(found["topology"]["groups"])},
        "pools": sorted_anew(found["pools"]),
        "runs": [
            {
                **each,
                "tables": sorted_anew(each["tables"]),
                "states": sorted_anew(each["states"]),
                "findable": moved(each["findable"]),
                "given_back": moved(each["given_back"]),
            }
            for each in found["runs"]
        ],
        "failures": {
            **failures,
            "places": moved(failures["places"]),
            "group_blocks": pairs_anew(failures["group_blocks"]),
        },
        "busy": {**busy, "group_blocks": pairs_anew(busy["group_blocks"])},
    }
    assert read(as_bytes(other)).decide() == read(as_bytes(found)).decide()


def test_a_decision_changes_nothing_that_it_is_given() -> None:
    found = read(
        as_bytes(state(failures={"requests": [7]}, topology={"groups": list(GROUPS[:2])}))
    )
    before = repr(found)
    decide(found.snapshot, found.runs, found.failures, busy=found.busy)
    assert repr(found) == before
