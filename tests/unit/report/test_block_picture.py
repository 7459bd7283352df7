"""The picture of a block: every byte in one cell, what lies where, and stable bytes."""

import shutil
import subprocess
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from kvbraid.layout import (
    Buffer,
    Chunk,
    Geometry,
    Layout,
    LayoutGroup,
    LayoutLayer,
    MemoryPlan,
    PlannedGroup,
    PlanOptions,
    Reference,
    Split,
    View,
    plan_config,
    plan_memory,
)
from kvbraid.models import EngineOptions, Heads, Page, read_config
from kvbraid.report.block_picture import picture
from kvbraid.report.block_rows import BlockRow, block_rows
from kvbraid.spec import SpecKind

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "models"
SVG: Final = "{http://www.w3.org/2000/svg}"


def planned(
    name: str,
    *,
    ranks: int = 1,
    layout: Layout = Layout.NHD,
    split: Split | None = None,
    packed: bool = False,
) -> MemoryPlan:
    options = EngineOptions(num_ranks=ranks, kernel_block_size=32 if split else 16, packed=packed)
    config = read_config(FIXTURES / f"{name}.json")
    return plan_config(config, options, layout=layout, split=split).plan


def cells(row: BlockRow) -> list[tuple[int, int, str]]:
    return [(cell.start, cell.length, cell.name) for cell in row.cells]


@pytest.mark.parametrize(
    "plan",
    [
        planned("gemma-3-27b"),
        planned("gemma-3-27b", layout=Layout.HND),
        planned("qwen3-next-80b-a3b", split=Split.INTERLEAVED),
        planned("qwen3-next-80b-a3b", split=Split.INTACT),
        planned("gemma-4-31b", packed=True),
        planned("gemma-3-27b", layout=Layout.LBHNC),
        planned("falcon-h1-0.5b"),
    ],
    ids=["pages", "heads", "interleaved", "intact", "packed", "apart", "two kinds"],
)
def test_the_cells_of_a_group_are_all_bytes_of_its_block_and_those_of_layers_its_runs(
    plan: MemoryPlan,
) -> None:
    for group in plan.groups:
        rows = block_rows(plan, group)
        total = sum(row.length * (1 + row.num_left_out) for row in rows)
        assert total == plan.block_bytes
        used = 0
        for row in rows:
            ends = [start + length for start, length, _ in cells(row)]
            assert [0, *ends] == [*(start for start, _, _ in cells(row)), row.length]
            mine = sum(cell.length for cell in row.cells if cell.layer is not None)
            used += mine * (1 + row.num_left_out)
        assert used == group.used_bytes


def test_a_row_is_a_slot_where_pages_are_in_one_piece() -> None:
    plan = planned("qwen3-next-80b-a3b")
    first, *_, last = block_rows(plan, plan.groups[0])
    assert (first.label, last.label) == ("slot 0", "slot 11")
    assert last.offset == 11 * 1_114_112
    assert cells(last) == [
        (0, 49_152, "44.conv"), (49_152, 1_048_576, "44.ssm"), (1_097_728, 16_384, "padding"),
    ]  # fmt: skip


def test_an_empty_slot_has_no_layer() -> None:
    plan = planned("gemma-3-27b")
    assert cells(block_rows(plan, plan.groups[0])[9]) == [(0, 131_072, "no layer")]


def test_a_row_is_a_head_of_all_layers_where_heads_come_first() -> None:
    plan = planned("gpt-oss-20b", ranks=2, layout=Layout.HND)
    rows = block_rows(plan, plan.groups[0])
    assert [row.label for row in rows] == ["head 0", "head 1", "head 2", "head 3"]
    assert [row.offset for row in rows] == [0, 49_152, 98_304, 147_456]
    assert cells(rows[2])[5] == (5 * 4_096, 4_096, "10")


def test_a_group_of_fewer_layers_has_rows_of_its_own_length_and_the_rest() -> None:
    plan = planned("gemma-3-27b", layout=Layout.HND)
    rows = block_rows(plan, plan.groups[0])
    assert [row.label for row in rows] == ["head 0", "head 1", "head 2", "head 15", "the rest"]
    assert [row.length for row in rows] == [73_728] * 4 + [131_072]
    assert cells(rows[-1]) == [(0, 131_072, "no layer")]


def test_a_row_is_a_kernel_block_of_all_layers_where_they_are_interleaved() -> None:
    plan = planned("qwen3-next-80b-a3b", split=Split.INTERLEAVED)
    rows = block_rows(plan, plan.groups[3])
    assert [row.label for row in rows] == [
        "kernel block 0", "kernel block 1", "kernel block 2", "kernel block 16",
    ]  # fmt: skip
    assert [row.num_left_out for row in rows] == [0, 0, 13, 0]
    assert cells(rows[0])[1] == (65_536, 65_536, "7")


def test_kernel_blocks_with_heads_before_layers_are_rows_per_head() -> None:
    config = read_config(FIXTURES / "gpt-oss-20b.json")
    options = EngineOptions(block_size=64, num_ranks=4)
    plan = plan_config(config, options, layout=Layout.HND, split=Split.INTERLEAVED).plan
    rows = block_rows(plan, plan.groups[0])
    assert [row.label for row in rows] == [
        f"kernel block {block}, head {head}" for block in range(4) for head in range(2)
    ]
    assert [cell.name for cell in rows[5].cells] == [str(number) for number in range(0, 24, 2)]


def test_a_buffer_without_a_layer_of_the_group_is_a_row_of_no_layer() -> None:
    plan = planned("gemma-3-27b", layout=Layout.LBHNC)
    last = block_rows(plan, plan.groups[0])[-1]
    assert (last.label, cells(last)) == ("buffer 9", [(0, 131_072, "no layer")])


def test_memory_that_an_engine_laid_out_is_drawn_in_parts() -> None:
    full = Chunk(name="f", offset=0, length=64, count=2, stride=256)
    window = Chunk(name="w", offset=64, length=64, count=4, stride=128)
    kinds = {full: SpecKind.FULL_ATTENTION, window: SpecKind.SLIDING_WINDOW}
    view = View(buffer=0, shape=(None, 64), stride=(512, 1), offset=0, dtype="uint8")
    plan = MemoryPlan(
        buffers=(
            Buffer(block_bytes=512, slots=2, axes=("blocks", "bytes"), shape=(None, 512), why=""),
        ),
        groups=tuple(
            PlannedGroup(
                kind=kind,
                block_size=16,
                layers=(chunk.name,),
                references=(Reference(buffer=0, block_stride=512, chunks=(chunk,)),),
            )
            for chunk, kind in kinds.items()
        ),
        views={"f": view, "w": view},
    )
    labels = [[row.label for row in block_rows(plan, group)] for group in plan.groups]
    assert labels == [[f"part {index}" for index in range(count)] for count in (2, 4)]


def test_pages_of_several_sizes_are_rows_of_several_lengths() -> None:
    plan = planned("gemma-4-31b", packed=True)
    assert [row.length for row in block_rows(plan, plan.groups[0])] == [262_144] * 5
    assert [row.length for row in block_rows(plan, plan.groups[10])] == [131_072] * 10


def test_rows_of_several_buffers_name_theirs() -> None:
    plan = planned("gpt-oss-20b", layout=Layout.LBHNC)
    labels = [row.label for row in block_rows(plan, plan.groups[1])]
    assert labels == [f"buffer {number}" for number in range(12)]


def test_what_alignment_adds_is_a_row_of_its_own() -> None:
    config = read_config(FIXTURES / "gpt-oss-20b.json")
    groups = plan_config(config, EngineOptions()).groups
    plan = plan_memory(groups, options=PlanOptions(alignment=1 << 20))
    rest = block_rows(plan, plan.groups[0])[-1]
    assert (rest.label, rest.length) == ("the rest", (1 << 20) - 393_216)


def test_a_layer_whose_blocks_are_not_first_is_drawn_piece_by_piece() -> None:
    heads = Heads(num=2, key_dim=64, value_dim=64, dtype="bfloat16")
    page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
    geometry = Geometry(shape=(2, None, 16, 2, 64), dtype="bfloat16", order=(0, 1, 2, 3, 4))
    layer = LayoutLayer(name="model.layers.0", page=page, geometry=geometry)
    group = LayoutGroup(kind=page.kind, block_size=16, layers=(layer,))
    plan = plan_memory([group], num_blocks=4)
    rows = block_rows(plan, plan.groups[0])
    assert [(row.label, row.offset) for row in rows] == [("piece 0", 0), ("piece 1", 16_384)]
    assert "layers model.layers.0 to model.layers.0" in picture(plan, "one layer")


def test_the_picture_has_a_panel_per_group_a_scale_and_a_legend() -> None:
    plan = planned("gemma-3-27b")
    root = ElementTree.fromstring(picture(plan, "gemma"))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert texts[0] == "gemma"
    assert [text for text in texts if text.startswith("group ")] == [
        f"group {index}: {group.kind.value}, blocks of 16 tokens"
        for index, group in enumerate(plan.groups)
    ]
    assert texts.count("128 KiB") == 7
    assert texts[-2:] == ["layers 0 to 61", "used by no layer of the group"]
    assert texts.count("no layer") == 4 + 2 * 2


def test_a_layer_has_one_colour_and_each_layer_another() -> None:
    root = ElementTree.fromstring(picture(planned("gpt-oss-20b", layout=Layout.HND), "colours"))
    colours: dict[str, set[str]] = {}
    for box in root.iter(f"{SVG}rect"):
        title = box.find(f"{SVG}title")
        if title is not None:
            name = (title.text or "").partition(":")[0]
            colours.setdefault(name, set()).add(box.get("fill", ""))
    assert sorted(colours, key=int) == [str(number) for number in range(24)]
    assert len({colour for mine in colours.values() for colour in mine}) == 24


def test_the_picture_stays_inside_its_frame_and_says_what_it_leaves_out() -> None:
    text = picture(planned("qwen3-next-80b-a3b", split=Split.INTERLEAVED), "frame")
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for box in list(root.iter(f"{SVG}rect"))[1:]:
        x, y, wide, high = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
        assert min(x, y) >= 0
        assert x + wide <= width
        assert y + high <= height
    assert "... 13 more like these ..." in text
    assert "Of many rows alike, the first three and the last are drawn." in text


def test_names_are_escaped_and_left_out_where_they_do_not_fit() -> None:
    text = picture(planned("llama-3.1-8b", layout=Layout.HND), "a < b & c")
    assert "a &lt; b &amp; c" in text
    root = ElementTree.fromstring(picture(planned("deepseek-v3"), "names"))
    assert "60" in [element.text for element in root.iter(f"{SVG}text")]
    root = ElementTree.fromstring(picture(planned("minimax-m2", layout=Layout.HND), "narrow"))
    assert "60" not in [element.text for element in root.iter(f"{SVG}text")]


def test_a_colour_needs_no_browser() -> None:
    """Others know no variables, and may take what is for dark ground as it is or not at all."""
    style = picture(planned("gpt-oss-20b"), "t").partition("<style>")[2].partition("</style>")[0]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    assert "var(" not in style
    assert ".ground { fill: #ffffff; }" in light
    assert ".ground { fill: #0d1117; }" in dark


def test_outside_a_browser_the_ground_is_white_and_little_is_black(tmp_path: Path) -> None:
    renderer = shutil.which("rsvg-convert")
    if renderer is None:
        pytest.skip("needs rsvg-convert")
    from matplotlib.image import imread

    drawn = tmp_path / "block.svg"
    drawn.write_text(picture(planned("qwen3-next-80b-a3b"), "t"), encoding="utf-8")
    subprocess.run([renderer, drawn, "-o", tmp_path / "block.png"], check=True)
    pixels = imread(tmp_path / "block.png")[..., :3]
    assert (pixels[0, 0] == 1).all()
    assert (pixels < 0.1).all(axis=-1).mean() < 0.02
    assert (pixels == 1).all(axis=-1).mean() > 0.3
