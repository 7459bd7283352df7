"""Reading single architectures: their layers, what is refused, what is added to a topology."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.models import (
    MODEL_TYPES,
    EngineOptions,
    KindLayers,
    LayerSpec,
    ModelLayers,
    complete,
    group_config,
    kinds_of,
    model_groups,
    read_config,
    unsent_tokens,
)
from kvbraid.sim.captures.read import read_capture
from kvbraid.spec import GroupSpec, SpecKind, Topology

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
CAPTURES: Final = FIXTURES.with_name("captures")
HEADS: Final = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
LLAMA: Final = {"model_type": "llama", "num_hidden_layers": 4, "dtype": "bfloat16", **HEADS}
S, F, C = "sliding_attention", "full_attention", "chunked_attention"
MAMBA2: Final = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
}


def model(model_type: str, layers: int, **fields: object) -> dict[str, object]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "torch_dtype": "bfloat16",
        **HEADS,
        **fields,
    }


def by_kind(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    return {kind.spec.kind.value: kind.layers for kind in kinds_of(config).kinds}


def only(config: Mapping[str, object]) -> KindLayers:
    (kind,) = kinds_of(config).kinds
    return kind


POSITIONS: Final[dict[str, tuple[dict[str, object], dict[str, tuple[int, ...]]]]] = {
    "a list of layer types": (
        model("gemma3_text", 3, layer_types=[S, F, S], sliding_window=64),
        {"sliding_window": (0, 2), "full_attention": (1,)},
    ),
    "entries past the last layer are prediction heads": (
        model("step3p5", 2, layer_types=[F, S, S, S], sliding_window=64),
        {"full_attention": (0,), "sliding_window": (1,)},
    ),
    "five windows to one": (
        model("gemma3_text", 7, sliding_window=64),
        {"sliding_window": (0, 1, 2, 3, 4, 6), "full_attention": (5,)},
    ),
    "a word that repeats": (
        model("exaone4", 6, sliding_window=64, sliding_window_pattern="LLG"),
        {"sliding_window": (0, 1, 3, 4), "full_attention": (2, 5)},
    ),
    "a word without a window is all full": (
        model("exaone4", 4, sliding_window=None, sliding_window_pattern="LLLG"),
        {"full_attention": (0, 1, 2, 3)},
    ),
    "a window set for all": (
        model("mistral", 2, sliding_window=64),
        {"sliding_window": (0, 1)},
    ),
    "a null window": (model("mistral", 2, sliding_window=None), {"full_attention": (0, 1)}),
    "a window switched off": (
        model("qwen2", 2, sliding_window=64, use_sliding_window=False, max_window_layers=0),
        {"full_attention": (0, 1)},
    ),
    "a window from a layer on": (
        model("qwen2", 4, sliding_window=64, use_sliding_window=True, max_window_layers=3),
        {"full_attention": (0, 1, 2), "sliding_window": (3,)},
    ),
    "chunks where layers rotate": (
        model("llama4_text", 4, attention_chunk_size=64, no_rope_layers=[1, 0, 1, 0]),
        {"chunked_local_attention": (0, 2), "full_attention": (1, 3)},
    ),
    "an empty list of layers that do not rotate is no list": (
        model("llama4_text", 4, attention_chunk_size=64, no_rope_layers=[]),
        {"chunked_local_attention": (0, 1, 2), "full_attention": (3,)},
    ),
    "no chunk size": (
        model("llama4_text", 2, attention_chunk_size=None),
        {"full_attention": (0, 1)},
    ),
    "the last layers share": (
        model(
            "gemma3n_text",
            5,
            layer_types=[S, F, S, S, F],
            num_kv_shared_layers=3,
            sliding_window=8,
        ),
        {"sliding_window": (0,), "full_attention": (1,)},
    ),
    "one of two layers owns": (
        model("hunyuan", 4, use_cla=True, cla_share_factor=2),
        {"full_attention": (0, 2)},
    ),
    "layer numbers from one": (
        {
            **model("kimi_linear", 4, kv_lora_rank=16, qk_rope_head_dim=8),
            "linear_attn_config": {
                "full_attn_layers": [2, 4],
                "num_heads": 2,
                "head_dim": 8,
                "short_conv_kernel_size": 4,
            },
        },
        {"mamba": (0, 2), "mla_attention": (1, 3)},
    ),
    "attention and state side by side": (
        model("falcon_h1", 2, **MAMBA2),
        {"mamba": (0, 1), "full_attention": (0, 1)},
    ),
    "layer numbers from zero": (
        model("bamba", 3, attn_layer_indices=[1], **MAMBA2),
        {"mamba": (0, 2), "full_attention": (1,)},
    ),
    "a period and an offset": (
        model(
            "jamba",
            6,
            hidden_size=64,
            attn_layer_period=3,
            attn_layer_offset=0,
            mamba_expand=2,
            mamba_d_state=16,
            mamba_d_conv=4,
        ),
        {"full_attention": (0, 3), "mamba": (1, 2, 4, 5)},
    ),
    "full-attention indices of short convolutions": (
        model("lfm2", 3, hidden_size=64, full_attn_idxs=[2], conv_L_cache=3),
        {"mamba": (0, 1), "full_attention": (2,)},
    ),
    "a decoder whose second half reads the first": (
        model(
            "phi4flash",
            8,
            hidden_size=64,
            mb_per_layer=2,
            mamba_expand=2,
            mamba_d_state=16,
            mamba_d_conv=4,
            sliding_window=[None, 64, None, 64, None, None, None, None],
        ),
        {"mamba": (0, 2, 4), "sliding_window": (1, 3), "full_attention": (5,)},
    ),
}


@pytest.mark.parametrize("case", sorted(POSITIONS))
def test_each_pattern_puts_layers_where_the_architecture_has_them(case: str) -> None:
    config, expected = POSITIONS[case]
    assert by_kind(config) == expected


def test_a_nested_text_model_is_read_with_the_outer_dtype() -> None:
    inner = {name: value for name, value in LLAMA.items() if name != "dtype"}
    nested = {"model_type": "some_vlm", "torch_dtype": "float32", "llm_config": inner}
    assert kinds_of(nested).model_type == "llama"
    assert only(nested).spec.kv_bytes_per_token == 2 * 2 * 32 * 4


def test_a_text_model_without_a_type_of_its_own_takes_the_outer_one() -> None:
    nested = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 1, "sliding_window": 8}}
    found = kinds_of(nested)
    assert (found.model_type, found.num_layers) == ("gemma3", 1)
    assert found.assumed == {
        "sliding_window_pattern": 6,
        "head_dim": 256,
        "num_key_value_heads": 4,
        "dtype": "bfloat16",
    }


@pytest.mark.parametrize(
    ("fields", "element"),
    [
        ({"dtype": "float32"}, 4),
        ({"dtype": None, "torch_dtype": "torch.float16"}, 2),
        ({"dtype": "float8_e4m3fn"}, 1),
    ],
)
def test_dtype_and_torch_dtype_set_the_bytes_of_an_element(
    fields: dict[str, object], element: int
) -> None:
    assert only({**LLAMA, **fields}).spec.kv_bytes_per_token == 2 * 2 * 32 * element


def test_a_cache_dtype_replaces_the_models_for_keys_and_values_only() -> None:
    config, _ = POSITIONS["layer numbers from zero"]
    own, fp8 = kinds_of(config), kinds_of(config, cache_dtype="fp8")
    assert [kind.spec.state_bytes for kind in own.kinds] == [
        kind.spec.state_bytes for kind in fp8.kinds
    ]
    assert own.kinds[1].spec.kv_bytes_per_token == 256
    assert fp8.kinds[1].spec.kv_bytes_per_token == 128


def test_a_state_follows_the_configured_state_dtype() -> None:
    config, _ = POSITIONS["layer numbers from zero"]
    conv, state = (8 * 16 + 2 * 16) * 3, 8 * 16 * 16
    assert kinds_of(config).kinds[0].spec.state_bytes == conv * 2 + state * 4
    half = kinds_of({**config, "mamba_ssm_cache_dtype": "bfloat16"})
    assert half.kinds[0].spec.state_bytes == (conv + state) * 2
    assert "mamba_ssm_dtype" not in half.assumed


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "model_type": "mamba2",
                "num_hidden_layers": 1,
                "dtype": "bfloat16",
                "num_heads": 8,
                "head_dim": 16,
                "n_groups": 1,
                "state_size": 16,
                "conv_kernel": 4,
            },
            (8 * 16 + 2 * 16) * 3 * 2 + 8 * 16 * 16 * 4,
        ),
        (
            {
                "model_type": "mamba",
                "num_hidden_layers": 1,
                "dtype": "bfloat16",
                "hidden_size": 64,
                "expand": 2,
                "state_size": 16,
                "conv_kernel": 4,
            },
            128 * (3 + 16) * 2,
        ),
        (
            {
                "model_type": "falcon_mamba",
                "num_hidden_layers": 1,
                "dtype": "bfloat16",
                "intermediate_size": 100,
                "state_size": 16,
                "conv_kernel": 4,
            },
            100 * (3 + 16) * 2,
        ),
    ],
)
def test_a_model_of_states_alone_has_no_bytes_per_token(
    config: dict[str, object], expected: int
) -> None:
    spec = only(config).spec
    assert (spec.kind, spec.state_bytes, spec.kv_bytes_per_token) == (
        SpecKind.MAMBA,
        expected,
        None,
    )


def test_page_bytes_are_per_block_for_kv_and_per_state_for_states() -> None:
    assert LayerSpec(kind=SpecKind.FULL_ATTENTION, kv_bytes_per_token=256).page_bytes(16) == 4096
    assert LayerSpec(kind=SpecKind.MAMBA, state_bytes=999).page_bytes(16) == 999
    with pytest.raises(InvalidValueError, match="block_size is 0"):
        LayerSpec(kind=SpecKind.MAMBA, state_bytes=999).page_bytes(0)


REFUSALS: Final[dict[str, tuple[dict[str, object], str]]] = {
    "no type": ({}, "model_type = None is not known; docs/models.md lists"),
    "an unknown type": (model("perceiver", 2), r"'perceiver' is not known; docs.*how to add one"),
    "a misspelled type": (model("lama4_text", 2), r"did you mean llama4_text or "),
    "a type too long to compare": (model("gemma" * 50, 2), r"is not known; "),
    "a missing size": (
        {"model_type": "gpt_oss", "num_hidden_layers": 2, "sliding_window": 8, "head_dim": 8},
        "gpt_oss config has no `num_key_value_heads`.*add the field",
    ),
    "a missing pattern": (model("gemma4_text", 2), "has no `layer_types`"),
    "a missing window": (model("gemma3_text", 2), "has no `sliding_window`"),
    "a missing chunk pattern field": (model("jamba", 2), "has no `attn_layer_period`"),
    "a missing offset": (model("jamba", 2, attn_layer_period=2), "has no `attn_layer_offset`"),
    "an offset outside its period": (
        model("jamba", 2, attn_layer_period=2, attn_layer_offset=2),
        "`attn_layer_offset` = 2; expected 0 to 1",
    ),
    "heads that do not divide": (
        {**LLAMA, "head_dim": None, "hidden_size": 65},
        "has no `head_dim`",
    ),
    "a flag for a number": ({**LLAMA, "num_key_value_heads": True}, "= True; expected a whole"),
    "a text for a number": ({**LLAMA, "head_dim": "32"}, "`head_dim` = '32'"),
    "no layers": ({**LLAMA, "num_hidden_layers": 0}, "at least 1"),
    "absurdly many layers": ({**LLAMA, "num_hidden_layers": 10**9}, "at most 4096"),
    "an unknown element type": ({**LLAMA, "dtype": "int3"}, "`dtype` = 'int3'"),
    "an unknown layer type": (
        model("gemma3_text", 1, layer_types=["cross"], sliding_window=8),
        "`layer_types` = 'cross'; expected only full_attention",
    ),
    "a layer type that the architecture lacks": (
        model("gemma3_text", 1, layer_types=[C], sliding_window=8),
        "'chunk'; expected full and window layers only",
    ),
    "too short a list": (
        model("gemma3_text", 3, layer_types=[S], sliding_window=8),
        "expected 3 entries",
    ),
    "a list that is none": (model("gemma3_text", 1, layer_types=7), "expected a list"),
    "too short a word": (
        model("nemotron_h", 3, hybrid_override_pattern="M*"),
        "expected 3 letters",
    ),
    "a word that is none": (
        model("nemotron_h", 3, hybrid_override_pattern=5),
        "expected letters",
    ),
    "an unknown letter": (
        model("nemotron_h", 2, hybrid_override_pattern="M?"),
        r"= '\?'; expected only M, \*",
    ),
    "no list and no number of layers": (
        {"model_type": "nemotron_h"},
        "has no `hybrid_override_pattern`",
    ),
    "an empty word and no number of layers": (
        {"model_type": "nemotron_h", "hybrid_override_pattern": ""},
        "has no `num_hidden_layers`",
    ),
    "a layer number outside the model": (
        model("bamba", 2, attn_layer_indices=[2]),
        "= 2; expected layer numbers 0 to 1",
    ),
    "more sharing layers than layers": (
        model("gemma3n_text", 2, layer_types=[S, F], num_kv_shared_layers=2, sliding_window=8),
        "fewer than 2",
    ),
    "windows from an unsaid layer": (
        model("qwen2", 2, sliding_window=8, use_sliding_window=True),
        "has no `max_window_layers`",
    ),
    "another mix of decoders": (
        model("phi4flash", 8, mb_per_layer=3),
        "`mb_per_layer` = 3; expected 2",
    ),
    "two windows where one is known": (
        {**POSITIONS["a decoder whose second half reads the first"][0], "sliding_window": [8, 9]},
        "expected one window size",
    ),
    "windows that are no sizes": (
        {**POSITIONS["a decoder whose second half reads the first"][0], "sliding_window": [[8]]},
        r"`sliding_window` = \[8\]; expected a whole number",
    ),
    "a size that no engine can count to": (
        {**LLAMA, "head_dim": 1 << 32},
        "`head_dim` = 4294967296; expected a whole number of at least 1, at most 4294967295",
    ),
    "a text model in a text model in": (
        json.loads('{"text_config":' * 400 + "{}" + "}" * 400),
        "nested deeper than 8 objects; give the text model's own",
    ),
    "a window of no size": (
        {**POSITIONS["a decoder whose second half reads the first"][0], "sliding_window": 0},
        "`sliding_window` = 0",
    ),
    "a compression that is not known": (
        model("deepseek_v4", 1, compress_ratios=[8]),
        "`compress_ratios` = 8; expected only 0, 4, 128",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_what_cannot_be_read_is_refused_by_name(case: str) -> None:
    config, message = REFUSALS[case]
    with pytest.raises(InvalidValueError, match=message):
        kinds_of(config)


def test_a_long_wrong_value_is_shown_short() -> None:
    config = model("gemma3_text", 400, layer_types=[S] * 300, sliding_window=8)
    with pytest.raises(InvalidValueError) as refusal:
        kinds_of(config)
    assert len(str(refusal.value)) < 250


def test_a_value_that_cannot_be_written_out_is_refused_all_the_same() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidValueError, match="`head_dim` = a list too long to show"):
        kinds_of({**LLAMA, "head_dim": deep})


def test_an_unknown_cache_dtype_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="cache_dtype = 'int3'; expected one of float32"):
        kinds_of(LLAMA, cache_dtype="int3")


def test_every_known_type_is_refused_by_name_when_its_config_is_empty() -> None:
    for model_type in MODEL_TYPES:
        with pytest.raises(InvalidValueError, match=f"{model_type} config has no `"):
            kinds_of({"model_type": model_type})


CHUNKED: Final = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16)
FULL: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)


def test_completing_a_topology_fills_in_the_chunk_that_events_do_not_carry() -> None:
    llama4 = kinds_of(POSITIONS["chunks where layers rotate"][0])
    done = complete(Topology(groups=(CHUNKED, FULL), partial_hits=True), llama4)
    assert [group.chunk for group in done.groups] == [64, None]
    assert done.partial_hits
    assert complete(done, llama4) == done


def test_a_topology_whose_groups_are_learned_gains_what_events_may_leave_out() -> None:
    llama4 = kinds_of(POSITIONS["chunks where layers rotate"][0])
    learned = Topology(groups=(), partial_hits=True)
    assert complete(learned, llama4) == learned
    assert unsent_tokens(llama4) == ((SpecKind.CHUNKED_LOCAL_ATTENTION, 64),)
    gemma = kinds_of(POSITIONS["five windows to one"][0])
    assert unsent_tokens(gemma) == ((SpecKind.SLIDING_WINDOW, 64),)
    told = ((SpecKind.SLIDING_WINDOW, 64), (SpecKind.FULL_ATTENTION, None))
    assert set(model_groups(gemma)) == set(told)


def test_a_kind_of_two_sizes_says_neither() -> None:
    windows = [
        KindLayers(
            spec=LayerSpec(kind=SpecKind.SLIDING_WINDOW, window=window, kv_bytes_per_token=1),
            layers=(number,),
        )
        for number, window in enumerate((64, 128))
    ]
    model = ModelLayers(model_type="two_windows", num_layers=2, kinds=tuple(windows))
    assert unsent_tokens(model) == ()


def test_cohere2s_window_holds_the_token_itself_beside_those_that_the_config_counts() -> None:
    config = model("cohere2", 4, layer_types=[S, S, S, F], sliding_window=128)
    fixture = read_capture(CAPTURES / "cohere2").topology
    assert complete(fixture, kinds_of(config)) == fixture
    assert {group.window for group in fixture.groups} == {129, None}
    assert unsent_tokens(kinds_of(config)) == ((SpecKind.SLIDING_WINDOW, 129),)
    grouped = group_config(config, EngineOptions(block_size=32)).grouping.topology()
    assert grouped.groups == fixture.groups


def test_an_engine_may_keep_windowed_layers_in_full() -> None:
    mistral = kinds_of(POSITIONS["a window set for all"][0])
    topology = Topology(groups=(FULL,))
    assert complete(topology, mistral) == topology


@pytest.mark.parametrize(
    ("group", "case"),
    [
        (CHUNKED, "a null window"),
        (
            GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=65),
            "a window set for all",
        ),
        (
            GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=65),
            "chunks where layers rotate",
        ),
        (GroupSpec(kind=SpecKind.MAMBA, block_size=16), "a null window"),
    ],
)
def test_a_group_that_the_model_cannot_have_is_refused(group: GroupSpec, case: str) -> None:
    with pytest.raises(TopologyError, match=rf"a {group.kind.value} group .* does not fit"):
        complete(Topology(groups=(group,)), kinds_of(POSITIONS[case][0]))


def test_a_model_of_states_alone_has_no_full_group() -> None:
    mamba = {
        "model_type": "mamba",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "expand": 2,
        "state_size": 16,
        "conv_kernel": 4,
    }
    with pytest.raises(TopologyError, match="full_attention group"):
        complete(Topology(groups=(FULL,)), kinds_of(mamba))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "holds a list; expected a model's config object"),
    ],
)
def test_a_file_that_is_no_config_is_refused_with_its_path(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidValueError, match=message) as refusal:
        read_config(path)
    assert str(path) in str(refusal.value)


# ---- layers that read another's cache -----------------------------------------------------------

READERS: Final[dict[str, tuple[int, dict[int, int]]]] = {
    "gemma-3n-e2b": (30, {i: 19 if i % 5 == 4 else 18 for i in range(20, 30)}),
    "gemma-3n-e4b": (35, {i: 19 if i % 5 == 4 else 18 for i in range(20, 35)}),
    "gemma-4-e2b": (35, {i: 14 if i % 5 == 4 else 13 for i in range(15, 35)}),
    "gemma-4-e4b": (42, {i: 23 if i % 6 == 5 else 22 for i in range(24, 42)}),
    "phi-4-mini-flash-reasoning": (32, dict.fromkeys(range(19, 32, 2), 17)),
    "gemma-3-4b": (34, {}),
}


@pytest.mark.parametrize("name", READERS)
def test_a_layer_that_owns_no_cache_says_whose_it_reads(name: str) -> None:
    found = kinds_of(read_config(FIXTURES / f"{name}.json"))
    assert (found.num_layers, found.aliases) == READERS[name]


def test_of_the_layers_that_share_by_a_factor_the_first_owns_the_cache() -> None:
    found = kinds_of(model("hunyuan", 5, use_cla=True, cla_share_factor=2))
    assert (found.kinds[0].layers, found.aliases) == ((0, 2, 4), {1: 0, 3: 2})
    assert not kinds_of(model("hunyuan", 5, use_cla=False, cla_share_factor=2)).aliases


def test_a_reader_without_an_earlier_layer_of_its_type_is_refused() -> None:
    config = model("gemma3n_text", 3, layer_types=[S, S, F], num_kv_shared_layers=1)
    with pytest.raises(InvalidValueError, match="`num_kv_shared_layers` = 1; expected so few"):
        kinds_of({**config, "sliding_window": 64})


@pytest.mark.parametrize("alias", [{1: 2}, {0: 1}, {1: 1}])
def test_an_alias_of_no_other_layers_cache_is_refused(alias: dict[int, int]) -> None:
    (full,) = kinds_of({**LLAMA, "num_hidden_layers": 1}).kinds
    with pytest.raises(InvalidValueError, match=r"expected a layer without a cache to read one"):
        ModelLayers(model_type="example", num_layers=3, kinds=(full,), aliases=alias)
