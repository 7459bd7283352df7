"""What groups, requests and numbers of slots cost beyond the bytes that layers use."""

from pathlib import Path
from typing import Final

import pytest
from kvbraid.layout import LayoutGroup, MemoryPlan, PlanOptions, from_grouping, plan_memory
from kvbraid.layout.planning.layers import LayoutLayer, UnknownPage
from kvbraid.layout.planning.waste import (
    GroupWaste,
    blocks_of_request,
    group_waste,
    longest_request,
    request_cost,
    slot_choices,
)
from kvbraid.models import EngineOptions, Heads, Page, group_config, read_config
from kvbraid.spec import SpecKind

MODELS: Final = Path(__file__).parents[2] / "fixtures" / "models"
HEADS: Final = Heads(num=2, key_dim=64, value_dim=64, dtype="bfloat16")


def grouped(name: str) -> tuple[LayoutGroup, ...]:
    config = read_config(MODELS / f"{name}.json")
    return from_grouping(group_config(config, EngineOptions()).grouping)


def planned(groups: tuple[LayoutGroup, ...], *, alignment: int = 1) -> MemoryPlan:
    return plan_memory(groups, options=PlanOptions(alignment=alignment))


def group(
    kind: SpecKind, *, window: int | None = None, chunk: int | None = None, size: int = 16
) -> LayoutGroup:
    page = Page(kind=kind, block_size=size, shape=HEADS, window=window, chunk=chunk)
    return LayoutGroup(
        kind=kind, block_size=size, layers=(LayoutLayer(name="0", page=page, unprobed="a test"),)
    )


# Worked out by hand from the 10 full and 52 windowed layers of gemma-3-27B: in GB, by number of
# slots, for a request of so many tokens.
GEMMA_3: Final = {
    1_024: {5: 0.545, 10: 0.587, 13: 0.545, 26: 0.654, 52: 0.872},
    32_768: {5: 3.153, 10: 3.196, 13: 3.933, 26: 7.422, 52: 14.40},
    131_072: {5: 11.21, 10: 11.25, 13: 14.40, 26: 28.36, 52: 56.28},
}


@pytest.mark.parametrize("num_tokens", GEMMA_3)
def test_the_choice_of_slots_of_gemma_3_is_what_was_worked_out(num_tokens: int) -> None:
    expected = GEMMA_3[num_tokens]
    choices = slot_choices(grouped("gemma-3-27b"))
    assert [choice.num_groups for choice in choices] == [13, 7, 5, 3, 2]
    for choice, (num_slots, gigabytes) in zip(choices, expected.items(), strict=True):
        assert choice.num_slots == num_slots
        assert float(f"{choice.pool_bytes(num_tokens) / 1e9:.4g}") == pytest.approx(
            gigabytes, abs=0.005 if gigabytes >= 10 else 0.0005
        )


@pytest.mark.parametrize(
    "name", ["gemma-3-27b", "gpt-oss-20b", "jamba-v0.1", "kimi-linear-48b-a3b"]
)
def test_the_engines_number_of_slots_is_among_the_choices_and_costs_what_the_plan_costs(
    name: str,
) -> None:
    groups = grouped(name)
    plan = planned(groups)
    slots = plan.buffers[0].slots
    (now,) = (each for each in slot_choices(groups) if each.num_slots == slots)
    assert (now.num_groups, now.block_bytes) == (len(groups), plan.block_bytes)
    assert now.pool_bytes(50_000) == request_cost(plan, groups, 50_000).pool_bytes


def test_one_group_and_pages_of_several_sizes_leave_no_choice_of_slots() -> None:
    assert slot_choices(grouped("llama-3.1-8b")) == ()
    full, other = group(SpecKind.FULL_ATTENTION), group(SpecKind.FULL_ATTENTION, size=32)
    assert slot_choices((full, other)) == ()


def test_there_are_at_most_six_choices_of_slots_the_engines_among_them() -> None:
    choices = [each.num_slots for each in slot_choices(grouped("granite-4.0-h-small"))]
    assert choices == [2, 3, 4, 6, 9, 12]


def test_the_bytes_of_a_groups_block_are_used_padding_or_empty() -> None:
    groups = grouped("jamba-v0.1")
    states, attention = (
        GroupWaste(used_bytes=1_245_184, padding_bytes=65_536, empty_bytes=0),
        GroupWaste(used_bytes=1_310_720, padding_bytes=0, empty_bytes=0),
    )
    assert group_waste(planned(groups), groups) == (*[states] * 7, attention)
    gemma = grouped("gemma-3-27b")
    empty = [each.empty_bytes for each in group_waste(planned(gemma), gemma)]
    assert empty == [131_072] * 4 + [262_144] * 2 + [0]


def test_bytes_that_alignment_adds_are_empty() -> None:
    groups = grouped("gpt-oss-20b")
    plan = planned(groups, alignment=1 << 20)
    assert [each.unused_bytes for each in group_waste(plan, groups)] == [(1 << 20) - 393_216] * 2


@pytest.mark.parametrize(
    ("kind", "reach", "expected"),
    [
        (SpecKind.FULL_ATTENTION, {}, [1, 1, 2, 64, 2_048]),
        (SpecKind.FULL_ATTENTION, {"window": 128}, [1, 1, 2, 64, 2_048]),  # Kept in full.
        (SpecKind.SLIDING_WINDOW, {"window": 128}, [1, 1, 2, 9, 9]),
        (SpecKind.SLIDING_WINDOW, {"window": 1}, [1, 1, 1, 1, 1]),
        (SpecKind.CHUNKED_LOCAL_ATTENTION, {"chunk": 128}, [1, 1, 2, 8, 8]),
        (SpecKind.CHUNKED_LOCAL_ATTENTION, {"chunk": 130}, [1, 1, 2, 10, 10]),
        (SpecKind.MAMBA, {}, [1, 1, 2, 2, 2]),
        (SpecKind.CROSS_ATTENTION, {}, [1, 1, 2, 64, 2_048]),
    ],
)
def test_a_request_holds_the_blocks_that_its_layers_reach(
    kind: SpecKind, reach: dict[str, int], expected: list[int]
) -> None:
    found = [blocks_of_request(group(kind, **reach), n) for n in (1, 16, 17, 1_024, 32_768)]
    assert found == expected


def test_a_page_of_an_unknown_type_is_kept_for_all_tokens() -> None:
    page = UnknownPage(type_name="Strange", page_bytes=64)
    strange = LayoutGroup(
        kind=SpecKind.UNKNOWN, block_size=16, layers=(LayoutLayer(name="0", page=page),)
    )
    assert blocks_of_request(strange, 1_600) == 100


def test_the_longest_request_is_the_last_that_fits() -> None:
    groups = grouped("gemma-3-27b")
    plan = planned(groups)
    longest = longest_request(groups, 10_000)
    assert longest == (10_000 - 6 * 65) * 16
    assert request_cost(plan, groups, longest).num_blocks == 10_000
    assert request_cost(plan, groups, longest + 1).num_blocks == 10_001


def test_requests_of_any_length_fit_where_no_layer_keeps_all_tokens() -> None:
    groups = (group(SpecKind.SLIDING_WINDOW, window=128),)
    assert longest_request(groups, 9) is None
    assert longest_request(groups, 8) == 128


def test_the_longest_request_of_more_memory_than_there_is_is_found() -> None:
    assert longest_request(grouped("llama-3.1-8b"), 1 << 100) == 1 << 104


def test_a_pool_without_a_block_for_each_group_holds_no_request() -> None:
    assert longest_request(grouped("gemma-3-27b"), 6) == 0
