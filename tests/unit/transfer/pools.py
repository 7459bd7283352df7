"""Pools in host memory, with bytes around them that nobody may touch, and plans for them."""

from dataclasses import dataclass

import numpy as np
from kvbraid.layout import (
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlanOptions,
    geometry_of,
    plan_memory,
)
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads, RecurrentState, StateTensor
from kvbraid.spec import SpecKind
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.mover import CopyEngine, Mover
from numpy.typing import NDArray

MARGIN = 64
CANARY = 0xA5


@dataclass(frozen=True, slots=True)
class Pool:
    """Random bytes for each buffer of a plan, each in an allocation of its own."""

    plan: MemoryPlan
    memory: tuple[NDArray[np.uint8], ...]

    @classmethod
    def of(cls, plan: MemoryPlan, seed: int = 0) -> "Pool":
        rng = np.random.default_rng(seed)
        memory = []
        for buffer in plan.buffers:
            assert plan.num_blocks is not None
            size = buffer.block_bytes * plan.num_blocks
            memory.append(np.full(size + 2 * MARGIN, CANARY, np.uint8))
            memory[-1][MARGIN:-MARGIN] = rng.integers(0, 256, size, np.uint8)
        return cls(plan, tuple(memory))

    @property
    def bases(self) -> list[int]:
        return [each.ctypes.data + MARGIN for each in self.memory]

    def inside(self, buffer: int) -> NDArray[np.uint8]:
        return self.memory[buffer][MARGIN:-MARGIN]

    @property
    def content(self) -> list[bytes]:
        return [self.inside(buffer).tobytes() for buffer in range(len(self.memory))]

    def check_margins(self) -> None:
        for each in self.memory:
            assert np.all(each[:MARGIN] == CANARY)
            assert np.all(each[-MARGIN:] == CANARY)


def arena(plan: MemoryPlan, num_slots: int = 5, *, slots_per_piece: int = 2) -> HostTier:
    """Return a small arena of several pieces, all of them ready, filled with canaries."""
    one = HostSlots.of(plan, 1 << 40)
    slots = HostSlots.of(plan, num_slots * one.slot_bytes)
    host = HostTier(slots, piece_bytes=slots_per_piece * one.slot_bytes)
    assert host.wait(60)
    for slot in range(1, num_slots + 1):
        whole_slot(host, slot)[:] = bytes([CANARY]) * one.slot_bytes
    return host


def whole_slot(host: HostTier, slot: int) -> memoryview:
    """Return all bytes of a slot: its payload for the group that fills it."""
    largest = max(range(len(host.slots.used_bytes)), key=host.slots.used_bytes.__getitem__)
    return host.payload(slot, largest)


def contents(host: HostTier) -> dict[int, bytes]:
    return {slot: bytes(whole_slot(host, slot)) for slot in range(1, host.num_ready_slots + 1)}


def mover_of(pool: Pool, host: HostTier, engine: CopyEngine | None = None) -> Mover:
    return Mover(pool.plan, bases=pool.bases, host=host, engine=engine)


def hybrid_plan(layout: Layout = Layout.BLHNC, num_blocks: int = 8) -> MemoryPlan:
    """Full attention, windows and a state: three groups, and padding in the smaller pages."""
    heads = Heads(num=2, key_dim=16, value_dim=16, dtype="bfloat16")
    full = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
    window = Page(kind=SpecKind.SLIDING_WINDOW, block_size=16, shape=heads, window=64)
    tensors = (
        StateTensor(name="conv", dims=(4, 24), dtype="bfloat16"),
        StateTensor(name="ssm", dims=(2, 8, 16), dtype="float32"),
    )
    state = Page(
        kind=SpecKind.MAMBA,
        block_size=16,
        shape=RecurrentState(tensors=tensors),
        padded_bytes=full.page_bytes,
    )
    geometry = geometry_of(layout, heads, 16)
    groups = [
        LayoutGroup(
            kind=page.kind,
            block_size=16,
            layers=tuple(
                LayoutLayer(
                    name=f"{page.kind}.{number}",
                    page=page,
                    geometry=geometry if isinstance(page.shape, Heads) else None,
                )
                for number in range(num)
            ),
        )
        for page, num in ((full, 4), (window, 3), (state, 2))
    ]
    return plan_memory(groups, num_blocks=num_blocks, options=PlanOptions())
