"""The mover moves exactly the bytes that the obvious model moves, and touches no other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.layout import Layout, MemoryPlan
from kvbraid.transfer.jobs import Kind

from tests.reference.layout_strategies import Case, cases
from tests.reference.mover_model import MoverModel
from tests.unit.transfer.pools import Pool, arena, contents, hybrid_plan, mover_of

NUM_SLOTS = 5


def play(plan: MemoryPlan, data: st.DataObject, num_steps: int = 4) -> None:
    """Draw moves, carry each out at both sides, and compare all bytes after it."""
    pool, host = Pool.of(plan), arena(plan, NUM_SLOTS)
    mover = mover_of(pool, host)
    model = MoverModel(plan, pool.content, contents(host))
    blocks = st.permutations(range(1, plan.num_blocks or 0))
    slots = st.permutations(range(1, NUM_SLOTS + 1))
    try:
        for _ in range(num_steps):
            kind = data.draw(st.sampled_from((Kind.STORE, Kind.LOAD, Kind.COPY)))
            group = data.draw(st.integers(0, len(plan.groups) - 1))
            some, others = data.draw(blocks), data.draw(slots)
            if kind is Kind.COPY:
                some, others = some[: len(some) // 2], some[len(some) // 2 :]
            num = data.draw(st.integers(0, min(len(some), len(others))))
            here, there = some[:num], others[:num]
            sources, targets = (there, here) if kind is Kind.LOAD else (here, there)
            pending = mover.start(
                kind, group, np.array(sources, np.uint64), np.array(targets, np.uint64)
            )
            assert pending.is_over()
            step = {Kind.STORE: model.store, Kind.LOAD: model.load, Kind.COPY: model.copy}[kind]
            for source, target in zip(sources, targets, strict=True):
                step(group, source, target)
            assert pool.content == [bytes(each) for each in model.pool]
            assert contents(host) == {slot: bytes(each) for slot, each in model.slots.items()}
            pool.check_margins()
            host.check_integrity()
    finally:
        mover.close()
        host.close()


@given(case=cases(), data=st.data())
def test_blocks_of_any_plan_move_as_the_model_moves_them(case: Case, data: st.DataObject) -> None:
    try:
        plan = case.plan()
    except InvalidValueError:  # A case that cannot be planned; few are.
        return
    play(plan, data)


@pytest.mark.parametrize("layout", [Layout.BLHNC, Layout.LBHNC, Layout.NHD, Layout.BHLNC])
@given(data=st.data())
@settings(max_examples=20)
def test_layouts_move_alike_with_blocks_or_layers_outermost(
    layout: Layout, data: st.DataObject
) -> None:
    play(hybrid_plan(layout), data, num_steps=8)
