"""Descriptors name exactly the bytes that references name, row by row in the order promised."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from kvbraid.errors import InvalidValueError, LayoutError
from kvbraid.layout import (
    ConnectorForm,
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    plan_memory,
)
from kvbraid.layout.descriptors import Descriptors, descriptors, progressions
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.spec import SpecKind

from tests.reference.layout_strategies import Case, cases
from tests.unit.layout.worked_models import planned

BASE = 1 << 46
HYBRID = planned("qwen3-next-80b-a3b")  # Four groups; padded states, so several runs a block.


def rows_of(
    plan: MemoryPlan, block_ids: Sequence[Sequence[int]], base: int, device: int
) -> list[tuple[int, ...]]:
    """What `chunks` returns, said token by token."""
    return [
        (
            base
            + (plan.buffers[reference.buffer].start or 0)
            + block * reference.block_stride
            + offset,
            length,
            device,
        )
        for group, ids in zip(plan.groups, block_ids, strict=True)
        for block in ids
        for reference in group.references
        for offset, length in reference.exact()
    ]


def expanded(rows: np.ndarray[Any, np.dtype[np.uint64]]) -> list[tuple[int, ...]]:
    return [
        (address + i * stride, length, device)
        for address, length, device, stride, count in rows.tolist()
        for i in range(count)
    ]


def blocks_in_the_middle() -> MemoryPlan:
    """Two halves, each with all blocks: no block of it is one range."""
    heads = Heads(num=2, key_dim=4, value_dim=4, dtype="bfloat16")
    layer = LayoutLayer(
        name="halves",
        page=Page(kind=SpecKind.FULL_ATTENTION, block_size=8, shape=heads),
        geometry=Geometry(
            shape=(2, None, 8, 2, 4), dtype="bfloat16", order=(0, 1, 2, 3, 4), heads=3, tokens=2
        ),
    )
    group = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=8, layers=(layer,))
    return plan_memory([group], num_blocks=4)


@pytest.mark.parametrize(
    "plan",
    [
        HYBRID,
        planned("gemma-2-2b"),
        planned("gpt-oss-20b", layout=Layout.HND),
        blocks_in_the_middle(),
    ],
    ids=["padded states", "dense", "heads before layers", "blocks in the middle"],
)
def test_rows_go_group_by_group_block_by_block_and_run_by_run(plan: MemoryPlan) -> None:
    ids = [[3, 1], [2], [], [1, 2, 3]][: len(plan.groups)]
    expected = rows_of(plan, ids, BASE, device=2)
    mover = Descriptors(plan, bases=BASE, device=2)
    rows = mover.chunks(ids)
    assert rows.dtype == np.uint64
    assert rows.flags.c_contiguous
    assert list(map(tuple, rows.tolist())) == expected
    assert expanded(mover.strided(ids)) == expected
    assert np.array_equal(descriptors(plan, ids, bases=BASE, device=2), rows)
    owners = [
        [group, block]
        for group, (planned_group, mine) in enumerate(zip(plan.groups, ids, strict=True))
        for block in mine
        for _ in range(planned_group.num_runs)
    ]
    assert mover.owners(ids).tolist() == owners


@given(case=cases())
def test_descriptors_of_any_plan_are_the_runs_of_its_references(case: Case) -> None:
    try:
        plan = case.plan()
    except InvalidValueError:  # A case that cannot be planned; few are.
        return
    ids = [list(range(plan.num_blocks or 0))[1:] for _ in plan.groups]
    expected = rows_of(plan, ids, BASE, device=0)
    mover = Descriptors(plan, bases=BASE)
    assert list(map(tuple, mover.chunks(ids).tolist())) == expected
    assert expanded(mover.strided(ids)) == expected


def test_a_padded_state_group_is_one_strided_row_a_block() -> None:
    states = next(i for i, group in enumerate(HYBRID.groups) if group.num_runs > 1)
    ids: list[list[int]] = [[] for _ in HYBRID.groups]
    ids[states] = [2]
    mover = Descriptors(HYBRID, bases=0)
    assert len(mover.chunks(ids)) == 12
    assert mover.strided(ids).tolist() == [[2 * 13_369_344, 1_097_728, 0, 1_114_112, 12]]


def test_a_whole_block_is_one_row_with_its_padding() -> None:
    whole = descriptors(HYBRID, [[1], [3], [], []], bases=BASE, how="whole")
    assert whole.tolist() == [
        [BASE + 13_369_344, 13_369_344, 0],
        [BASE + 3 * 13_369_344, 13_369_344, 0],
    ]


def test_a_whole_block_is_refused_where_its_bytes_are_not_together() -> None:
    plan = blocks_in_the_middle()
    with pytest.raises(LayoutError, match=r"^halves: a block is not one range.*use 'exact'"):
        Descriptors(plan, bases=0, how="whole")
    assert descriptors(plan, [[2]], bases=0).tolist() == [[256, 128, 0], [768, 128, 0]]


def test_rows_of_all_blocks_have_block_b_of_run_r_at_its_index() -> None:
    mover = Descriptors(HYBRID, bases=BASE)
    for group in range(len(HYBRID.groups)):
        listed = expanded(mover.all_blocks(group))
        for block in range(1, 4):
            ids = [[block] if each == group else [] for each in range(len(HYBRID.groups))]
            mine = list(map(tuple, mover.chunks(ids).tolist()))
            assert mine == listed[block :: HYBRID.num_blocks or 0]


def test_regions_are_the_buffers_and_bases_may_be_one_or_one_each() -> None:
    groups_apart = planned("gemma-2-2b")
    assert Descriptors(groups_apart, bases=BASE).regions().tolist() == [[BASE, 4 * 851_968, 0]]
    with pytest.raises(InvalidValueError, match="2 bases for 1 buffers"):
        Descriptors(groups_apart, bases=[BASE, BASE])
    plan = per_layer_plan()
    apart = [BASE + each * 1_000_000 for each in range(len(plan.buffers))]
    regions = Descriptors(plan, bases=apart).regions()
    assert regions[:, 0].tolist() == apart
    together = Descriptors(plan, bases=BASE).regions()
    assert together[:, 0].tolist() == [BASE + (buffer.start or 0) for buffer in plan.buffers]


def per_layer_plan() -> MemoryPlan:
    heads = Heads(num=1, key_dim=3, value_dim=3, dtype="float32")
    page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
    layers = tuple(LayoutLayer(name=f"{i}", page=page, unprobed="asleep") for i in range(3))
    group = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=16, layers=layers)
    return plan_memory([group], num_blocks=3, options=PlanOptions(takes=ConnectorForm.PER_LAYER))


@pytest.mark.parametrize(
    ("block_ids", "message"),
    [
        ([[0], [1]], "block id 0 of group 0 is the null block"),
        ([[1], [1, 4]], r"block id 4 of group 1 is not held; ids are 1 to 3"),
        ([[-1], []], "block id -1 of group 0 is not held"),
        ([[1]], "block ids of 1 groups; the plan has 2"),
        ([[1], [1], []], "block ids of 3 groups"),
        ([[1.0], []], r"block ids of group 0 = \[1.0\]; expected a sequence of integers"),
        ([[True], []], "expected a sequence of integers"),
        ([[[1]], []], "expected a sequence of integers"),
        ([3, []], "block ids of group 0 = 3"),
        ([[1 << 70], []], "block ids of group 0"),
    ],
)
def test_ids_that_nobody_may_move_are_refused(block_ids: list[Any], message: str) -> None:
    mover = Descriptors(planned("gemma-2-2b"), bases=0)
    for ask in (mover.chunks, mover.strided, mover.owners):
        with pytest.raises(InvalidValueError, match=message):
            ask(block_ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bases": -1}, "base is -1; expected a whole number, at least 0"),
        ({"bases": 1 << 64}, "base is 18446744073709551616; expected a whole number"),
        ({"bases": 0, "device": -1}, "device is -1"),
        ({"bases": 0, "how": "fast"}, "how is 'fast'; expected one of exact, whole"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Descriptors(per_layer_plan(), **arguments)


def test_a_plan_without_a_number_of_blocks_has_no_descriptors() -> None:
    heads = Heads(num=1, key_dim=4, value_dim=4, dtype="bfloat16")
    page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
    layer = LayoutLayer(name="0", page=page, unprobed="asleep")
    group = LayoutGroup(kind=SpecKind.FULL_ATTENTION, block_size=16, layers=(layer,))
    with pytest.raises(InvalidValueError, match="plan with num_blocks"):
        Descriptors(plan_memory([group]), bases=0)


def test_nothing_to_move_is_no_rows() -> None:
    mover = Descriptors(planned("gemma-2-2b"), bases=0)
    assert mover.chunks([[], []]).shape == (0, 3)
    assert mover.strided([[], []]).shape == (0, 5)
    assert mover.owners([[], []]).shape == (0, 2)


def test_runs_join_while_their_lengths_and_distances_are_equal() -> None:
    assert progressions([(0, 4), (10, 4), (20, 4)]) == [(0, 4, 10, 3)]
    assert progressions([(0, 4), (10, 4), (30, 4), (40, 4)]) == [(0, 4, 10, 2), (30, 4, 10, 2)]
    assert progressions([(0, 4), (10, 5)]) == [(0, 4, 0, 1), (10, 5, 0, 1)]
    assert progressions([]) == []
