"""What every plan keeps, whatever its layers: each byte is in one chunk, and a block is one range.

P1  every byte that a view writes in a block is in exactly one chunk of its group
P2  no chunk has a byte that its view does not write, so no padding either
P3  the chunks of one group are disjoint
P4  all chunks of a block lie in the block (not where blocks are not the first dimension)
P5  copying the chunks of a block to a block of another pool copies what all views see
P6  a group without padding that fills its block is one run (as P4)
"""

import contextlib
import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError, LayoutError
from kvbraid.layout import (
    LayoutGroup,
    MemoryPlan,
    Reference,
    fingerprint,
    from_json,
    plan_memory,
    to_json,
)
from kvbraid.layout.check import check_integrity

from tests.reference.layout_arrays import (
    Coverage,
    allocate,
    arrays_of,
    covered,
    names_of,
    rows_of,
    runs_of,
)
from tests.reference.layout_strategies import Case, cases

NUM_CASES = 12 * settings().max_examples  # Some 1 100 plans.


def planned(case: Case) -> MemoryPlan | None:
    """Return the plan, or None if it was refused."""
    with contextlib.suppress(InvalidValueError):
        plan = case.plan()
        event("planned")
        return plan
    event("refused")
    return None


def lies_in_its_block(reference: Reference) -> bool:
    return all(
        offset >= 0 and offset + size <= reference.block_stride
        for offset, size in reference.exact()
    )


def is_disjoint(reference: Reference) -> bool:
    return all(sum(run) < following for run, (following, _) in pairwise(reference.exact()))


def check(plan: MemoryPlan) -> None:
    """P1 to P4 and P6."""
    found = covered(plan)
    assert found == Coverage(owned=found.owned, missed=0, foreign=0)
    for group in plan.groups:
        for reference in group.references:
            assert is_disjoint(reference)
            whole = reference.whole()
            if whole is not None:
                block_bytes = plan.buffers[reference.buffer].block_bytes
                assert whole == (0, block_bytes)
                assert lies_in_its_block(reference)
                assert reference.used_bytes < block_bytes or reference.exact() == (whole,)


def fills_its_slots(group: LayoutGroup) -> bool:
    """Whether a group's layers take the first slots and leave no byte between them.

    Then its block is one run, also where other groups have more layers. Blocks that are not first,
    kernel blocks, and packed pages with their alignment may be in pieces.
    """
    layers = group.layers
    sizes = {layer.page.page_bytes for layer in layers}
    return len(sizes) == 1 and all(
        layer.page.content_bytes == layer.page.page_bytes
        and layer.page.page_bytes % (4 * layer.alignment) == 0
        and not layer.is_split
        and (layer.geometry is None or layer.geometry.blocks_come_first)
        for layer in layers
    )


@settings(max_examples=NUM_CASES)
@given(case=cases())
def test_every_byte_of_a_view_is_in_one_chunk_and_every_byte_of_a_chunk_in_its_view(
    case: Case,
) -> None:
    plan = planned(case)
    if plan is not None:
        check(plan)
        check_integrity(plan)
        for index, group in enumerate(case.groups):
            if fills_its_slots(group):
                assert all(len(each.exact()) == 1 for each in plan.groups[index].references)


@given(case=cases())
def test_what_cannot_be_planned_is_refused_in_words_that_name_a_layer(case: Case) -> None:
    try:
        plan_memory(case.groups, num_blocks=case.num_blocks, options=case.options)
    except InvalidValueError as error:
        message = str(error)
    else:
        return
    assert any(layer.name in message for layer in case.layers)
    assert len(message) < 400


def exactly(reference: Reference, block: int) -> list[slice]:
    return list(runs_of(reference, block))


def wholly(reference: Reference, block: int) -> list[slice]:
    """The whole block where that is possible, else its chunks."""
    if reference.whole() is None:
        return exactly(reference, block)
    return [slice(block * reference.block_stride, (block + 1) * reference.block_stride)]


@given(case=cases(), data=st.data(), ways=st.sampled_from((exactly, wholly)))
def test_a_block_moves_between_pools_of_different_sizes(
    case: Case, data: st.DataObject, ways: Callable[[Reference, int], list[slice]]
) -> None:
    first = planned(case)
    if first is None:
        return
    second = case.plan(num_blocks=case.num_blocks + 3)
    assert fingerprint(first) == fingerprint(second)
    index = data.draw(st.integers(0, len(first.groups) - 1))
    x, y = data.draw(st.integers(0, case.num_blocks - 1)), case.num_blocks + 1
    sources, targets = allocate(first, fill=None), allocate(second)
    groups = first.groups[index], second.groups[index]
    for mine, theirs in zip(*(group.references for group in groups), strict=True):
        for source, target in zip(ways(mine, x), ways(theirs, y), strict=True):
            targets[theirs.buffer][target] = sources[mine.buffer][source]
    before, after = arrays_of(first, sources), arrays_of(second, targets)
    for name in names_of(groups[0]):
        wanted = before[name][rows_of(first.views[name], x)]
        np.testing.assert_array_equal(after[name][rows_of(second.views[name], y)], wanted)


@given(case=cases(), num_blocks=st.sampled_from((None, 2, 5)))
def test_equal_layers_give_equal_plans_which_are_read_back_from_their_json(
    case: Case, num_blocks: int | None
) -> None:
    plans = []
    for _ in range(2):
        with contextlib.suppress(InvalidValueError):
            plans.append(plan_memory(case.groups, num_blocks=num_blocks, options=case.options))
    if plans:
        first, second = plans
        assert first == second
        assert fingerprint(first) == fingerprint(second)
        text = json.dumps(to_json(first))
        assert from_json(json.loads(text)) == first


@given(case=cases(), memory_bytes=st.integers(1, 60_000))
def test_memory_is_filled_with_as_many_blocks_as_fit(case: Case, memory_bytes: int) -> None:
    if planned(case) is None:
        return
    try:
        plan = plan_memory(case.groups, memory_bytes=memory_bytes, options=case.options)
    except LayoutError:
        assert case.plan(num_blocks=2).size_bytes > memory_bytes
        return
    assert plan.num_blocks is not None
    assert plan.size_bytes <= memory_bytes < case.plan(plan.num_blocks + 1).size_bytes
