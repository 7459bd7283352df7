"""The mover moves exactly the bytes that the obvious model moves, and touches no other."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.layout import Layout, MemoryPlan
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover import MOVES, CopyEngine, HostMemoryEngine
from kvbraid.transfer.mover.calibration import CELLS, STAGED, Calibration, Trial
from kvbraid.transfer.mover.cudart import BATCH, PLAIN, CudaRuntime, DevicePinning
from kvbraid.transfer.mover.device import DeviceEngine

from tests.reference.layout_strategies import Case, cases
from tests.reference.mover_model import MoverModel
from tests.unit.transfer.devices import FakeLibrary, FakeStaging, FakeStreams, used_bytes
from tests.unit.transfer.pools import Pool, arena, contents, hybrid_plan, mover_of

NUM_SLOTS = 5


def play(
    plan: MemoryPlan,
    data: st.DataObject,
    num_steps: int = 4,
    engine_for: Callable[[Pool], CopyEngine] = lambda pool: HostMemoryEngine(),
) -> None:
    """Draw moves, carry each out at both sides, and compare all bytes after it."""
    pool, host = Pool.of(plan), arena(plan, NUM_SLOTS)
    mover = mover_of(pool, host, engine_for(pool))
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


SECONDS = {
    "one by one": {PLAIN: 1e-6, BATCH: 1e-3, STAGED: 1e-3},
    "in one call": {PLAIN: 1e-3, BATCH: 1e-6, STAGED: 1e-3},
    "staged": {PLAIN: 1e-3, BATCH: 1e-3, STAGED: 1e-9},
}
"""What a run takes by each mechanism: the cheapest is chosen, staging wherever it saves runs."""


def device_engine(pool: Pool, version: int, fastest: str) -> DeviceEngine:
    seconds = {
        Trial(kind, mechanism, *cell): per_run * cell[1]
        for kind in (Kind.STORE, Kind.LOAD, Kind.COPY)
        for mechanism, per_run in SECONDS[fastest].items()
        for cell in CELLS
    }
    runtime, used = CudaRuntime(FakeLibrary(version)), used_bytes(pool.plan)
    return DeviceEngine(
        copies=runtime.copies,
        streams=FakeStreams(),
        calibration=Calibration(seconds),
        used_bytes=used,
        pinning=DevicePinning(runtime, 0),
        staging={kind: FakeStaging(pool, 2 * max(used)) for kind in MOVES},
    )


@pytest.mark.parametrize("version", [12_080, 13_000])
@pytest.mark.parametrize("fastest", list(SECONDS))
@given(case=cases(), data=st.data())
@settings(max_examples=15)
def test_a_device_moves_them_alike_by_every_mechanism(
    version: int, fastest: str, case: Case, data: st.DataObject
) -> None:
    try:
        plan = case.plan()
    except InvalidValueError:
        return
    play(plan, data, engine_for=lambda pool: device_engine(pool, version, fastest))
