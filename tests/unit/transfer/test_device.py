"""A device's engine: what it chooses, in which order, and what it does when a call fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from kvbraid.layout import Layout
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover import Mover
from kvbraid.transfer.mover.calibration import (
    CELLS,
    MAX_TRIAL_BYTES,
    STAGED,
    Calibration,
    Choice,
    Trial,
)
from kvbraid.transfer.mover.cudart import BATCH, PLAIN, CudaRuntime, DevicePinning
from kvbraid.transfer.mover.device import DeviceEngine, trial_copies

from tests.unit.transfer.devices import FakeLibrary, FakeStaging, FakeStreams, used_bytes
from tests.unit.transfer.pools import Pool, arena, hybrid_plan, mover_of

KINDS = (Kind.STORE, Kind.LOAD, Kind.COPY)
SECONDS_A_RUN = {PLAIN: 4e-6, BATCH: 1e-6, STAGED: 1e-8}


@dataclass(slots=True)
class Setting:
    library: FakeLibrary
    streams: FakeStreams
    staging: dict[Kind, FakeStaging]
    pinning: DevicePinning
    engine: DeviceEngine
    mover: Mover
    pool: Pool


@contextmanager
def setting(layout: Layout = Layout.LBHNC) -> Iterator[Setting]:
    """A device where staging pays wherever it saves runs; three blocks fit into its memory."""
    pool = Pool.of(hybrid_plan(layout))
    library, streams = FakeLibrary(13_000), FakeStreams()
    runtime, used = CudaRuntime(library), used_bytes(pool.plan)
    staging = {kind: FakeStaging(pool, 3 * max(used)) for kind in KINDS}
    pinning = DevicePinning(runtime, 0)
    calibration = Calibration(
        {
            Trial(kind, mechanism, *cell): seconds * cell[1]
            for kind in KINDS
            for mechanism, seconds in SECONDS_A_RUN.items()
            for cell in CELLS
        }
    )
    engine = DeviceEngine(
        copies=runtime.copies,
        streams=streams,
        calibration=calibration,
        used_bytes=used,
        pinning=pinning,
        staging=staging,
    )
    host = arena(pool.plan)
    mover = mover_of(pool, host, engine)
    try:
        yield Setting(library, streams, staging, pinning, engine, mover, pool)
    finally:
        mover.close()
        host.close()


def move(of: Setting, kind: Kind, *, num: int = 5) -> None:
    """Move blocks of full attention to or from all slots; a copy's targets are other blocks."""
    blocks = np.arange(1, num + 1, dtype=np.uint64)
    if kind is Kind.COPY:
        of.mover.start(kind, 0, blocks[:3], blocks[:3] + np.uint64(4))
    else:
        of.mover.start(kind, 0, blocks, blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_single_layers_are_collected_and_blocks_of_all_layers_are_not(kind: Kind) -> None:
    with setting(Layout.LBHNC) as layers_outermost:
        move(layers_outermost, kind)
        copies = PLAIN if kind is Kind.COPY else BATCH
        assert layers_outermost.engine.counts == {(kind, Choice(copies, True)): 1}
        assert layers_outermost.staging[kind].most_blocks == 3
    with setting(Layout.BLHNC) as blocks_outermost:
        move(blocks_outermost, kind)
        [(_, choice)] = blocks_outermost.engine.counts
        assert choice.is_staged is (kind is Kind.COPY)


def test_moves_that_nothing_orders_do_not_share_staging_memory() -> None:
    """A load may be under way while a store collects: their streams do not wait for each other."""
    with setting() as one:
        loads = one.staging[Kind.LOAD].memory
        loads[:] = 9
        move(one, Kind.STORE)
        move(one, Kind.COPY)
        assert np.all(loads == 9)


def test_slots_side_by_side_cross_the_bus_as_one_copy() -> None:
    with setting() as one:
        used = one.mover.host.slots.used_bytes[0]
        assert used == one.mover.host.slots.slot_bytes
        move(one, Kind.STORE, num=2)  # The first piece of the arena has two slots.
        assert [call[:2] for call in one.library.calls] == [("batch", 1)]


def test_a_group_that_cannot_be_collected_is_copied_run_by_run() -> None:
    with setting() as one:
        one.staging[Kind.STORE].refused_group = 0
        move(one, Kind.STORE)
        assert one.engine.counts == {(Kind.STORE, Choice(BATCH, False)): 1}


def test_unpinned_memory_is_copied_one_by_one_and_the_device_is_not() -> None:
    with setting() as one:
        one.pinning.has_failed = True
        for kind in KINDS:
            one.staging[kind].refused_group = 0
            move(one, kind)
        assert [choice.mechanism for _, choice in one.engine.counts] == [PLAIN, PLAIN, BATCH]


@pytest.mark.parametrize("kind", KINDS)
def test_a_move_waits_for_what_was_computed_and_ends_with_its_event(kind: Kind) -> None:
    with setting() as one:
        one.streams.ended = False
        blocks = np.array([1], np.uint64)
        pending = one.mover.start(kind, 1, blocks, blocks + np.uint64(1))
        assert one.streams.log == [f"begin {kind}", f"mark {kind}"]
        assert not pending.is_over()
        one.streams.ended = True
        assert pending.is_over()
        assert {call[-1] for call in one.library.calls} <= {7}, "the stream that was begun"


def test_after_a_failed_call_nothing_is_copied_any_more() -> None:
    with setting() as one:
        one.library.codes = {"batch": 700}
        with pytest.raises(RuntimeError, match="error 700"):
            move(one, Kind.LOAD)
        assert one.streams.log == ["begin load", "wait"]
        assert not one.engine.counts


def test_no_blocks_are_no_move() -> None:
    with setting() as one:
        none = np.empty(0, np.uint64)
        assert one.mover.start(Kind.STORE, 0, none, none).is_over()
        assert one.streams.log == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_moves_each_of_its_runs_once_and_stays_in_its_memory(kind: Kind) -> None:
    device, other = 1 << 40, 1 << 41
    for cell in CELLS:
        copies = trial_copies(Trial(kind, PLAIN, *cell), device, other)
        assert copies.num_bytes == cell[0] * cell[1] <= MAX_TRIAL_BYTES
        first, second = (
            (copies.targets, copies.sources)
            if kind is Kind.LOAD
            else (copies.sources, copies.targets)
        )
        for base, addresses in ((device, first), (other, second)):
            places = np.sort(addresses) - np.uint64(base)
            assert np.array_equal(places, np.arange(cell[1], dtype=np.uint64) * np.uint64(cell[0]))
