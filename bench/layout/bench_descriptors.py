"""How long do the descriptors of 120 000 chunks take, given the block ids of all groups?

The answer is one array of addresses, lengths and devices. There is no rival. `ours` is Qwen3-Next,
where one block of each group has 37 runs, with ids in arrays. Beside it: `per_layer`, one buffer
per slot; `whole`, blocks of one run each; `strided`, the same chunks as `ours` in rows that each
stand for several runs; `id_lists` and `whole_id_lists`, ids in lists, which numpy converts one by
one. The tables of a plan are made in each call, although a pool makes them only once.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import numpy as np
from kvbraid.layout import MemoryPlan
from kvbraid.layout.descriptors import Array, Descriptors, How

from bench.harness.measure import Row, Sample, Side, Target, repeated_cpu_us
from bench.layout.inputs import NUM_BLOCKS, Model

NUM_CHUNKS: Final = 120_000
MODEL: Final = Model(config="qwen3-next-80b-a3b")
BASE: Final = 0x7F00_0000_0000
"""Where a device's memory may begin: addresses need more than 32 bits."""


def ids_of(plan: MemoryPlan, how: How) -> list[Array]:
    """Draw block ids of every group, so many that they have `NUM_CHUNKS` chunks or a few more."""
    runs = [group.num_runs if how == "exact" else 1 for group in plan.groups]
    count = -(-NUM_CHUNKS // sum(runs))
    rng = np.random.default_rng(13)
    return [rng.integers(1, NUM_BLOCKS, count, dtype=np.uint64) for _ in plan.groups]


def described(
    plan: MemoryPlan, how: How = "exact", *, strided: bool = False, lists: bool = False
) -> Side:
    """Describe the chunks of those blocks."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        arrays = ids_of(plan, how)
        ids = [each.tolist() for each in arrays] if lists else arrays

        def describe() -> Array:
            tables = Descriptors(plan, bases=BASE, how=how)
            return tables.strided(ids) if strided else tables.chunks(ids)

        sample = repeated_cpu_us(describe)
        yield lambda: sample() / 1_000

    return side


def check() -> None:
    """Check that there are as many chunks as the row says."""
    for plan in (OURS, PER_LAYER):
        num = len(Descriptors(plan, bases=BASE).chunks(ids_of(plan, "exact")))
        assert NUM_CHUNKS <= num < NUM_CHUNKS + 100, f"{num} chunks"


OURS: Final = MODEL.plan()
PER_LAYER: Final = MODEL.plan_per_layer()

ROWS = (
    Row(
        name="descriptors",
        question="120 000 chunks as arrays, given the block ids of all groups",
        unit="ms CPU",
        ours=described(OURS),
        target=Target(ours=2),
        check=check,
        beside={
            "per_layer": described(PER_LAYER),
            "whole": described(OURS, "whole"),
            "strided": described(OURS, strided=True),
            "id_lists": described(OURS, lists=True),
            "whole_id_lists": described(OURS, "whole", lists=True),
        },
    ),
)
