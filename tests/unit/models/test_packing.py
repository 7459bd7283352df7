"""Packing: groups of pages of several sizes in one block, and which layers share a slot."""

import json
from collections.abc import Sequence
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
    Heads,
    LayerGroup,
    Page,
    State,
    StateTensor,
    form_groups,
    group_config,
    packed_groups,
)
from kvbraid.spec import SpecKind

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
FULL, SWA, MLA, MAMBA = (
    SpecKind.FULL_ATTENTION,
    SpecKind.SLIDING_WINDOW,
    SpecKind.MLA_ATTENTION,
    SpecKind.MAMBA,
)


def attention(
    kind: SpecKind, num: int, dim: int, *, block_size: int = 16, window: int = 1024
) -> Page:
    heads = Heads(num=num, key_dim=dim, value_dim=dim, dtype="bfloat16")
    reach = window if kind.is_window else None
    return Page(kind=kind, block_size=block_size, shape=heads, window=reach)


def vector(
    kind: SpecKind, dim: int, dtype: str = "uint8", *, block_size: int = 64, **fields: int
) -> Page:
    heads = Heads(num=1, key_dim=dim, value_dim=0, dtype=dtype, replicated=True)
    return Page(kind=kind, block_size=block_size, shape=heads, **fields)


def state(num_bytes: int) -> Page:
    tensor = StateTensor(name="conv", dims=(num_bytes,), dtype="uint8")
    return Page(kind=MAMBA, block_size=16, shape=State(tensors=(tensor,)))


def layers(*pages: Page) -> tuple[CacheLayer, ...]:
    return tuple(CacheLayer(number=number, page=each) for number, each in enumerate(pages))


LARGE: Final = attention(SWA, 16, 256)  # 262 144 bytes.
SMALL: Final = attention(FULL, 4, 512)  # 131 072 bytes.
LATENT, INDEX = vector(MLA, 576), vector(MLA, 132)  # 36 864 and 8 448 bytes.
LATENT_16: Final = vector(MLA, 576, "bfloat16", block_size=16)  # 18 432 bytes.

WINDOW_LATENT: Final = SpecKind.SLIDING_WINDOW_MLA


def deepseek_v4() -> list[Page]:
    """DeepSeek-V4-Flash's caches in FP8, as vLLM 0.32 registers them, padded to 576 bytes.

    Each of 43 layers has a window. All but the first two also have an entry for 4 or for 128
    tokens, in turn, and the inputs of the entry that is being formed; and where an entry is for 4
    tokens, the same of the index.
    """
    window = vector(WINDOW_LATENT, 584, window=128, padded_bytes=37_440)
    every_4 = [
        vector(MLA, 584, block_size=256, tokens_per_entry=4, padded_bytes=37_440),
        vector(WINDOW_LATENT, 2048, "float32", block_size=4, window=8, padded_bytes=32_832),
        vector(MLA, 132, block_size=256, tokens_per_entry=4, padded_bytes=8_640),
        vector(WINDOW_LATENT, 512, "float32", block_size=4, window=8, padded_bytes=8_640),
    ]
    every_128 = [
        vector(MLA, 584, block_size=256, tokens_per_entry=128, padded_bytes=1_728),
        vector(WINDOW_LATENT, 1024, "float32", block_size=8, window=128, padded_bytes=32_832),
    ]
    pages = [window, window]
    for number in range(2, 43):
        pages += [window, *(every_128 if number % 2 else every_4)]
    return pages


# Layers, the number of layers of each group, and bytes of a block.
PACKED: Final[dict[str, tuple[Sequence[Page], list[int], int]]] = {
    "gemma-4: five windows to a full layer": (
        ([LARGE] * 5 + [SMALL]) * 10,
        [5] * 10 + [10],
        1_310_720,
    ),
    "DeepSeek sparse attention: an index beside each latent": (
        [LATENT, INDEX] * 6,
        [12],
        271_872,
    ),
    "MiniMax-M3: index keys beside 57 of 60 layers": (
        [attention(FULL, 4, 128)] * 3
        + [attention(FULL, 4, 128), vector(MLA, 128, "bfloat16", block_size=16)] * 57,
        [117],
        60 * 32_768 + 57 * 4_096,
    ),
    "DeepSeek-V4: 22 of 43 windows and 21 of two inputs per group": (
        deepseek_v4(),
        [22, 21, 62, 42, 20],
        21 * (37_440 + 8_640) + 20 * 1_728,
    ),
    "full layers that repeat no pattern stay in one group beside one that does": (
        [attention(SWA, 1, 64), attention(SWA, 2, 64)] * 2 + [SMALL] * 5 + [LATENT_16],
        [4, 6],
        5 * 131_072 + 18_432,
    ),
    "states are cut to fit a block of full attention": (
        ([state(300_000)] * 3 + [SMALL]) * 5,
        [2] * 7 + [1, 5],
        5 * 131_072,
    ),
    "a state larger than any other block is alone": (
        [state(300_000)] * 3 + [SMALL],
        [1, 1, 1, 1],
        300_000,
    ),
    "full layers of unequal pages stay in one group": (
        [SMALL, attention(FULL, 8, 512), SMALL] + [LARGE] * 5,
        [3, 2, 2, 1],
        4 * 131_072,
    ),
}


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
