"""`kvbraid cache simulate` as people and programs see it."""

import json
import random
import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.report.plot import Curves, Point, draw, figure
from kvbraid.report.simulation import model_label
from kvbraid.sim.traces.memory_size import parse_size, show_size
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.policies import CACHE_POLICIES

MODEL = "gpt-oss-120b"
BLOCK_BYTES = simulated_model(MODEL).block_bytes


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A prompt of 1 025 tokens, one that shares its first 512, and the first again."""
    rows = [(1_025, [1, 2, 3]), (1_025, [1, 4, 5]), (1_025, [1, 2, 3])]
    lines = [json.dumps({"input_length": n, "hash_ids": ids}) for n, ids in rows]
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines))
    return path


def run(*arguments: str) -> str:
    arguments = ("cache", "simulate", *arguments)
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_one_line_per_memory_and_policy(trace: Path) -> None:
    sizes = ["1GiB", "100MiB"]
    memories = [argument for size in sizes for argument in ("--memory", size)]
    lines = run(str(trace), "--model", MODEL, *memories, "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    cells = [(row["memory_bytes"], row["policy"]) for row in rows]
    assert cells == [(m, p) for m in (100 << 20, 1 << 30) for p in CACHE_POLICIES]
    hits = {row["policy"]: row["hit_tokens"] for row in rows if row["memory_bytes"] == 1 << 30}
    # Without an interval the second prompt finds no window where it branches off; 1 024 is none.
    assert hits == {
        "dense": 512 + 1_024, "interval-0": 1_024, "interval-1k": 1_024, "interval-8k": 1_024,
        "value": 512 + 1_024, "value-flat": 512 + 1_024,
    }  # fmt: skip
    assert rows[-1]["prompt_tokens"] == 3 * 1_025
    # 64 blocks of the first prompt, 32 more of the second, and a window of 8 for each of the two.
    assert rows[-1]["working_set_bytes"] == (64 + 32 + 2 * 8) * BLOCK_BYTES


def test_the_table_has_a_row_per_policy_and_a_column_per_memory(trace: Path) -> None:
    output = run(
        str(trace), "--model", MODEL, "--memory", "1GiB", "--memory", "80MiB",
        "--policy", "interval-0", "--policy", "dense", "--requests", "2",
    )  # fmt: skip
    title, header, _, interval, dense, _, blocks, left_out, *about = [
        line.split() for line in output.splitlines()
    ]
    assert title == ["token", "hit", "rate", "(%)"]
    assert header == ["policy", "80", "MiB", "1", "GiB"]
    assert (interval[0], interval[2]) == ("interval-0", "0.00")
    assert (dense[0], dense[2]) == ("dense", "24.98")
    assert blocks == ["blocks", "of", "the", "pool", "142", "1,820"]
    assert left_out == ["requests", "left", "out", "0", "0"]
    assert " ".join(about[0]) == "small: 2 requests in 2 conversations"


def test_one_request_is_one_request_in_one_conversation(trace: Path) -> None:
    output = run(str(trace), "--model", MODEL, "--memory", "1GiB", "--requests", "1")
    assert "small: 1 request in 1 conversation\n" in output


def test_policies_that_are_one_and_the_same_for_a_model_share_a_row(trace: Path) -> None:
    arguments = (str(trace), "--model", "llama-3.1-8b", "--memory", "4GiB")
    assert "dense, interval-0, interval-1k, interval-8k  49.95\n" in run(*arguments)
    rows = [json.loads(line) for line in run(*arguments, "--json").splitlines()]
    assert [row["policy"] for row in rows] == list(CACHE_POLICIES)


def test_a_model_is_called_by_what_its_path_tells_best(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "other.json").write_text("{}")
    names = (MODEL, "llama-3.1-8b", folder, folder / "config.json", folder / "other.json")
    labels = (MODEL, "llama-3.1-8b", "Llama-3.1-8B", "Llama-3.1-8B", "other")
    assert [model_label(str(name)) for name in names] == list(labels)


def test_own_tokens_are_simulated_on_several_ranks(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(list(range(n))) for n in (40, 40, 72)))
    arguments = (str(path), "--model", MODEL, "--memory", "100MiB", "--policy", "dense")
    alone, shared = (json.loads(run(*arguments, *more, "--json")) for more in ((), ("--tp", "4")))
    # Two blocks of the first, which the third has too; the rest of a prompt is new.
    assert alone["hit_tokens"] == shared["hit_tokens"] == 64
    assert (alone["num_ranks"], alone["num_blocks"]) == (1, (100 << 20) // BLOCK_BYTES)
    assert (shared["num_ranks"], shared["num_blocks"]) == (4, (100 << 20) // (BLOCK_BYTES // 4))
    table = run(*arguments, "--tp", "4")
    assert f"{MODEL}, on each of 4 ranks: hits end every 16 tokens; blocks of 144 KiB" in table
    assert "own: 3 requests in 1 conversation" in table


def test_a_number_without_a_unit_is_refused_with_the_unit_that_was_meant(trace: Path) -> None:
    arguments = ["cache", "simulate", str(trace), "--model", MODEL, "--memory", "40"]
    result = CliRunner().invoke(cli, arguments)
    assert str(result.exception) == ("'40' has no unit; write 40GiB or 40GB (40B for bytes)")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Thirty prefixes that come back, and endings that do not."""
    source = random.Random("a")
    prefixes = [source.choices(range(1 << 16), k=96) for _ in range(30)]
    ends = [source.choices(range(1 << 16), k=64) for _ in range(150)]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(source.choice(prefixes) + end) for end in ends))
    return path


CHOOSING = ("--model", MODEL, "--memory", "100MiB", "--memory", "1GiB")


def test_json_says_which_policy_was_chosen_at_the_end_and_what_it_gained(own: Path) -> None:
    lines = run(str(own), *CHOOSING, "--json").splitlines()
    choices = [(row["policy"], row["policy_choice"]) for row in map(json.loads, lines)]
    by_value = [choice for policy, choice in choices if policy.startswith("value")]
    assert [choice for _, choice in choices if choice not in by_value] == [None] * 8
    assert [choice["policy"] for choice in by_value] == ["value-8192"] * 4
    assert [choice["num_changes"] for choice in by_value] == [2, 2, 0, 0]
    for choice in by_value:
        assert set(choice["gains"]) == {
            "dense-8192", "interval-0", "interval-1024", "interval-8192",
        }  # fmt: skip
    assert all(0 < choice["since"] < 150 for choice in by_value[:2])
    assert all(min(choice["gains"].values()) > 0 for choice in by_value[:2])
    # Nothing is evicted there: it is the first guess.
    assert all(choice["since"] == 0 for choice in by_value[2:])
    assert all(set(choice["gains"].values()) == {0} for choice in by_value[2:])


def test_the_table_says_what_was_chosen_and_since_when(own: Path) -> None:
    rows = run(str(own), *CHOOSING, "--policy", "dense", "--policy", "value").splitlines()
    table = [row.split() for row in rows[rows.index("") + 4 :]]
    (policy, *memory, chosen, since, rival, ahead), later, *_ = table
    assert (policy, memory, chosen, rival) == ("value", ["100", "MiB"], "value-8192", "dense-8192")
    assert 0 < int(since) < 150
    assert float(ahead) > 0
    assert later[:4] == ["value", "1", "GiB", "value-8192"]
    assert later[4:] == ["start", "dense-8192", "+0.00"]


def test_of_policies_that_choose_nothing_nothing_is_said(own: Path) -> None:
    assert "evicts" not in run(str(own), *CHOOSING, "--policy", "dense", "--policy", "interval-0")


def test_the_plot_names_what_was_chosen_at_each_point() -> None:
    chosen = [Point(1.0, 0.5, "value"), Point(2.0, 1.0, "interval-1024")]
    curves = {"dense": [Point(1.0, 0.5), Point(2.0, 1.0)], "value": chosen, "value-flat": chosen}
    (axes,) = figure({"t": curves}).axes
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [
        ("value", 1.0), ("interval-1024", 2.0),
    ] * 2  # fmt: skip
    _, value, flat = axes.get_lines()
    assert [text.get_color() for text in axes.texts] == [
        line.get_color() for line in (value, value, flat, flat)
    ]
    assert len({text.xy[1] for text in axes.texts}) == 2, "two lines have their names in two rows"


def test_the_plot_has_its_choices_inside_the_frame_above_all_lines_and_one_legend() -> None:
    chosen = [Point(float(2**i), 0.25 * i, "interval-8192") for i in range(1, 5)]
    picture = figure({"t": {"dense": chosen, "value": chosen}, "u": {"value": chosen}}, columns=2)
    picture.canvas.draw()
    for axes in picture.axes:
        frame = axes.get_window_extent()
        highest = axes.transData.transform((2.0, 100.0))[1]
        for text in axes.texts:
            extent = text.get_window_extent()
            assert frame.x0 < extent.x0 < extent.x1 < frame.x1
            assert highest < extent.y0 < extent.y1 < frame.y1
        assert axes.get_legend() is None
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["dense", "value"]


def test_the_plot_of_one_panel_is_1200_pixels_wide_with_the_sizes_that_the_table_has(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Mapping[str, Curves], dict[str, Any]]] = []

    def noted(path: Path, panels: Mapping[str, Curves], **how: Any) -> None:  # noqa: ANN401
        drawn.append((panels, how))
        draw(path, panels, **how)

    monkeypatch.setattr("kvbraid.report.simulation.draw", noted)
    picture = tmp_path / "out.png"
    memories = ("--memory", "25MiB", "--memory", "1GiB")
    run(str(trace), "--model", MODEL, *memories, "--plot", str(picture))
    assert int.from_bytes(picture.read_bytes()[16:20], "big") == 1_200
    ((panels, how),) = drawn
    (axes,) = figure(panels, **how).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["25 MiB", "1 GiB"]


def test_the_plot_is_written(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    memories = ("--memory", "200MiB", "--memory", "1GiB")
    run(str(trace), "--model", MODEL, *memories, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_plot_names_every_memory_and_hides_no_line_and_no_point() -> None:
    same = [Point(400 / 1024, 0.25), Point(20.0, 0.5), Point(40.0, 0.75), Point(100.0, 1.0)]
    curves = {"dense": same, "value": same, "value-flat": same}
    (axes,) = figure({"t": curves}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.391", "20", "40", "100"]
    assert len(axes.get_xticks(minor=True)) == 0
    lines = axes.get_lines()
    assert not any(line.get_clip_on() for line in lines), "the frame cuts no marker"
    assert axes.get_ylim()[1] > 103, "and stands above the highest"
    for below, above in pairwise(lines):
        assert below.get_linewidth() > above.get_linewidth()
        assert below.get_markersize() > above.get_markersize()
    assert {line.get_markerfacecolor() for line in lines} == {"none"}


def test_without_matplotlib_a_plot_is_refused_before_anything_runs(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = ["cache", "simulate", str(trace), "--model", MODEL, "--memory", "1GiB"]
    result = CliRunner().invoke(cli, [*arguments, "--plot", str(tmp_path / "out.png")])
    assert isinstance(result.exception, InvalidValueError)
    assert str(result.exception) == (
        "a plot needs matplotlib, which is not installed: in a checkout of kvbraid, "
        "pip install '.[plot]'"
    )
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [("absent/out.png", "there is no folder .*absent; make it"), ("out.pgn", "name that ends in")],
)
def test_a_plot_that_could_not_be_written_is_refused_before_anything_runs(
    trace: Path, tmp_path: Path, name: str, why: str
) -> None:
    arguments = ["cache", "simulate", str(trace), "--model", MODEL, "--memory", "1GiB"]
    result = CliRunner().invoke(cli, [*arguments, "--plot", str(tmp_path / name)])
    assert re.search(f"the plot cannot be written: .*{why}", str(result.exception))
    assert result.stdout == ""


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"out\.png: the plot cannot be written"):
        draw(tmp_path / "absent" / "out.png", {"t": {"dense": [Point(1.0, 0.5)]}})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--model", "gpt-2", "--memory", "1GiB"), "model 'gpt-2' is not known"),
        (("--model", MODEL, "--memory", "1Gib"), "'1Gib' is not a size of memory"),
        (("--model", MODEL, "--memory", "1MiB"), "a pool of 1 block, each of"),
        (("--model", MODEL, "--memory", "1GiB", "--policy", "x"), "policy 'x' is not known"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    trace: Path, arguments: tuple[str, ...], reason: str
) -> None:
    result = CliRunner().invoke(cli, ["cache", "simulate", str(trace), *arguments])
    assert isinstance(result.exception, KvbraidError)
    assert reason in str(result.exception)


@pytest.mark.parametrize(
    ("text", "num_bytes", "shown"),
    [
        ("40GiB", 40 << 30, "40 GiB"),
        ("1.5 MiB", 3 << 19, "1.5 MiB"),
        ("80GB", 80 * 10**9, "74.5 GiB"),
        ("12B", 12, "12 B"),
        ("1048576", 1 << 20, "1 MiB"),
        ("2 PiB", 2 << 50, "2 PiB"),
    ],
)
def test_sizes_are_read_and_shown(text: str, num_bytes: int, shown: str) -> None:
    assert parse_size(text) == num_bytes
    assert show_size(num_bytes) == shown
