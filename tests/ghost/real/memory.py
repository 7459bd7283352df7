"""The ghost device as bytes: what every byte of a block is, and copies that check what they touch.

A block's bytes are those that its group's layers use, in the order of a slot. Each word is a value
of the ghost's block, mixed with the word's place, the group and the rank: bytes that are shifted,
mixed or another's are no block's. The pool gets a block's bytes when a mover reads them.

Invariant: a move changes the bytes of its targets in the pool, and no others there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

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
from kvbraid.spec import GroupSpec, SpecKind
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover import HostMemoryEngine, Move, Pending
from kvbraid.transfer.mover.runs import Copies

from tests.ghost.checks import BadOutcomeError
from tests.ghost.device import Device
from tests.unit.transfer.pools import Pool

LAYOUTS: Final = (Layout.BLHNC, Layout.LBHNC)
MOST_TICKS: Final = 3
"""Ticks that a copy takes at most."""
_STEP: Final = np.int64(0x9E37_79B9_7F4A)


def draw_plan(random: Random, groups: Sequence[GroupSpec], num_blocks: int) -> MemoryPlan:
    """Return where the blocks of these groups lie: one to three layers each, pages as long as
    the longest one, and heads of one size or another."""
    heads = Heads(num=2, key_dim=random.choice((16, 48)), value_dim=16, dtype="bfloat16")
    tensors = (
        StateTensor(name="conv", dims=(4, 24), dtype="bfloat16"),
        StateTensor(name="ssm", dims=(2, 8, 16), dtype="float32"),
    )
    layout = random.choice(LAYOUTS)
    state = RecurrentState(tensors=tensors)
    pages = [
        Page(kind=SpecKind.MAMBA, block_size=spec.block_size, shape=state)
        if spec.kind is SpecKind.MAMBA
        else Page(kind=SpecKind.FULL_ATTENTION, block_size=spec.block_size, shape=heads)
        for spec in groups
    ]
    longest = max(page.page_bytes for page in pages)
    planned = []
    for number, page in enumerate(pages):
        is_state = page.kind is SpecKind.MAMBA
        layer = LayoutLayer(
            name="layer",
            page=replace(page, padded_bytes=longest),
            geometry=None if is_state else geometry_of(layout, heads, page.block_size),
        )
        layers = tuple(
            replace(layer, name=f"{number}.{each}") for each in range(random.randint(1, 3))
        )
        planned.append(LayoutGroup(kind=page.kind, block_size=page.block_size, layers=layers))
    return plan_memory(planned, num_blocks=num_blocks, options=PlanOptions())


class RankMemory:
    """One rank's pool, and what its blocks' bytes mean."""

    def __init__(self, plan: MemoryPlan, device: Device, rank: int) -> None:
        self.device = device
        self.pool = Pool.of(plan, seed=rank)
        self._groups = plan.groups
        self._masks = [
            np.arange(1, group.used_bytes // 8 + 1, dtype=np.int64) * _STEP
            ^ np.int64((rank * 1_000 + number) << 40)
            for number, group in enumerate(plan.groups)
        ]

    def bytes_of(self, values: Sequence[int], group: int) -> bytes:
        """Return a block's bytes."""
        mask = self._masks[group]
        return bytes((np.resize(np.array(values, np.int64), len(mask)) ^ mask).tobytes())

    def values_of(self, content: bytes, group: int) -> bytes | None:
        """Return a block's values as bytes; None if these are no block's bytes."""
        words = np.frombuffer(content, np.int64) ^ self._masks[group]
        size = 1 if self.device.is_state[group] else self.device.groups[group].block_size
        values = words[:size]
        return values.tobytes() if (words == np.resize(values, len(words))).all() else None

    def fill(self, group: int, block: int) -> None:
        """Let the pool have what the device has."""
        content, begin = self.bytes_of(self.device.cell(block, group), group), 0
        for buffer, run in self._runs(group, block):
            end = begin + run.stop - run.start
            self.pool.inside(buffer)[run] = np.frombuffer(content[begin:end], np.uint8)
            begin = end

    def read(self, group: int, block: int) -> bytes | None:
        """Return the values of a block of the pool, as `values_of` does."""
        runs = self._runs(group, block)
        content = b"".join(self.pool.inside(buffer)[run].tobytes() for buffer, run in runs)
        return self.values_of(content, group)

    def check_rest(self, before: Sequence[bytes], group: int, targets: Sequence[int]) -> None:
        """Check that since `before` nothing has changed in the pool but these blocks."""
        expected = [bytearray(each) for each in before]
        for block in targets:
            for buffer, run in self._runs(group, block):
                expected[buffer][run] = self.pool.inside(buffer)[run].tobytes()
        if any(was != now for was, now in zip(expected, self.pool.content, strict=True)):
            raise BadOutcomeError(f"more has changed than blocks {targets} of group {group}")

    def _runs(self, group: int, block: int) -> Iterator[tuple[int, slice]]:
        for reference in self._groups[group].references:
            for offset, length in reference.exact():
                start = block * reference.block_stride + offset
                yield reference.buffer, slice(start, start + length)


@dataclass(frozen=True, slots=True)
class Odds:
    """The share of what is done in which a fault is injected, and how many were."""

    random: Random
    share: float
    faults: Counter[str]

    def strike(self) -> bool:
        """Whether there is a fault now."""
        return self.random.random() < self.share


class GhostEngine(HostMemoryEngine):
    """Copies that end ticks later, or raise: at the start, or at the end and half done."""

    def __init__(self, memory: RankMemory, odds: Odds) -> None:
        self.memory = memory
        self.odds = odds
        self.tick = 0

    def start(self, move: Move) -> Pending:
        fails, random = self.odds.strike(), self.odds.random
        if fails and random.random() < 0.5:
            self.odds.faults[f"{move.kind} refused"] += 1
            raise RuntimeError("the driver refuses")
        if fails:
            self.odds.faults[f"{move.kind} half done"] += 1
        return _Late(self, move, self.tick + random.randint(0, MOST_TICKS), fails=fails)

    def carry_out(self, move: Move) -> None:
        """Copy now, and check what has changed."""
        memory, group = self.memory, move.group
        blocks, others = move.blocks.tolist(), move.others.tolist()
        if move.kind is not Kind.LOAD:
            for block in blocks:
                memory.fill(group, block)
        before = memory.pool.content
        super().start(move)
        targets = {Kind.STORE: [], Kind.LOAD: blocks, Kind.COPY: others}
        memory.check_rest(before, group, targets[move.kind])


class _Late:
    """A copy that is carried out when it is due."""

    def __init__(self, engine: GhostEngine, move: Move, due: int, *, fails: bool) -> None:
        self.engine = engine
        self.move = move
        self.due = due
        self.fails = fails

    def is_over(self) -> bool:
        if self.engine.tick < self.due:
            return False
        if self.fails:
            half = len(self.move.copies) // 2
            copies = self.move.copies
            few = Copies(copies.sources[:half], copies.targets[:half], copies.lengths[:half])
            self.engine.carry_out(replace(self.move, copies=few))
            raise RuntimeError("an unspecified launch failure")
        self.engine.carry_out(self.move)
        return True
