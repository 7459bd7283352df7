"""How much CPU do copies between a pool in host memory and the host tier take?

128 MiB of blocks of one run each go to slots in random order, and back. The rival is a loop around
memcpy in C over the same runs of the same memory, in the order of our mover, which takes blocks by
their ids. Beside: one way each, and the same store as a job of a worker, with an item and a status
for each block.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from kvbraid.ids import BlockId
from kvbraid.layout import (
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    geometry_of,
    plan_memory,
)
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.spec import SpecKind
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.mover import Mover
from kvbraid.transfer.status import Status
from kvbraid.transfer.worker import Worker
from numpy.typing import NDArray

from bench.harness.measure import Row, Sample, Side, Target, repeated_cpu_us
from bench.transfer.native_copy import COMPILER, Addresses, native_loop

MOVED_BYTES: Final = 128 << 20
SAMPLE_SECONDS: Final = 0.02
"""About one call: sides take turns often, as who else uses the memory changes all the time."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The size of a block: how many layers of how many heads it has."""

    num_layers: int
    num_heads: int

    def plan(self) -> MemoryPlan:
        """Return a plan of blocks of one run, as many as are moved."""
        heads = Heads(num=self.num_heads, key_dim=128, value_dim=128, dtype="bfloat16")
        page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
        geometry = geometry_of(Layout.BLHNC, heads, 16)
        layers = tuple(
            LayoutLayer(name=f"{number}", page=page, geometry=geometry)
            for number in range(self.num_layers)
        )
        group = LayoutGroup(kind=page.kind, block_size=16, layers=layers)
        num_blocks = MOVED_BYTES // (self.num_layers * page.page_bytes) + 1
        return plan_memory([group], num_blocks=num_blocks)


class Setting:
    """A pool and an arena in host memory, and the blocks and slots that are paired.

    All sides of a row have the same one: where memory lies makes more of a difference than they.
    """

    def __init__(self, blocks: Blocks) -> None:
        plan = blocks.plan()
        [group] = plan.groups
        assert plan.num_blocks is not None
        assert group.num_runs == 1
        self.length = group.used_bytes
        self.num = plan.num_blocks - 1
        rng = np.random.default_rng(7)
        # At the start of a page, as pools are: memory of numpy's own begins 16 bytes later.
        self._memory = rng.integers(0, 256, plan.size_bytes + 4096, np.uint8)
        base = self._memory.ctypes.data + -self._memory.ctypes.data % 4096
        self.host = HostTier(HostSlots.of(plan, self.num * self.length))
        assert self.host.wait()
        self.mover = Mover(plan, bases=base, host=self.host)
        self.worker = Worker(self.mover, {})
        self.blocks = rng.permutation(self.num).astype(np.uint64) + np.uint64(1)
        self.slots = rng.permutation(self.num).astype(np.uint64) + np.uint64(1)
        order = np.argsort(self.blocks)
        self.in_pool: Addresses = np.uint64(base) + self.blocks[order] * np.uint64(self.length)
        self.in_arena = self.host.addresses(self.slots[order])
        self.lengths = np.full(self.num, self.length, np.uint64)

    @property
    def pool(self) -> NDArray[np.uint8]:
        """The pool's bytes."""
        return self._memory

    def store(self) -> None:
        """Move all blocks to their slots."""
        self.mover.start(Kind.STORE, 0, self.blocks, self.slots)

    def load(self) -> None:
        """Move all blocks back."""
        self.mover.start(Kind.LOAD, 0, self.slots, self.blocks)


setting_of: Final = functools.cache(Setting)


def ours(setting: Setting) -> Callable[[], None]:
    """Store and load by the mover."""

    def both() -> None:
        setting.store()
        setting.load()

    return both


def native(setting: Setting) -> Callable[[], None]:
    """Store and load by the loop in C."""
    copy = native_loop()

    def both() -> None:
        copy(setting.in_pool, setting.in_arena, setting.lengths)
        copy(setting.in_arena, setting.in_pool, setting.lengths)

    return both


def job(setting: Setting) -> Callable[[], None]:
    """Store by a job of a worker."""
    items = tuple(
        Item(0, BlockId(block), BlockId(slot))
        for block, slot in zip(setting.blocks.tolist(), setting.slots.tolist(), strict=True)
    )
    stores = Job(number=1, kind=Kind.STORE, items=items)

    def run() -> None:
        setting.worker.submit([stores])
        [result] = setting.worker.poll()
        assert result.statuses == (Status.OK,) * len(items)

    return run


def side(blocks: Blocks, make: Callable[[Setting], Callable[[], None]]) -> Side:
    """Return a side in milliseconds of CPU time."""

    @contextlib.contextmanager
    def entered() -> Iterator[Sample]:
        sample = repeated_cpu_us(make(setting_of(blocks)), seconds=SAMPLE_SECONDS)
        yield lambda: sample() / 1_000

    return entered


def check(blocks: Blocks) -> None:
    """Check that both sides move the same bytes there, and back."""
    mine, theirs = Setting(blocks), Setting(blocks)
    before = mine.pool.copy()
    copy = native_loop()
    mine.store()
    copy(theirs.in_pool, theirs.in_arena, theirs.lengths)
    for slot in range(1, mine.num + 1):
        assert mine.host.payload(slot, 0) == theirs.host.payload(slot, 0)
    mine.mover.start(Kind.COPY, 0, mine.blocks[: mine.num // 2], mine.blocks[-(mine.num // 2) :])
    assert not np.array_equal(mine.pool, before)
    mine.load()
    assert np.array_equal(mine.pool, before)
    mine.worker.close()
    theirs.worker.close()


def row(name: str, blocks: Blocks, ratio: float) -> Row:
    """Return the row of one size."""
    return Row(
        name=f"host_copy_{name}",
        question="128 MiB of blocks to random slots and back; the rival: memcpy in a loop in C",
        unit="ms CPU",
        ours=side(blocks, ours),
        rival=side(blocks, native),
        target=Target(ratio=ratio),
        samples=41,
        check=lambda: check(blocks),
        lacks="" if COMPILER else "no C compiler is called cc: install one",
        beside={
            "store": side(blocks, lambda setting: setting.store),
            "load": side(blocks, lambda setting: setting.load),
            "job": side(blocks, job),
        },
    )


ROWS = (
    row("16k", Blocks(1, 2), 0.7),
    row("192k", Blocks(12, 2), 0.9),
    row("4m", Blocks(32, 16), 0.95),
)
