"""Outputs under seeded weights depend on every block that a request reuses.

This is the control of the live comparison. One reused block is overwritten with another block's
bytes in all layers of a group, for each group in turn. If outputs stayed the same, equal outputs
would prove nothing about blocks.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

import pytest

from tests.vllm.live_engine import DROP_IN_MODELS, LiveModel, running

NUM_PROMPTS: Final = 31  # The first of a group without a second block has nothing to overwrite by.
MAX_OUTPUT: Final = 32
LEAST_CHANGED: Final = 0.95


def lengths(model: LiveModel, random: Random) -> Iterator[int]:
    """Draw prompt lengths at which every group has a block to reuse.

    A hit that ends where a chunk begins reads nothing of it.
    """
    chunks = [group.chunk for group in model.topology.groups if group.chunk]
    for _ in range(NUM_PROMPTS):
        length = random.randrange(500, 700)
        while any((length - 1) // model.block_size * model.block_size % c == 0 for c in chunks):
            length = random.randrange(500, 700)
        yield length


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", DROP_IN_MODELS, ids=lambda model: model.folder)
def test_a_wrong_block_shows_in_the_output(model: LiveModel) -> None:
    random = Random(2)
    with running(model, is_seeded=True) as engine:
        rows = [
            engine.tamper([random.randrange(10, 250) for _ in range(count)], MAX_OUTPUT)
            for count in lengths(model, random)
        ]
    for group, of_group in enumerate(zip(*rows, strict=True)):
        done = [row for row in of_group if row["did"]]
        assert len(done) >= NUM_PROMPTS - 1, f"group {group}"
        assert all(row["kept"] for row in of_group), f"group {group}"
        changed = sum(row["changed"] for row in done) / len(done)
        assert changed >= LEAST_CHANGED, f"group {group}: {changed:.0%} changed"
