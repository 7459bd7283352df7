"""Plans of layers with pages of several sizes: packed into one block, or a buffer per size."""

import pytest
from kvbraid.layout import Layout, MemoryPlan, PlanOptions, from_grouping, plan_memory
from kvbraid.models import Grouping, packed_groups

from tests.unit.models.packed_models import PACKED, layers


def planned(case: str, *, packed: bool = True) -> MemoryPlan:
    pages, _, _ = PACKED[case]
    groups = from_grouping(Grouping(groups=packed_groups(layers(*pages))), layout=Layout.BLNHC)
    return plan_memory(groups, num_blocks=4, options=PlanOptions(packed=packed))


@pytest.mark.parametrize("case", PACKED)
def test_packed_pages_take_one_buffer_of_the_largest_groups_block(case: str) -> None:
    plan = planned(case)
    assert [buffer.block_bytes for buffer in plan.buffers] == [PACKED[case][2]]


@pytest.mark.parametrize(
    "case", [case for case in PACKED if case.startswith(("gemma", "DeepSeek s"))]
)
def test_a_block_of_mixed_pages_is_one_range(case: str) -> None:
    plan = planned(case)
    whole = ((0, plan.block_bytes),)
    assert [group.references[0].exact() for group in plan.groups] == [whole] * len(plan.groups)


def test_unpacked_pages_of_two_sizes_take_a_buffer_each() -> None:
    plan = planned("DeepSeek sparse attention: an index beside each latent", packed=False)
    assert [buffer.block_bytes for buffer in plan.buffers] == [6 * 36_864, 6 * 8_448]


def test_a_compressed_cache_is_viewed_by_entries() -> None:
    """Layer 2 of DeepSeek-V4 has an entry of 584 bytes for 4 of 256 tokens; layer 3 for 128."""
    plan = planned("DeepSeek-V4: 22 of 43 windows and 21 of two inputs per group")
    assert plan.views["3"].shape == (4, 1, 64, 584)
    assert plan.views["8"].shape == (4, 1, 2, 584)


def test_equal_pages_of_a_packed_group_stand_together() -> None:
    """Layers 0, 2, 4, ... are latents and the others their indexes; vLLM 0.32 places them so."""
    plan = planned("DeepSeek sparse attention: an index beside each latent")
    starts = {int(name): view.offset for name, view in plan.views.items()}
    latents = [starts[number] for number in range(0, 12, 2)]
    indexes = [starts[number] for number in range(1, 12, 2)]
    assert latents == [place * 36_864 for place in range(6)]
    assert indexes == [6 * 36_864 + place * 8_448 for place in range(6)]
