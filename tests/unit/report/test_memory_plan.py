"""`kvbraid plan` as people and programs see it: text, the JSON document, refusals."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.errors import KvbraidError
from kvbraid.layout import (
    LayoutGroup,
    LayoutLayer,
    PlannedModel,
    UnknownPage,
    from_json,
    plan_config,
    plan_memory,
)
from kvbraid.models import EngineOptions, read_config
from kvbraid.report.memory_plan import show_plan
from kvbraid.spec import SpecKind
from rich.console import Console

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
GEMMA_2: Final = 15_685 * 851_968
"""Bytes: the 13.36 GB in which vLLM's authors report 15,685 blocks, and 7,842 of one group."""


def command(*arguments: str, columns: int = 80) -> tuple[int, str]:
    runner = CliRunner(env={"COLUMNS": str(columns)})
    result = runner.invoke(cli, ["plan", *arguments])
    return result.exit_code, result.output


def printed(name: str, *arguments: str, columns: int = 80) -> str:
    status, output = command(str(FIXTURES / f"{name}.json"), *arguments, columns=columns)
    assert status == 0, output
    return "\n".join(line.rstrip() for line in output.splitlines())


def flowing(text: str) -> str:
    return " ".join(text.split())


def document(name: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(name, *arguments, "--json"))
    return found


def refusal(*arguments: str) -> str:
    with pytest.raises(KvbraidError) as caught:
        CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "options", "memory", "blocks"),
    [
        ("gemma-2-2b", (), GEMMA_2, 15_685),
        ("gpt-oss-20b", (), 136_756 * 393_216, 136_756),
        ("gpt-oss-20b", ("--tp", "2", "--layout", "hnd"), 66_511 * 196_608, 66_511),
    ],
)
def test_memory_holds_the_blocks_that_were_published(
    name: str, options: tuple[str, ...], memory: int, blocks: int
) -> None:
    assert document(name, *options, "--memory", str(memory))["num_blocks"] == blocks
    assert document(name, *options, "--memory", str(memory - 1))["num_blocks"] == blocks - 1


def test_half_of_the_blocks_fit_without_the_hybrid_cache_manager() -> None:
    found = document("gemma-2-2b", "--no-hybrid", "--memory", str(GEMMA_2))
    assert (len(found["groups"]), found["block_bytes"]) == (1, 1_703_936)
    assert found["num_blocks"] == 7_842


@pytest.mark.parametrize(("options", "manager"), [((), "on"), (("--no-hybrid",), "off")])
def test_a_plan_says_how_the_engine_is_thought_to_be_started(
    options: tuple[str, ...], manager: str
) -> None:
    text = " ".join(printed("gemma-2-2b", "--tp", "2", *options).split())
    assert "Engine: --block-size 16, --kernel-block 16, --tp 2, --dtype of the model, " in text
    assert f"hybrid cache manager {manager} (--no-hybrid)." in text


def test_the_json_is_one_object_of_the_documented_shape() -> None:
    text = printed("qwen3-next-80b-a3b", "--json")
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    assert list(found)[:6] == [
        "block_bytes", "num_blocks", "fingerprint", "buffers", "groups", "views",
    ]  # fmt: skip
    assert (found["block_bytes"], found["num_blocks"]) == (13_369_344, None)
    (buffer,) = found["buffers"]
    assert (buffer["block_bytes"], buffer["slots"]) == (13_369_344, 12)
    states = found["groups"][0]
    assert (states["kind"], states["block_size"], states["used_bytes"]) == (
        "mamba", 544, 13_172_736,
    )  # fmt: skip
    assert states["layers"] == list(range(0, 48, 4))
    assert states["runs"][:2] == [[0, 1_097_728], [1_114_112, 1_097_728]]
    conv = {name: found["views"]["4.conv"][name] for name in ("buffer", "shape", "stride")}
    assert conv == {"buffer": 0, "shape": [None, 3, 8_192], "stride": [6_684_672, 8_192, 1]}
    assert (found["views"]["4.ssm"]["offset"], found["views"]["4.ssm"]["dtype"]) == (
        1_114_112 + 49_152, "bfloat16",
    )  # fmt: skip
    assert found["views"]["3"]["shape"] == [2, None, 544, 2, 256]


def test_the_json_is_the_plan_and_is_read_back() -> None:
    found = document("gpt-oss-20b", "--memory", "1GiB")
    plan = from_json(found)
    assert plan.num_blocks == 2_730
    assert plan.views["1"].shape == (2, 2_730, 16, 8, 64)


def test_a_run_in_another_buffer_than_the_first_says_which() -> None:
    found = document("gpt-oss-20b", "--layout", "lbhnc")
    assert [buffer["slots"] for buffer in found["buffers"]] == [1] * 12
    assert found["block_bytes"] == 393_216
    assert found["groups"][1]["runs"][:2] == [[0, 32_768], [0, 32_768, 1]]


@pytest.mark.parametrize("layout", ["nhd", "hnd", "blnhc", "blhnc", "bhlnc", "lbhnc"])
def test_each_layout_has_the_same_bytes(layout: str) -> None:
    found = document("gemma-3-27b", "--layout", layout)
    assert found["block_bytes"] == 1_310_720
    used = [group["used_bytes"] for group in found["groups"]]
    assert used == [1_179_648] * 4 + [1_048_576] * 2 + [1_310_720]


def test_split_alone_cuts_blocks_into_the_kernels() -> None:
    options = ("--kernel-block", "32", "--split", "interleaved")
    view = document("qwen3-next-80b-a3b", *options)["views"]["7"]
    assert view["shape"] == [2, None, 32, 2, 256]
    assert view["stride"] == [16_384, 393_216, 512, 256, 1]
    assert (view["offset"], view["kernel_blocks"]) == (65_536, 17)
    whole = document("qwen3-next-80b-a3b", "--kernel-block", "32")["views"]["7"]
    assert whole["shape"] == [2, None, 544, 2, 256]
    assert document("gpt-oss-20b", "--split", "intact") == document("gpt-oss-20b")


def test_options_of_the_engine_mean_what_they_mean_for_groups() -> None:
    path = str(FIXTURES / "qwen3-next-80b-a3b.json")
    options = ("--block-size", "128", "--kernel-block", "64", "--state-dtype", "float32")
    result = CliRunner().invoke(cli, ["model", path, "--groups", *options, "--tp", "2", "--json"])
    groups = json.loads(result.output)
    found = document("qwen3-next-80b-a3b", *options, "--tp", "2")
    assert [group["block_size"] for group in found["groups"]] == [1_152] * 4
    assert found["block_bytes"] == groups["block_bytes"]


def test_the_type_of_the_cache_halves_pages() -> None:
    view = document("gpt-oss-20b", "--dtype", "fp8")["views"]["0"]
    assert (view["dtype"], view["stride"][1]) == ("float8_e4m3fn", 393_216 // 2)


def test_pages_of_several_sizes_are_packed_if_asked_for() -> None:
    found = document("gemma-4-31b", "--pack")
    assert (found["block_bytes"], len(found["groups"])) == (1_310_720, 11)
    assert "packed side by side" in printed("gemma-4-31b", "--pack")
    assert "nothing to pack" in printed("gemma-3-27b", "--pack")


def test_the_text_shows_groups_the_block_slots_requests_and_choices() -> None:
    text = printed("gemma-3-27b", "--memory", "60GiB")
    assert text.startswith("gemma3_text: 62 layers in 7 groups, layout nhd\n")
    assert "     4  sliding_window      16       8   1,048,576  262,144  20.0     1" in text
    assert "group 4   4  12  19  26  33  40  48  55   -   -" in text
    assert "   1,024     448     587,202,560   560 MiB  64 MiB  11.4          109" in text
    assert "13 groups   7 groups  5 groups  3 groups  2 groups" in text
    assert "   1,024    520 MiB    560 MiB   520 MiB   624 MiB   832 MiB" in text
    words = flowing(text)
    assert (
        "A block takes 1,310,720 bytes (1.2 MiB) in one range: 10 slots with pages of 131,072 "
        "bytes, each page in one piece. Moving a block takes 1 copy; if each layer had memory of "
        "its own, it would take 8 to 10 copies. Of a block, groups 0-5 have 131,072 to 262,144 "
        "bytes without a layer." in words
    )
    assert "hold 49,152 blocks. Block 0 is the null block; the others hold one request of" in words
    assert "52 sliding_window, 10 full_attention. The engine takes 10 slots, so that the" in words
    assert text.splitlines()[-1].startswith("fingerprint ")


def test_padding_of_pages_and_the_copies_without_it_are_shown() -> None:
    words = flowing(printed("qwen3-next-80b-a3b", "--tp", "2"))
    assert "layout nhd, one of 2 ranks" in words
    assert "Moving a block takes 1 copy, or 1 to 12 copies (runs) without its unused" in words
    assert "groups 0-2 have 98,304 bytes in the padding of pages." in words


def test_layers_that_read_another_layers_cache_are_shown() -> None:
    text = printed("gemma-3n-e2b")
    assert "layers 20-23, 25-28 read the cache of layer 18" in text
    assert document("gemma-3n-e2b")["aliases"]["29"] == "19"


def test_buffers_of_their_own_are_shown_with_their_reason() -> None:
    words = flowing(printed("gpt-oss-20b", "--layout", "lbhnc"))
    assert "A block takes 393,216 bytes (384 KiB) in 12 buffers. Moving a block takes 12" in words
    assert (
        "Buffers 0-11, each with 1 slot and 32,768 bytes of a block: in its backend's order "
        "blocks do not come first." in words
    )


def test_a_model_of_one_group_has_no_choice_of_slots() -> None:
    text = printed("llama-3.1-8b")
    assert "Sets of equal layers" not in text
    assert "32 layers in 1 group, " in text


def test_a_warning_of_the_plan_is_shown() -> None:
    planned = plan_config(read_config(FIXTURES / "gpt-oss-20b.json"), EngineOptions())
    strange = LayoutLayer(name="strange", page=UnknownPage(type_name="OddSpec", page_bytes=512))
    groups = (
        *planned.groups,
        LayoutGroup(kind=SpecKind.UNKNOWN, block_size=16, layers=(strange,)),
    )
    shown = shown_at(80, replace(planned, groups=groups, plan=plan_memory(groups)))
    assert "warning: layer strange keeps a OddSpec, which is not known: every slot" in shown
    assert "Buffer 12 with 1 slot and 512 bytes of a block: layer strange keeps" in shown


def shown_at(columns: int, planned: PlannedModel) -> str:
    out = StringIO()
    show_plan(Console(file=out, width=columns), planned)
    return flowing(out.getvalue())


def test_any_request_fits_where_no_layer_keeps_all_tokens() -> None:
    planned = plan_config(
        read_config(FIXTURES / "gpt-oss-20b.json"), EngineOptions(), memory_bytes=1 << 30
    )
    windows = planned.groups[:1]
    plan = plan_memory(windows, memory_bytes=1 << 30)
    shown = shown_at(80, replace(planned, groups=windows, plan=plan))
    assert "the others hold a request of any length." in shown


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize(
    "name", ["gemma-3-27b", "kimi-k3", "llama-4-scout-17b-16e", "zamba2-2.7b"]
)
def test_the_text_fits_the_terminal(name: str, columns: int) -> None:
    text = printed(name, "--memory", "900GiB", columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


def test_a_table_that_a_terminal_is_too_narrow_for_is_not_cut() -> None:
    text = printed("nemotron-h-56b", columns=40)
    used = document("nemotron-h-56b")["groups"][0]["used_bytes"]
    assert re.search(rf"    0  mamba  .* {used:,} ", text)
    assert "…" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("no-such-model",),
            "cannot be read: No such file or directory; give the path of a model",
        ),
        (
            ("deepseek-v3.2",),
            "a config does not say how an engine stores them, so give the layers",
        ),
        (("deepseek-v4-pro",), "keep compressed entries, in blocks that pack pages of several"),
        (("minimax-m3", "--pack"), "keep index keys as well"),
        (("gpt-oss-20b", "--memory", "1KiB"), "1,024 bytes hold 0 blocks of 393,216; at least 2"),
        (("gpt-oss-20b", "--memory", "much"), "'much' is not a size of memory; expected a number"),
        (("gpt-oss-20b", "--block-size", "16", "--kernel-block", "32"), "expected a multiple of"),
        (("gpt-oss-20b", "--dtype", "int3"), "cache_dtype = 'int3'; expected one of float32"),
        (("gpt-oss-20b", "--tp", "3"), "cannot be divided evenly among 3 tensor-parallel ranks"),
        (("gpt-oss-20b", "--svg", "no/such/folder.svg"), "No such file or directory; give a file"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    name, *rest = arguments
    assert message in refusal(str(FIXTURES / f"{name}.json"), *rest)


def test_a_padded_page_is_not_split(tmp_path: Path) -> None:
    config = json.loads((FIXTURES / "gemma-4-31b.json").read_text())
    config.get("text_config", config)["global_head_dim"] = 384
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    message = refusal(str(path), "--block-size", "32", "--split", "intact")
    assert (
        "a padded page cannot be split into kernel blocks; use blocks of the kernel's" in message
    )
