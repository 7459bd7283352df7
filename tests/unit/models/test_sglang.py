"""What SGLang keeps of a model: its own lists decide, not what the layers need."""

from typing import Any, Final

import pytest
from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.models import silent_groups, with_silent_groups
from kvbraid.spec import GroupSpec, SilentGroup, SpecKind, Topology

from tests.published_models import published

FULL: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)


def window(tokens: int, block_size: int = 16) -> GroupSpec:
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=block_size, window=tokens)


def state(block_size: int = 16) -> GroupSpec:
    return GroupSpec(kind=SpecKind.MAMBA, block_size=block_size)


def completed(
    config: dict[str, Any], *groups: GroupSpec, alignment: int | None = None
) -> Topology:
    listed = Topology(groups=groups, alignment=alignment)
    return with_silent_groups(listed, silent_groups(config), model_type="the model")


@pytest.mark.parametrize(
    "name",
    ["gemma-2-9b", "gemma-3-27b", "gemma-3n-e4b", "mistral-7b-v0.1", "ministral-8b-2410",
     "olmo-3-7b", "exaone-4.0-32b", "smollm3-3b", "command-r7b", "qwen3-32b", "llama-3.1-8b",
     "deepseek-v3.2", "minimax-m3"],
)  # fmt: skip
def test_a_model_that_is_on_no_list_is_kept_in_full(name: str) -> None:
    assert silent_groups(published(name)) == ()


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("gpt-oss-20b", 128), ("gemma-4-31b", 1024), ("mimo-v2-flash", 129),
     ("step-3.7-flash", 513), ("deepseek-v4-flash", 129), ("llama-4-scout-17b-16e", 8193)],
)  # fmt: skip
def test_a_listed_model_has_one_window_as_long_as_sglang_counts_it(name: str, tokens: int) -> None:
    group = SilentGroup(kind=SpecKind.SLIDING_WINDOW, window=tokens)
    assert silent_groups(published(name)) == (group,)


@pytest.mark.parametrize(
    ("name", "grid"),
    [("qwen3-next-80b-a3b", 64), ("qwen3.5-27b", 64), ("kimi-linear-48b-a3b", 64),
     ("nemotron-h-8b", 1), ("falcon-h1-7b", 1), ("granite-4.0-h-tiny", 1)],
)  # fmt: skip
def test_a_model_with_states_has_one_group_of_them(name: str, grid: int) -> None:
    assert silent_groups(published(name)) == (SilentGroup(kind=SpecKind.MAMBA, grid=grid),)


def test_the_architecture_decides_where_the_config_names_one() -> None:
    text = {"model_type": "llama4_text", "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "attention_chunk_size": 256}  # fmt: skip
    assert silent_groups({**text, "architectures": ["Llama4ForCausalLM"]}) == ()
    assert silent_groups(text), "it may be a part of the model with pictures"
    (group,) = silent_groups(
        {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"],
         "text_config": text}
    )  # fmt: skip
    assert group.window == 257


@pytest.mark.parametrize(
    "changes",
    [{"architectures": ["GptOssForCausalLM"]}, {"architectures": ["Unheard"]},
     {"architectures": None}],
)  # fmt: skip
def test_neither_a_missing_nor_an_unheard_architecture_makes_a_hybrid_dense(
    changes: dict[str, object],
) -> None:
    assert silent_groups(published("gpt-oss-20b", **changes))


def test_a_config_may_say_itself_that_it_is_hybrid() -> None:
    assert silent_groups(published("gemma-3-1b")) == ()
    assert silent_groups(published("gemma-3-1b", is_hybrid_swa=True))


@pytest.mark.parametrize("value", [[], {}, 1, [[]], None])
@pytest.mark.parametrize("name", ["model_type", "architectures"])
def test_a_field_of_another_type_than_usual_is_none(name: str, value: object) -> None:
    """The text model's own part says what it is."""
    nested = {"text_config": published("gpt-oss-20b"), "model_type": "x", name: value}
    assert len(silent_groups(nested)) == 1


def test_a_laguna_without_a_window_is_dense() -> None:
    base = published("llama-3.1-8b", model_type="laguna", architectures=["LagunaForCausalLM"])
    assert silent_groups({**base, "sliding_window": None}) == ()


def test_an_engine_may_run_without_window_pools_but_never_without_states() -> None:
    flag = {"disable_hybrid_swa_memory": True}
    assert silent_groups(published("gpt-oss-20b"), **flag) == ()
    assert silent_groups(published("qwen3-next-80b-a3b"), **flag)


def test_a_config_with_a_grid_of_its_own_does_not_get_the_usual_one() -> None:
    (group,) = silent_groups(published("qwen3-next-80b-a3b", mamba_chunk_size=128))
    assert group.grid == 1


@pytest.mark.parametrize("name", ["jamba-v0.1", "zamba2-2.7b", "minimax-text-01", "bamba-9b"])
def test_states_that_sglang_does_not_keep_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"has states, and SGLang .* leave model_config"):
        silent_groups(published(name))


def test_a_listed_model_without_a_window_is_refused() -> None:
    dense = published("llama-3.1-8b", architectures=["Gemma4ForCausalLM"])
    with pytest.raises(InvalidValueError, match="has no window; add `sliding_window`"):
        silent_groups(dense)


def test_a_pod_listed_as_full_only_gets_what_its_model_has_besides() -> None:
    assert completed(published("gpt-oss-20b"), FULL).groups == (FULL, window(128))
    hybrid = completed(published("qwen3-next-80b-a3b"), FULL)
    assert hybrid == Topology(groups=(FULL, state()), alignment=64)
    assert completed(published("gemma-3-27b"), FULL) == Topology(groups=(FULL,))


@pytest.mark.parametrize(("page", "alignment"), [(1, None), (16, 64), (96, 192), (128, 128)])
def test_states_end_on_the_grid_unless_pages_are_single_tokens(
    page: int, alignment: int | None
) -> None:
    full = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=page)
    assert completed(published("qwen3.5-27b"), full).alignment == alignment


def test_an_alignment_that_was_given_stays() -> None:
    assert completed(published("qwen3.5-27b"), FULL, alignment=16).alignment == 16


def test_groups_listed_as_sglang_keeps_them_stay_as_they_are() -> None:
    for name, groups in {
        "gpt-oss-20b": (window(128), FULL),
        "nemotron-h-8b": (FULL, state()),
    }.items():
        assert completed(published(name), *groups).groups == groups


def test_no_groups_stay_none() -> None:
    assert completed(published("gpt-oss-20b")) == Topology(groups=())


@pytest.mark.parametrize(
    ("name", "groups", "told"),
    [
        ("gemma-3-27b", (FULL, window(1024)), "kept: full attention; "),
        ("gpt-oss-20b", (FULL, window(256)), "sliding_window of blocks of 16 with 128 tokens"),
        ("gpt-oss-20b", (FULL, window(128, 32)), "a group sliding_window of blocks of 32"),
        ("gpt-oss-20b", (FULL, state()), "a group mamba of blocks of 16 contradicts"),
        ("qwen3-32b", (FULL, state()), "leave the group out"),
        ("gpt-oss-20b", (window(128),), "SGLang also keeps full attention"),
    ],
)
def test_a_group_that_sglang_does_not_keep_is_refused(
    name: str, groups: tuple[GroupSpec, ...], told: str
) -> None:
    with pytest.raises(TopologyError) as refused:
        completed(published(name), *groups)
    assert told.replace("kept: ", "SGLang keeps of the model: ") in str(refused.value)


@pytest.mark.parametrize(
    "group",
    [{"kind": SpecKind.SLIDING_WINDOW}, {"kind": SpecKind.SLIDING_WINDOW, "window": 0},
     {"kind": SpecKind.MAMBA, "grid": 0}],
)  # fmt: skip
def test_a_silent_group_that_no_engine_can_have_is_refused(group: dict[str, Any]) -> None:
    with pytest.raises(TopologyError):
        SilentGroup(**group)
