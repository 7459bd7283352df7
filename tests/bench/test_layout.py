"""The benchmarks of layouts plan what they say, and count copies as they say."""

from pathlib import Path

import pytest
from kvbraid.layout import plan_memory

from bench.layout import bench_copies
from bench.layout.bench_copies import MODELS, copies
from bench.layout.inputs import NUM_BLOCKS, SHAPES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_a_hundred_layers_in_eight_groups(name: str) -> None:
    shape = SHAPES[name]
    plan = plan_memory(shape.groups(), options=shape.options())
    assert len(plan.groups) == 8
    assert sum(len(group.layers) for group in plan.groups) == 100
    assert len(plan.buffers) == 1


@pytest.mark.parametrize("name", MODELS)
def test_both_sides_of_a_row_move_the_same_bytes(name: str) -> None:
    bench_copies.check(MODELS[name])


def test_the_readme_has_the_copies_of_gpt_oss() -> None:
    model = MODELS["copies_gpt_oss_20b_tp1"]
    ours, rival = (len(copies(plan)) for plan in (model.plan(), model.plan_per_layer()))
    said = f"{ours} copies instead of {rival:,}".replace(",", " ")
    assert said in " ".join((ROOT / "README.md").read_text().split())


def test_adjacent_blocks_of_a_group_are_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_copies, "blocks_of", lambda _: [[3, 2, 9], [4, 7]])
    model = MODELS["copies_gpt_oss_20b_tp1"]
    plan = model.plan()
    size, page = plan.block_bytes, plan.block_bytes // plan.buffers[0].slots
    expected = [(2 * size, 2 * size), (9 * size, size), (4 * size, size), (7 * size, size)]
    assert copies(plan) == expected
    slots = copies(model.plan_per_layer())
    assert slots[:2] == [(2 * page, 2 * page), (9 * page, page)]
    assert len(slots) == 4 * plan.buffers[0].slots
    assert slots[2][0] >= NUM_BLOCKS * page  # In the buffer of the next slot.
