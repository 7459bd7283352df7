"""`kvbraid model` as people and programs see it: layers, groups, and options that need groups."""

import json
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.models import (
    EngineOptions,
    GroupedModel,
    Heads,
    KindLayers,
    LayerSpec,
    ModelLayers,
    group_layers,
)
from kvbraid.report.models import show_groups
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
