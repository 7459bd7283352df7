"""How many copies does it take to move 64 random blocks of every group?

Both counts come from plans of one model with the same groups. `ours` is this package's layout,
where a block is one range across the layers of its group; `rival` is our plan of the layout that
vLLM 0.32 prefers unless it is told otherwise: one buffer per slot, blocks inside it. A copy is one
run of bytes. Both sides move exactly the bytes that layers use, and merge the runs of one group
that touch, those of adjacent blocks included, as if the destination had the same order. Beside:
`whole`, the copies if ours moves blocks with their padding, and `mib` and `whole_mib`, how much
the exact copies of either side and the whole blocks move.
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from kvbraid.layout import NULL_BLOCK, ByteRun, Layout, MemoryPlan
from kvbraid.layout.plan import merged
from kvbraid.models import EngineOptions

from bench.harness.measure import Row, Slice, Target, counted
from bench.layout.inputs import NUM_BLOCKS, Model

MODELS: Final[Mapping[str, Model]] = MappingProxyType(
    {
        "copies_gpt_oss_20b_tp1": Model(config="gpt-oss-20b"),
        "copies_gpt_oss_20b_tp2": Model(
            config="gpt-oss-20b", options=EngineOptions(num_ranks=2), layout=Layout.HND
        ),
        "copies_gemma_3_27b": Model(config="gemma-3-27b"),
        "copies_deepseek_v3": Model(
            config="deepseek-v3", options=EngineOptions(block_size=64, kernel_block_size=64)
        ),
        "copies_qwen3_next": Model(config="qwen3-next-80b-a3b"),
        "copies_gemma_2_2b": Model(config="gemma-2-2b"),
    }
)

MOST_COPIES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "copies_gpt_oss_20b_tp1": 127,
        "copies_gpt_oss_20b_tp2": 127,
        "copies_gemma_3_27b": 448,
        "copies_deepseek_v3": 64,
        "copies_qwen3_next": 2_368,
        "copies_gemma_2_2b": 127,
    }
)
"""The targets: as many as there were when the layouts were made."""

BLOCKS_PER_GROUP: Final = 64
MIB: Final = 2**20


def blocks_of(num_groups: int) -> list[list[int]]:
    """Draw the blocks that each group moves: no block belongs to two groups."""
    drawn = random.Random(13).sample(
        range(NULL_BLOCK + 1, NUM_BLOCKS), num_groups * BLOCKS_PER_GROUP
    )
    return [drawn[index::num_groups] for index in range(num_groups)]


def copies(plan: MemoryPlan, *, whole: bool = False) -> list[ByteRun]:
    """Return the copies as addresses in the allocation and lengths."""
    found: list[ByteRun] = []
    for group, blocks in zip(plan.groups, blocks_of(len(plan.groups)), strict=True):
        pieces: list[ByteRun] = []
        for reference in group.references:
            start = plan.buffers[reference.buffer].start
            assert start is not None  # The plan has a number of blocks.
            runs = [(0, reference.block_stride)] if whole else reference.exact()
            for block in blocks:
                base = start + block * reference.block_stride
                pieces += [(base + offset, length) for offset, length in runs]
        found += merged(pieces)
    return found


def moved_mib(runs: Sequence[ByteRun]) -> float:
    """How much these copies move."""
    return sum(length for _, length in runs) / MIB


def check(model: Model) -> None:
    """Check that both sides have the same groups and move as many bytes."""
    mine, theirs = model.plan(), model.plan_per_layer()
    assert [group.layers for group in mine.groups] == [group.layers for group in theirs.groups]
    moved = [moved_mib(copies(plan)) for plan in (mine, theirs)]
    assert moved[0] == moved[1], f"ours moves {moved[0]} MiB, one buffer per slot {moved[1]}"


def row(name: str, model: Model) -> Row:
    """Return the row of one model. Its slice is all of it."""

    def num_copies() -> float:
        return len(copies(model.plan()))

    target = Target(ours=MOST_COPIES[name])
    return Row(
        name=name,
        question="copies of 64 random blocks of every group; the rival: ours, a buffer per slot",
        unit="copies",
        ours=counted(num_copies),
        rival=counted(lambda: len(copies(model.plan_per_layer()))),
        target=target,
        samples=1,
        slice=Slice(num_copies, target),
        check=partial(check, model),
        beside={
            "mib": counted(lambda: moved_mib(copies(model.plan()))),
            "whole": counted(lambda: len(copies(model.plan(), whole=True))),
            "whole_mib": counted(lambda: moved_mib(copies(model.plan(), whole=True))),
        },
    )


ROWS = tuple(row(name, model) for name, model in MODELS.items())
