"""Packing: groups of pages of several sizes in one block, and which layers share a slot."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import TopologyError
from kvbraid.models import (
    CacheLayer,
    EngineOptions,
    Grouping,
    LayerGroup,
    Page,
    form_groups,
    group_config,
    packed_groups,
)

from tests.unit.models.packed_models import (
    FULL,
    INDEX,
    LARGE,
    LATENT,
    MLA,
    PACKED,
    SMALL,
    SWA,
    attention,
    layers,
    vector,
)

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.mark.parametrize("case", PACKED)
def test_layers_pack_into_the_groups_of_the_engine(case: str) -> None:
    pages, sizes, block_bytes = PACKED[case]
    grouping = Grouping(groups=packed_groups(layers(*pages)))
    assert [len(group.layers) for group in grouping.groups] == sizes
    assert grouping.block_bytes == block_bytes
    numbers = [number for group in grouping.groups for number in group.numbers]
    assert sorted(numbers) == list(range(len(pages)))


def test_a_cut_pattern_stays_whole_and_gives_every_nth_repeat_to_a_group() -> None:
    """Three repeats of a latent and an index are the least that a group must hold."""
    windows = [attention(SWA, 1, 64)] * 9
    latents = [LATENT, INDEX] * 3
    groups = packed_groups(layers(*windows, *latents))
    assert [group.numbers for group in groups] == [
        (0, 3, 6),
        (1, 4, 7),
        (2, 5, 8),
        (9, 10, 11, 12, 13, 14),
    ]


@pytest.mark.parametrize(
    ("num_windows", "num_groups"), [(3, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3)]
)
def test_groups_take_as_many_repeats_as_leave_fewest_empty(
    num_windows: int, num_groups: int
) -> None:
    """Beside a pattern of three repeats, and the longer groups if two lengths leave as many."""
    groups = packed_groups(layers(*[LATENT, INDEX] * 3, *[attention(SWA, 1, 64)] * num_windows))
    assert len(groups) == 1 + num_groups


def test_windows_of_several_sizes_that_repeat_no_pattern_are_refused_if_they_must_be_cut() -> None:
    windows = [attention(SWA, 1, 64)] * 4 + [attention(SWA, 2, 64)]
    with pytest.raises(
        TopologyError, match=r"layer 0 \(sliding_window\) and 4 .* sizes \(4 of 4,096"
    ):
        packed_groups(layers(*windows, attention(FULL, 2, 64)))


@pytest.mark.parametrize("pages", [[], [LARGE] * 3, [LARGE, attention(FULL, 16, 256)] * 4])
def test_pages_of_one_size_are_grouped_as_without_packing(pages: list[Page]) -> None:
    assert packed_groups(layers(*pages)) == form_groups(layers(*pages))


@pytest.mark.parametrize(
    ("name", "unpacked", "packed"),
    [
        ("gemma-4-26b-a4b", (6, 655_360), (14, 327_680)),
        ("gemma-4-31b", (6, 2_621_440), (11, 1_310_720)),
        ("mimo-v2-flash", (6, 737_280), (11, 368_640)),
        ("qwen3-next-80b-a3b", (4, 13_369_344), (4, 13_369_344)),
    ],
)
def test_a_published_model_of_mixed_pages_has_smaller_blocks_when_packed(
    name: str, unpacked: tuple[int, int], packed: tuple[int, int]
) -> None:
    """Pages of a model with states are made equal before they are grouped."""
    config: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    for is_packed, expected in ((False, unpacked), (True, packed)):
        grouping = group_config(config, EngineOptions(packed=is_packed)).grouping
        assert (len(grouping.groups), grouping.block_bytes) == expected


# ---- slots ------------------------------------------------------------------------------------


def grouping(*sizes: int) -> Grouping:
    """Groups of so many layers with equal pages, numbered through."""
    numbers = iter(range(sum(sizes)))
    return Grouping(
        groups=tuple(
            LayerGroup(
                layers=tuple(CacheLayer(number=next(numbers), page=SMALL) for _ in range(size))
            )
            for size in sizes
        )
    )


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_layer_i_of_every_group_stands_in_slot_i(sizes: list[int]) -> None:
    found = grouping(*sizes)
    assert len(found.slots) == max(sizes)
    for slot, sharers in enumerate(found.slots):
        assert sharers == tuple(
            group.layers[slot] for group in found.groups if slot < len(group.layers)
        )
    assert found.block_bytes == len(found.slots) * SMALL.page_bytes
    assert found.padding_slots == len(found.slots) * len(sizes) - sum(sizes)


def test_each_page_size_has_slots_of_its_own() -> None:
    group = LayerGroup(layers=layers(LATENT, INDEX, LATENT, INDEX))
    other = LayerGroup(layers=(CacheLayer(number=4, page=INDEX),))
    numbers = [[layer.number for layer in slot] for slot in Grouping(groups=(group, other)).slots]
    assert numbers == [[0], [1, 4], [2], [3]]


def test_packed_groups_of_unequal_length_may_leave_no_slot_empty() -> None:
    pages = ([LARGE] * 5 + [SMALL]) * 10
    assert Grouping(groups=packed_groups(layers(*pages))).padding_slots == 0


@pytest.mark.parametrize("tokens", [0, 3, 128])
def test_a_block_without_whole_entries_is_refused(tokens: int) -> None:
    with pytest.raises(TopologyError, match=f"64 tokens has no whole entries of {tokens} tokens"):
        vector(MLA, 584, tokens_per_entry=tokens)
