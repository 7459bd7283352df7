"""Grouping: the reference engine's groups of published models, and every rule that forms them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.models import (
    CacheLayer,
    EngineOptions,
    Grouping,
    Heads,
    KindLayers,
    LayerSpec,
    ModelLayers,
    Page,
    RecurrentState,
    StatePart,
    StateTensor,
    form_groups,
    group_config,
    group_layers,
)
from kvbraid.models.grouping import kept_in_full
from kvbraid.spec import GroupSpec, SpecKind, Topology

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
NAMES: Final = sorted(json.loads((FIXTURES / "expected.json").read_text()))
KIB, MIB = 1024, 1024 * 1024
FULL, SWA, CHUNKED = (
    SpecKind.FULL_ATTENTION,
    SpecKind.SLIDING_WINDOW,
    SpecKind.CHUNKED_LOCAL_ATTENTION,
)
MLA, MAMBA = SpecKind.MLA_ATTENTION, SpecKind.MAMBA
DEFAULT: Final = EngineOptions()
SMALL: Final = Heads(num=2, key_dim=64, value_dim=64, dtype="bfloat16")  # 512 bytes a token.
WIDE: Final = Heads(num=8, key_dim=128, value_dim=128, dtype="bfloat16")  # 4 096 bytes a token.
LATENT: Final = Heads(num=1, key_dim=576, value_dim=0, dtype="bfloat16", replicated=True)


def load(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return config


def state(num: int, elements: int) -> RecurrentState:
    return RecurrentState(
        tensors=(
            StateTensor(
                name="ssm",
                dims=(num, elements),
                dtype="bfloat16",
                parts=(StatePart(what="state heads", num=num),),
            ),
        )
    )


def kind_layers(kind: SpecKind, layers: Sequence[int], heads: Heads) -> KindLayers:
    return KindLayers(
        spec=LayerSpec(
            kind=kind,
            window=1024 if kind is SWA else None,
            kv_bytes_per_token=heads.bytes_per_token,
            shape=heads,
        ),
        layers=tuple(layers),
    )


def model(*kinds: KindLayers) -> ModelLayers:
    return ModelLayers(
        model_type="example", num_layers=sum(len(kind.layers) for kind in kinds), kinds=kinds
    )


def page(kind: SpecKind, shape: Heads | RecurrentState = WIDE, **fields: int) -> Page:
    reach = {SWA: {"window": 128}, CHUNKED: {"chunk": 64}}.get(kind, {})
    return Page(kind=kind, shape=shape, **{"block_size": 16, **reach, **fields})


def layers(*pages: Page) -> tuple[CacheLayer, ...]:
    return tuple(CacheLayer(number=number, page=each) for number, each in enumerate(pages))


def shapes(grouping: Grouping) -> list[tuple[str, int, int]]:
    """Kind, number of layers and block size of each group, in order."""
    return [(g.kind.value, len(g.layers), g.page.block_size) for g in grouping.groups]


def of(kind: SpecKind, counts: Sequence[int], block_size: int) -> list[tuple[str, int, int]]:
    return [(kind.value, count, block_size) for count in counts]


# ---- the models that the engine's own functions were asked about --------------------------

EXAMPLES: Final[dict[str, tuple[ModelLayers | str, list[tuple[str, int, int]], int, int]]] = {
    "12 windowed, 12 full": (
        "gpt-oss-20b",
        of(SWA, [12], 16) + of(FULL, [12], 16),
        0,
        384 * KIB,
    ),
    "40 windowed, 8 full": (
        "gemma-3-12b",
        of(SWA, [8] * 5, 16) + of(FULL, [8], 16),
        0,
        MIB,
    ),
    "52 windowed, 10 full": (
        "gemma-3-27b",
        of(SWA, [9, 9, 9, 9, 8, 8], 16) + of(FULL, [10], 16),
        8,
        5 * MIB // 4,
    ),
    "windowed layers with pages twice as large": (
        "gemma-4-31b",
        of(SWA, [10] * 5, 16) + of(FULL, [10], 32),
        0,
        5 * MIB // 2,
    ),
    "36 chunked, 12 full": (
        "llama-4-scout-17b-16e",
        of(CHUNKED, [12] * 3, 16) + of(FULL, [12], 16),
        0,
        768 * KIB,
    ),
    "36 states, 12 full": (
        "qwen3-next-80b-a3b",
        of(MAMBA, [12] * 3, 544) + of(FULL, [12], 544),
        0,
        51 * MIB // 4,
    ),
    "20 full, 30 windowed": (
        model(kind_layers(FULL, range(20), WIDE), kind_layers(SWA, range(20, 50), WIDE)),
        of(FULL, [20], 16) + of(SWA, [15, 15], 16),
        10,
        5 * MIB // 4,
    ),
    "1 full, 31 windowed": (
        model(kind_layers(FULL, [0], WIDE), kind_layers(SWA, range(1, 32), WIDE)),
        of(FULL, [1], 16) + of(SWA, [1] * 31, 16),
        0,
        64 * KIB,
    ),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_an_example_has_the_groups_padding_and_bytes_of_the_engine(case: str) -> None:
    given, groups, padding_slots, block_bytes = EXAMPLES[case]
    grouping = (
        group_config(load(given), DEFAULT).grouping
        if isinstance(given, str)
        else group_layers(given, DEFAULT)
    )
    assert shapes(grouping) == groups
    assert grouping.padding_slots == padding_slots
    assert grouping.block_bytes == block_bytes


def test_a_group_takes_every_nth_layer_of_its_bucket() -> None:
    grouping = group_config(load("gemma-3-27b"), DEFAULT).grouping
    assert grouping.groups[0].numbers == (0, 7, 14, 21, 28, 36, 43, 50, 57)
    assert grouping.groups[6].numbers == (5, 11, 17, 23, 29, 35, 41, 47, 53, 59)


def test_buckets_of_almost_equal_size_are_padded_to_the_larger_one() -> None:
    """12 and 13 layers are two groups; 12 and 18 are cut to the smaller size."""
    near = model(kind_layers(SWA, range(12), WIDE), kind_layers(FULL, range(12, 25), WIDE))
    far = model(kind_layers(SWA, range(12), WIDE), kind_layers(FULL, range(12, 30), WIDE))
    assert shapes(group_layers(near, DEFAULT)) == of(SWA, [12], 16) + of(FULL, [13], 16)
    assert shapes(group_layers(far, DEFAULT)) == of(SWA, [12], 16) + of(FULL, [9, 9], 16)


# ---- the catalogue --------------------------------------------------------------------------

REFUSED: Final = {
    "deepseek-v3.2": r"layers 0-60 \(mla_attention\) keep index keys",
    "deepseek-v4-flash": r"layers .* keep compressed entries",
    "deepseek-v4-pro": r"layers .* keep compressed entries",
    "glm-5.2": r"layers 0-77 \(mla_attention\) keep index keys",
    "minimax-m3": r"layers 3-59 \(full_attention\) keep index keys",
}


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(REFUSED)))
def test_every_layer_of_a_published_model_is_in_one_group(name: str) -> None:
    grouped = group_config(load(name), DEFAULT)
    found = sorted(
        (number, group.kind.value) for group in grouped.grouping.groups for number in group.numbers
    )
    assert found == sorted(
        (number, kind.spec.kind.value) for kind in grouped.model.kinds for number in kind.layers
    )
    bytes_of_a_page = {
        layer.page.page_bytes for group in grouped.grouping.groups for layer in group.layers
    }
    assert len(bytes_of_a_page) == 1, "published models need pages of one size only"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_published_model_that_needs_packed_pages_is_refused_by_name(name: str) -> None:
    with pytest.raises(TopologyError, match=REFUSED[name]) as refusal:
        group_config(load(name), DEFAULT)
    assert "packed_groups" in str(refusal.value)


# ---- states: blocks as long as a state, and the types of states -------------------------------

BLOCKS: Final[dict[str, tuple[str, EngineOptions, int]]] = {
    "states in the model's type": ("qwen3-next-80b-a3b", DEFAULT, 544),
    "states in float32": ("qwen3-next-80b-a3b", EngineOptions(state_dtype="float32"), 1056),
    "a type that the config names": ("qwen3.5-35b-a3b", DEFAULT, 1056),
    "the engine's choice for an architecture": ("nemotron-nano-9b-v2", DEFAULT, 1312),
    "latents in steps of 128": ("kimi-linear-48b-a3b", DEFAULT, 1920),
    "a block asked for is the step": (
        "qwen3-next-80b-a3b",
        EngineOptions(block_size=64),
        576,
    ),
    "a block longer than the state": (
        "qwen3-next-80b-a3b",
        EngineOptions(block_size=1600),
        1600,
    ),
    "a kernel's longer block": (
        "qwen3-next-80b-a3b",
        EngineOptions(kernel_block_size=64),
        576,
    ),
    "two ranks": ("qwen3-next-80b-a3b", EngineOptions(num_ranks=2), 544),
    "more ranks than key-value heads": (
        "qwen3-next-80b-a3b",
        EngineOptions(num_ranks=8),
        144,
    ),
    "no states": ("gpt-oss-20b", EngineOptions(kernel_block_size=64), 64),
    "states alone": ("falcon-mamba", DEFAULT, 16),
}
FALCON_MAMBA: Final = {
    "model_type": "falcon_mamba",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "expand": 2,
    "state_size": 16,
    "conv_kernel": 4,
}


@pytest.mark.parametrize("case", BLOCKS)
def test_attention_blocks_are_as_long_as_a_state_needs(case: str) -> None:
    name, options, block_size = BLOCKS[case]
    config = FALCON_MAMBA if name == "falcon-mamba" else load(name)
    grouping = group_config(config, options).grouping
    assert {group.page.block_size for group in grouping.groups} == {block_size}


def test_a_state_is_padded_to_the_attention_page() -> None:
    states, *_, attention = group_config(load("qwen3-next-80b-a3b"), DEFAULT).grouping.groups
    assert states.page.page_bytes == attention.page.page_bytes == 544 * 2048
    assert states.padding_bytes == 12 * (544 * 2048 - states.page.content_bytes)
    assert attention.padding_bytes == 0


def test_the_type_of_states_is_reported_where_the_config_does_not_name_it() -> None:
    assert group_config(load("qwen3-next-80b-a3b"), DEFAULT).model.assumed == {
        "mamba_ssm_dtype": "bfloat16"
    }
    options = EngineOptions(state_dtype="float32")
    assert group_config(load("qwen3-next-80b-a3b"), options).model.assumed == {}


def test_an_engine_registers_attention_before_the_state_beside_it() -> None:
    for name in ("falcon-h1-7b", "zamba2-2.7b"):
        kinds = [g.kind for g in group_config(load(name), DEFAULT).grouping.groups]
        assert kinds[0] is FULL
        assert set(kinds[1:]) == {MAMBA}


# ---- one size of page -------------------------------------------------------------------------


def test_layers_of_one_type_and_block_size_are_one_group_of_unequal_pages() -> None:
    (group,) = form_groups(layers(page(FULL, SMALL), page(FULL, WIDE), page(MLA, LATENT)))
    assert group.kind is FULL
    assert group.numbers == (0, 1, 2)
    assert group.block_bytes == 16 * (512 + 4096 + 1152)
    assert group.padding_bytes == 0


UNIFIED: Final[dict[str, tuple[tuple[Page, ...], list[tuple[int, int]]]]] = {
    "a page that divides gets a longer block": (
        (page(FULL, SMALL), page(SWA, WIDE)),
        [(128, 0), (16, 0)],
    ),
    "one that does not is padded": (
        (page(FULL, Heads(num=3, key_dim=64, value_dim=64, dtype="bfloat16")), page(SWA, WIDE)),
        [(16, 16 * (4096 - 768)), (16, 0)],
    ),
    "a state is padded": (
        (page(MAMBA, state(2, 256)), page(SWA, WIDE)),
        [(16, 16 * 4096 - 1024), (16, 0)],
    ),
    "latents that divide get a longer block": (
        (page(MLA, LATENT), page(SWA, Heads(num=9, key_dim=64, value_dim=64, dtype="bfloat16"))),
        [(32, 0), (16, 0)],
    ),
}


@pytest.mark.parametrize("case", UNIFIED)
def test_pages_of_several_groups_are_made_equal(case: str) -> None:
    pages, expected = UNIFIED[case]
    groups = form_groups(layers(*pages))
    assert [(group.page.block_size, group.padding_bytes) for group in groups] == expected


def test_windows_beside_latents_that_cannot_be_made_equal_are_kept_in_full() -> None:
    (group,) = form_groups(layers(page(MLA, LATENT), page(SWA, WIDE)))
    assert group.spec() == GroupSpec(kind=FULL, block_size=16)
    assert group.block_bytes == 16 * (1152 + 4096)


@pytest.mark.parametrize(
    "beside",
    [page(CHUNKED, WIDE), page(MAMBA, state(2, 20_000))],
    ids=["chunked", "state"],
)
def test_latents_that_cannot_be_made_equal_are_refused_by_layer(beside: Page) -> None:
    message = r"layer 0 \(mla_attention\) has pages of 18,432 bytes, which do not divide"
    with pytest.raises(TopologyError, match=message):
        form_groups(layers(page(MLA, LATENT), beside))


def test_latents_of_two_block_sizes_beside_windows_are_refused() -> None:
    pages = (page(MLA, LATENT), page(MLA, LATENT, block_size=48), page(SWA, WIDE))
    with pytest.raises(TopologyError, match="pages of latents cannot be padded"):
        form_groups(layers(*pages))


def test_a_page_cannot_be_padded_to_less_than_its_content() -> None:
    with pytest.raises(TopologyError, match="of 100 bytes cannot hold 65,536; pad to at least"):
        page(FULL, WIDE, padded_bytes=100)


# ---- what is refused ---------------------------------------------------------------------------


def test_chunked_layers_need_one_block_size_in_all_groups() -> None:
    groups = form_groups(layers(page(CHUNKED, WIDE), page(FULL, SMALL)))
    with pytest.raises(TopologyError, match=r"group 0 \(chunked_local_attention.*blocks of 16"):
        Grouping(groups=groups)


def test_nothing_to_group_is_refused() -> None:
    with pytest.raises(TopologyError, match="no layer keeps a cache"):
        Grouping(groups=form_groups(()))


def test_attention_of_several_sizes_beside_states_is_refused() -> None:
    states = KindLayers(
        spec=LayerSpec(kind=MAMBA, state_bytes=1024, shape=state(2, 256)), layers=(0,)
    )
    mixed = model(states, kind_layers(FULL, [1], SMALL), kind_layers(SWA, [2], WIDE))
    message = r"layers 1 \(full_attention\) 8,192 bytes; layers 2 \(sliding_window\) 65,536"
    with pytest.raises(TopologyError, match=message):
        group_layers(mixed, DEFAULT)


def test_layers_without_a_shape_are_refused() -> None:
    bare = KindLayers(spec=LayerSpec(kind=FULL, kv_bytes_per_token=64), layers=(0, 1))
    with pytest.raises(
        TopologyError, match=r"layers 0-1 \(full_attention\) keep bytes of unknown"
    ):
        group_layers(model(bare), DEFAULT)


OPTIONS: Final[dict[str, tuple[Mapping[str, int], str]]] = {
    "no block": ({"block_size": 0}, "block_size is 0; expected an integer of at least 1"),
    "no rank": ({"num_ranks": 0}, "num_ranks is 0; expected an integer of at least 1"),
    "no kernel block": ({"kernel_block_size": -1}, "kernel_block_size is -1"),
    "half a kernel block": (
        {"block_size": 24},
        "24 tokens; expected a multiple of the kernel's 16",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_no_engine_starts_with_are_refused(case: str) -> None:
    options, message = OPTIONS[case]
    with pytest.raises(InvalidValueError, match=message):
        EngineOptions(**options)  # type: ignore[arg-type]


# ---- tensor parallelism ------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_ranks_divide_key_value_heads_and_keep_at_least_one(ranks: int, kv_heads: int) -> None:
    options = EngineOptions(num_ranks=ranks)
    (group,) = group_config(load("qwen3-32b"), options).grouping.groups
    assert group.page.page_bytes == 16 * kv_heads * 512


def test_latents_are_the_same_on_every_rank() -> None:
    (group,) = group_config(load("deepseek-v3"), EngineOptions(num_ranks=8)).grouping.groups
    assert group.page.page_bytes == 16 * 1152


def test_a_single_state_group_is_replicated_and_heads_are_divided() -> None:
    conv = StateTensor(
        name="conv",
        dims=(3, 8 * 4 + 6),
        dtype="bfloat16",
        axis=1,
        parts=(
            StatePart(what="state heads", num=8, width=4),
            StatePart(what="state groups", num=1, width=6, replicable=True),
        ),
    )
    ssm = StateTensor(
        name="ssm",
        dims=(8, 4, 16),
        dtype="float32",
        parts=(StatePart(what="state heads", num=8),),
    )
    on_rank = RecurrentState(tensors=(conv, ssm)).on_rank(4)
    assert [tensor.dims for tensor in on_rank.tensors] == [(3, 2 * 4 + 6), (2, 4, 16)]
    assert on_rank.size_bytes == 3 * 14 * 2 + 2 * 4 * 16 * 4


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [
        ("qwen3-32b", 3, r"layers 0-63 \(full_attention\): 8 key-value heads cannot be divided"),
        ("qwen3-next-80b-a3b", 64, r"\(mamba\): 16 key heads of the state cannot be divided"),
        ("nemotron-3-nano-30b-a3b", 16, r"\(mamba\): 8 state groups cannot be divided evenly"),
    ],
)
def test_what_ranks_cannot_divide_is_refused_by_layer(name: str, ranks: int, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        group_config(load(name), EngineOptions(num_ranks=ranks))


# ---- the topology of a grouping ----------------------------------------------------------------


def test_a_grouping_is_a_topology_in_the_engines_order() -> None:
    assert group_config(load("gemma-4-31b"), DEFAULT).grouping.topology() == Topology(
        partial_hits=False,
        groups=(
            *[GroupSpec(kind=SWA, block_size=16, window=1024)] * 5,
            GroupSpec(kind=FULL, block_size=32),
        ),
        alignment=32,
        hash_block_size=16,
    )


def test_a_chunk_is_part_of_the_topology() -> None:
    topology = group_config(load("llama-4-scout-17b-16e"), DEFAULT).grouping.topology()
    assert topology.groups[0] == GroupSpec(kind=CHUNKED, block_size=16, chunk=8192)


PARTIAL: Final[dict[str, tuple[tuple[Page, ...], bool]]] = {
    "a state's block as long as a hash": ((page(MAMBA, state(8, 4096)), page(FULL, WIDE)), False),
    "a longer one beside full layers": (
        (page(MAMBA, state(8, 4096), block_size=64), page(FULL, WIDE)),
        True,
    ),
    "a longer one beside windows of whole hashes": (
        (page(MAMBA, state(8, 4096), block_size=64), page(SWA, WIDE)),
        True,
    ),
    "a longer one beside windows of several": (
        (
            page(MAMBA, state(8, 4096), block_size=64),
            page(FULL, WIDE),
            page(SWA, SMALL),
        ),
        False,
    ),
    "no state": ((page(FULL, SMALL), page(SWA, WIDE)), False),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_hits_may_end_inside_a_states_block_where_every_group_allows_it(case: str) -> None:
    pages, expected = PARTIAL[case]
    assert Grouping(groups=form_groups(layers(*pages))).topology().partial_hits is expected


NO_HYBRID: Final = EngineOptions(hybrid=False)


@pytest.mark.parametrize(
    ("name", "block_size", "block_bytes"),
    [
        ("gemma-2-2b", 16, 1_703_936),
        ("gpt-oss-20b", 16, 786_432),
        ("llama-4-scout-17b-16e", 16, 3_145_728),
    ],
)
def test_without_the_hybrid_manager_windows_and_chunks_are_kept_in_full_in_one_group(
    name: str, block_size: int, block_bytes: int
) -> None:
    grouping = group_config(load(name), NO_HYBRID).grouping
    (group,) = grouping.groups
    assert (group.spec(), grouping.block_bytes) == (
        GroupSpec(kind=FULL, block_size=block_size),
        block_bytes,
    )


def test_without_the_hybrid_manager_layers_of_one_type_stay_what_they_are() -> None:
    for name in ("mistral-7b-v0.1", "llama-3.1-8b", "deepseek-v3"):
        alone = group_config(load(name), NO_HYBRID).grouping
        assert alone == group_config(load(name), DEFAULT).grouping


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "jamba-v0.1"])
def test_without_the_hybrid_manager_states_beside_attention_are_refused(name: str) -> None:
    told = r"several types \(full_attention, mamba\) .* leave the manager on"
    with pytest.raises(TopologyError, match=told):
        group_config(load(name), NO_HYBRID)


def test_without_the_hybrid_manager_windows_get_the_blocks_of_the_full_layers() -> None:
    kept = kept_in_full(layers(page(FULL, block_size=32), page(SWA), page(CHUNKED)))
    assert [(each.page.kind, each.page.block_size) for each in kept] == [(FULL, 32)] * 3
    assert [(each.page.window, each.page.chunk) for each in kept] == [
        (None, None), (128, None), (None, 64),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "field", "told"),
    [
        (SWA, "window", r"windows of 32, 128 tokens"),
        (CHUNKED, "chunk", r"chunks of 32, 64 tokens"),
    ],
)
def test_without_the_hybrid_manager_reaches_of_two_sizes_are_refused_unless_latents_are_there(
    kind: SpecKind, field: str, told: str
) -> None:
    reaches = page(kind), replace(page(kind), **{field: 32})  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=told):
        kept_in_full(layers(page(FULL), *reaches))
    kept = kept_in_full(layers(page(MLA, LATENT), *reaches))
    assert [each.page.kind for each in kept] == [MLA, FULL, FULL]


def test_without_the_hybrid_manager_windows_alone_of_two_sizes_are_refused() -> None:
    with pytest.raises(TopologyError, match="leave the manager on"):
        kept_in_full(layers(page(SWA), page(SWA, window=64)))
