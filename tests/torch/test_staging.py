"""torch collects and spreads exactly the bytes of blocks; memory of the CPU is the device."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.layout import (
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    geometry_of,
    plan_memory,
)
from kvbraid.layout.tensors import Tensors, allocate
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.spec import SpecKind
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover import MOVES, Mover
from kvbraid.transfer.mover.calibration import CELLS, STAGED, Calibration, Trial
from kvbraid.transfer.mover.cuda import TorchStaging
from kvbraid.transfer.mover.cudart import BATCH, PLAIN, CudaRuntime, DevicePinning
from kvbraid.transfer.mover.device import DeviceEngine

from tests.reference.layout_strategies import Case, cases
from tests.reference.mover_model import MoverModel
from tests.unit.transfer.devices import FakeLibrary, FakeStreams, used_bytes
from tests.unit.transfer.pools import arena, contents, hybrid_plan


def filled(plan: MemoryPlan) -> Tensors:
    tensors = allocate(plan)
    generator = torch.Generator().manual_seed(5)
    tensors.memory.copy_(
        torch.randint(-128, 128, tensors.memory.shape, dtype=torch.int8, generator=generator)
    )
    return tensors


def content(tensors: Tensors) -> list[bytes]:
    return [each.numpy().tobytes() for each in tensors.buffers]


def engine_of(tensors: Tensors) -> DeviceEngine:
    """An engine that stages whatever can be staged."""
    seconds = {PLAIN: 1.0, BATCH: 1.0, STAGED: 1e-9}
    used, runtime = used_bytes(tensors.plan), CudaRuntime(FakeLibrary(13_000))
    return DeviceEngine(
        copies=runtime.copies,
        streams=FakeStreams(),
        calibration=Calibration(
            {
                Trial(kind, mechanism, *cell): each * cell[1]
                for kind in (Kind.STORE, Kind.LOAD, Kind.COPY)
                for mechanism, each in seconds.items()
                for cell in CELLS
            }
        ),
        used_bytes=used,
        pinning=DevicePinning(runtime, 0),
        staging={kind: TorchStaging(tensors, -(-2 * max(used) // 8) * 8) for kind in MOVES},
    )


def play(plan: MemoryPlan, data: st.DataObject) -> DeviceEngine:
    tensors, host = filled(plan), arena(plan)
    engine = engine_of(tensors)
    mover = Mover(plan, bases=tensors.bases, host=host, engine=engine)
    model = MoverModel(plan, content(tensors), contents(host))
    last = (plan.num_blocks or 0) - 1
    for kind in (Kind.STORE, Kind.LOAD, Kind.COPY):
        for group in range(len(plan.groups)):
            blocks = data.draw(st.permutations(range(1, last + 1)))
            slots = data.draw(st.permutations(range(1, 6)))
            if kind is Kind.COPY:
                blocks, slots = blocks[: last // 2], blocks[last // 2 :]
            pairs = list(zip(blocks, slots, strict=False))
            if kind is Kind.LOAD:
                pairs = [(slot, block) for block, slot in pairs]
            sources, targets = (
                (np.array(each, np.uint64) for each in zip(*pairs, strict=True))
                if pairs
                else (np.empty(0, np.uint64), np.empty(0, np.uint64))
            )
            mover.start(kind, group, sources, targets)
            step = {Kind.STORE: model.store, Kind.LOAD: model.load, Kind.COPY: model.copy}[kind]
            for source, target in pairs:
                step(group, source, target)
            assert content(tensors) == [bytes(each) for each in model.pool]
            assert contents(host) == {slot: bytes(each) for slot, each in model.slots.items()}
    host.close()
    return engine


@given(case=cases(), data=st.data())
@settings(max_examples=60)
def test_blocks_of_any_plan_are_collected_and_spread_as_the_model_moves_them(
    case: Case, data: st.DataObject
) -> None:
    try:
        plan = case.plan()
    except InvalidValueError:
        return
    play(plan, data)


@pytest.mark.parametrize("layout", [Layout.LBHNC, Layout.BLHNC, Layout.BHLNC])
@given(data=st.data())
@settings(max_examples=5)
def test_runs_of_whole_words_are_staged(layout: Layout, data: st.DataObject) -> None:
    engine = play(hybrid_plan(layout), data)
    staged = {kind for kind, choice in engine.counts if choice.is_staged}
    assert Kind.COPY in staged
    if layout is Layout.LBHNC:
        assert staged == {Kind.STORE, Kind.LOAD, Kind.COPY}


def test_a_block_whose_runs_are_no_words_is_not_staged() -> None:
    heads = Heads(num=1, key_dim=1, value_dim=1, dtype="uint8")
    page = Page(kind=SpecKind.FULL_ATTENTION, block_size=2, shape=heads)
    layer = LayoutLayer(name="0", page=page, geometry=geometry_of(Layout.NHD, heads, 2))
    group = LayoutGroup(kind=page.kind, block_size=2, layers=(layer,))
    tensors = filled(plan_memory([group], num_blocks=4))
    assert not TorchStaging(tensors).takes(0)
    assert all(TorchStaging(filled(hybrid_plan())).takes(group) for group in range(3))
