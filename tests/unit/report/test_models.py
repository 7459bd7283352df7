"""`kvbraid model` as people and programs see it: layers, groups, and options that need groups."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.errors import InvalidValueError
from kvbraid.models import (
    CONFIGS,
    EngineOptions,
    GroupedModel,
    Heads,
    KindLayers,
    LayerSpec,
    ModelLayers,
    find_config,
    group_config,
    group_layers,
    read_config,
)
from kvbraid.report.models import show_groups
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.spec import SpecKind

from tests.unit.report.terminal import shown_at

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["model", *arguments])
    return result.exit_code, result.output


def printed(name: str, *arguments: str) -> str:
    status, output = command(str(FIXTURES / name), *arguments)
    assert status == 0, output
    return output.removesuffix("\n")


def test_layers_as_json_are_one_object_of_the_documented_shape() -> None:
    text = printed("llama-4-scout-17b-16e.json", "--json")
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    assert list(found) == ["model_type", "num_layers", "kinds", "aliases", "assumed"]
    assert (found["model_type"], found["num_layers"]) == ("llama4_text", 48)
    assert found["kinds"][1] == {
        "kind": "full_attention",
        "layers": list(range(3, 48, 4)),
        "window": None,
        "chunk": None,
        "kv_bytes_per_token": 4096,
        "state_bytes": None,
    }
    assert found["kinds"][0]["chunk"] == 8192
    assert found["aliases"] == {}


def test_layers_that_read_anothers_cache_are_named_in_the_json() -> None:
    found = json.loads(printed("gemma-3n-e2b.json", "--json"))
    assert found["aliases"] == {str(i): 19 if i % 5 == 4 else 18 for i in range(20, 30)}


def test_the_table_shows_kinds_runs_of_layers_and_what_was_assumed() -> None:
    text = printed("gemma-3-4b.json")
    assert text.startswith("gemma3_text: 34 layers")
    assert "sliding_window" in text
    assert "0-4, 6-10, 12-16" in text
    assert "assumed: head_dim = 256 (not in the config)" in text


def test_groups_as_json_are_one_object_of_the_documented_shape() -> None:
    text = printed("gemma-3-27b.json", "--groups", "--tp", "2", "--json")
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    groups = found.pop("groups")
    assert found == {
        "model_type": "gemma3_text",
        "num_layers": 62,
        "num_ranks": 2,
        "hybrid": True,
        "block_bytes": 655_360,
        "padding_slots": 8,
        "alignment": 16,
        "hash_block_size": 16,
        "assumed": {"sliding_window_pattern": 6},
    }
    assert groups[5] == {
        "kind": "sliding_window",
        "layers": [6, 13, 20, 27, 34, 42, 49, 56],
        "block_size": 16,
        "window": 1024,
        "chunk": None,
        "page_bytes": [65_536] * 8,
        "padding_bytes": 0,
        "block_bytes": 524_288,
    }


def test_the_table_shows_groups_pages_and_sums() -> None:
    text = printed("qwen3-next-80b-a3b.json", "--groups", "--tp", "2")
    assert text.startswith("qwen3_next: 48 layers, 4 groups")
    assert "A block takes 6,684,672 bytes on each of 2 ranks; 0 layer slots are padding." in text
    assert "Groups agree every 544 tokens; the engine hashes every 544." in text
    assert "assumed: mamba_ssm_dtype = bfloat16 (not in the config)" in text
    on_one_rank = printed("qwen3-next-80b-a3b.json", "--groups")
    assert "A block takes 13,369,344 bytes;" in on_one_rank


def test_without_the_hybrid_manager_there_is_one_group_and_the_options_are_shown() -> None:
    text = printed("gemma-3-27b.json", "--groups", "--no-hybrid", "--tp", "2")
    assert text.startswith("gemma3_text: 62 layers, 1 group\n")
    assert "hybrid cache manager off (--no-hybrid)." in text
    assert "hybrid cache manager on (--no-hybrid)." in printed("gemma-3-27b.json", "--groups")
    status, output = command(str(FIXTURES / "gemma-3-27b.json"), "--no-hybrid")
    assert (status, "--no-hybrid without --groups" in output) == (2, True)


def test_the_table_shows_the_range_of_unequal_pages() -> None:
    heads = [
        Heads(num=2, key_dim=64, value_dim=64, dtype="bfloat16"),
        Heads(num=8, key_dim=128, value_dim=128, dtype="bfloat16"),
    ]
    kinds = tuple(
        KindLayers(
            spec=LayerSpec(
                kind=SpecKind.FULL_ATTENTION, kv_bytes_per_token=each.bytes_per_token, shape=each
            ),
            layers=(number,),
        )
        for number, each in enumerate(heads)
    )
    model = ModelLayers(model_type="example", num_layers=2, kinds=kinds)
    options = EngineOptions()
    grouping = group_layers(model, options)
    grouped = GroupedModel(model=model, options=options, grouping=grouping)
    text = shown_at(None, lambda console: show_groups(console, grouped))
    assert "8,192-65,536" in text
    assert text.startswith("example: 2 layers, 1 group\n")
    assert len(grouping.groups) == 1


def test_the_command_passes_its_options_on() -> None:
    path = str(FIXTURES / "qwen3-next-80b-a3b.json")
    options = ("--block-size", "128", "--kernel-block", "64", "--state-dtype", "float32")
    status, output = command(path, "--groups", *options, "--tp", "2", "--json")
    found = json.loads(output)
    assert (status, found["num_ranks"]) == (0, 2)
    assert found["alignment"] == 1152
    shorter = json.loads(command(path, "--groups", *options, "--dtype", "fp8", "--json")[1])
    assert shorter["alignment"] == 2176  # A token takes half the bytes, so a state covers more.


def test_the_command_without_groups_shows_layers_and_refuses_options_of_groups() -> None:
    path = str(FIXTURES / "gpt-oss-20b.json")
    assert "24 layers" in command(path)[1]
    status, output = command(path, "--kernel-block", "64", "--tp", "2")
    assert status == 2
    assert "--kernel-block, --tp without --groups; add --groups" in output


GROUPED: Final = [
    name
    for name in json.loads((FIXTURES / "expected.json").read_text())
    if command(str(FIXTURES / f"{name}.json"), "--groups")[0] == 0
]
POD: Final = 'id = "a"\nmodel = "m"\nendpoint = "tcp://h:1"\n'


@pytest.mark.parametrize("name", GROUPED)
def test_groups_as_toml_are_the_topology_of_a_pod_wherever_they_are_pasted(
    tmp_path: Path, name: str
) -> None:
    text = printed(f"{name}.json", "--groups", "--toml", "--tp", "1") + "\n"
    expected = group_config(read_config(FIXTURES / f"{name}.json"), EngineOptions())
    path = tmp_path / "fleet.toml"
    for pod in (text + POD, POD + text):
        path.write_text(f"[[pods]]\n{pod}[[pods]]\n{POD.replace('a', 'b', 1)}")
        first, second = read_fleet_file(path).pods.values()
        assert first.topology == expected.grouping.topology()
        assert first.block_bytes == expected.grouping.block_bytes
        assert second.topology is None


def test_most_models_are_tried_as_toml() -> None:
    assert len(GROUPED) > 50


@pytest.mark.parametrize("model", CONFIGS)
def test_a_known_model_has_a_name_wherever_a_config_is_asked_for(
    tmp_path: Path, model: str
) -> None:
    path = str(FIXTURES / f"{model.replace('jamba-mini', 'jamba-v0.1')}.json")
    for arguments in (["--json"], ["--groups", "--json"], ["--groups", "--toml"]):
        assert command(model, *arguments) == command(path, *arguments)
    planned = [
        CliRunner().invoke(cli, ["plan", given, "--json"]).output for given in (model, path)
    ]
    assert planned[0] == planned[1]
    fleet = tmp_path / "fleet.toml"
    dialects = ("vllm", "sglang") if "jamba" not in model else ("vllm",)  # SGLang lacks Mamba-1.
    for dialect in dialects:
        found = []
        for given in (model, path):
            topology = f'topology = {{ dialect = "{dialect}" }}\n'
            fleet.write_text(f'[[pods]]\n{POD}model_config = "{given}"\n{topology}')
            found.append(read_fleet_file(fleet).pods)
        assert found[0] == found[1]


def test_a_folder_may_stand_for_its_config_and_a_path_is_never_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "gpt-oss-120b"
    folder.mkdir()
    (folder / "config.json").write_text((FIXTURES / "gpt-oss-20b.json").read_text())
    assert find_config(folder)["num_hidden_layers"] == 24
    assert find_config("./gpt-oss-120b", folder=tmp_path)["num_hidden_layers"] == 24
    assert find_config("gpt-oss-120b", folder=tmp_path)["num_hidden_layers"] == 36


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidValueError, match="or one of gpt-oss-120b, gemma-3-27b, "):
        find_config("gpt-oss-121b")


def test_toml_needs_groups_and_is_not_json() -> None:
    path = str(FIXTURES / "gpt-oss-20b.json")
    assert "--toml without --groups; add --groups" in command(path, "--toml")[1]
    assert "--json and --toml; choose one" in command(path, "--groups", "--json", "--toml")[1]
