"""A block as a picture: a panel per group, a row per slot, a colour per layer, as SVG.

    group 0: full_attention ...               group 1: sliding_window ...
    slot 0        0  [ 5            ]         slot 0        0  [ 0            ]
    slot 1   65,536  [ 11           ]         slot 1   65,536  [ 7            ]
                     0     32 KiB                              0     32 KiB

Invariant: equal plans give equal bytes. All panels have one scale. Colours are in the order of the
model's layers, and can be told apart on light and on dark ground; what no layer of the group uses
is hatched. A name that does not fit into its cell is left out of it, never cut: a browser shows
it, with the bytes, when one points at the cell. Written with the standard library.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from kvbraid.errors import InvalidValueError
from kvbraid.layout.plan import MemoryPlan, PlannedGroup
from kvbraid.report.block_rows import BlockCell, BlockRow, block_rows

_WIDTH: Final = 1000
_MARGIN: Final = 20
_GAP: Final = 30  # Between panels.
_CHARACTER: Final = 0.6  # Width of a character, at most, in font sizes.
_TITLE: Final = 44  # Height of the two lines above a panel's rows.
_AXIS: Final = 24
_LEGEND: Final = 26
_MANY_ROWS: Final = 24
_NUM_TICKS: Final = 6

_RAMP: Final = ("7fa8e0", "5fc0bf", "8cc97f", "e3c75c", "f0a05a", "e8796b")
"""From the first layer to the last: light enough for dark text, dark enough for white ground."""
_STYLE: Final = """
svg { font-family: system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.ground { fill: #ffffff; }
text { fill: #1f2328; font-size: 12px; }
.title { font-size: 16px; font-weight: 600; }
.panel { font-weight: 600; }
.muted, .offset, .tick { fill: #59636e; }
.offset, .tick { font-size: 10px; }
.unused { fill: url(#hatch); stroke: #c4ccd4; stroke-width: 1; }
.hatching { stroke: #59636e; stroke-width: 1.2; }
.axis { stroke: #c4ccd4; stroke-width: 1; }
.name { fill: #16181d; font-size: 10px; text-anchor: middle; }
.none { fill: #59636e; stroke: #ffffff; stroke-width: 5; paint-order: stroke;
        font-size: 10px; text-anchor: middle; }
.first { fill-opacity: 0.55; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.name.first { fill: #1f2328; fill-opacity: 1; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; }
  text, .name.first { fill: #e6edf3; }
  .muted, .offset, .tick, .none { fill: #9198a1; }
  .hatching { stroke: #9198a1; }
  .unused, .axis { stroke: #3d444d; }
  .none { stroke: #0d1117; }
}
"""
"""Plain colours: only browsers know variables, and only they need the ones for dark ground."""


def write_picture(path: Path, plan: MemoryPlan, title: str) -> None:
    """Draw one block of each group into a file.

    Raises:
        InvalidValueError: The file cannot be written.
    """
    try:
        path.write_text(picture(plan, title), encoding="utf-8")
    except OSError as error:
        raise InvalidValueError(
            f"{path}: the picture cannot be written: {error.strerror}; give a file in a folder "
            "that exists and can be written to"
        ) from None


def picture(plan: MemoryPlan, title: str) -> str:
    """Return the picture as text; `title` is its first line."""
    rows = [block_rows(plan, group) for group in plan.groups]
    columns = 1 if len(rows) == 1 else 2
    width = (_WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) / columns
    drawing = _Drawing.of(plan, rows, width)
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    SubElement(svg, "title").text = title
    SubElement(svg, "style").text = _STYLE
    _patterns(SubElement(svg, "defs"))
    ground = SubElement(svg, "rect", {"class": "ground", "width": "100%", "height": "100%"})
    y = _head(svg, plan, rows, title)
    for first in range(0, len(rows), columns):
        bottoms = [
            drawing.panel(svg, index, _MARGIN + column * (width + _GAP), y)
            for column, index in enumerate(range(first, min(first + columns, len(rows))))
        ]
        y = max(bottoms) + 12
    drawing.legend(svg, y)
    height = y + _LEGEND
    svg.set("viewBox", f"0 0 {_WIDTH} {_number(height)}")
    svg.set("width", str(_WIDTH))
    ground.set("height", _number(height))
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """What all panels have in common: colours, the scale, and the room for labels."""

    plan: MemoryPlan
    rows: Sequence[Sequence[BlockRow]]
    colours: Mapping[str, str]
    names: Sequence[str]
    width: float
    labels: float
    offsets: float
    per_byte: float

    @classmethod
    def of(cls, plan: MemoryPlan, rows: Sequence[Sequence[BlockRow]], width: float) -> "_Drawing":
        every = [row for mine in rows for row in mine]
        names = _in_model_order(plan.groups)
        labels = max(len(row.label) for row in every) * 12 * _CHARACTER
        offsets = labels + max(len(f"{row.offset:,}") for row in every) * 10 * _CHARACTER + 6
        return cls(
            plan=plan,
            rows=rows,
            colours=dict(zip(names, _ramp(len(names)), strict=True)),
            names=names,
            width=width,
            labels=labels,
            offsets=offsets,
            per_byte=(width - offsets - 8) / max(row.length for row in every),
        )

    def panel(self, svg: Element, index: int, x: float, y: float) -> float:
        """Draw one group's block and return where the panel ends."""
        group, rows = self.plan.groups[index], self.rows[index]
        about = f"group {index}: {group.kind.value}, blocks of {group.block_size:,} tokens"
        runs = f"{group.num_runs:,} {'run' if group.num_runs == 1 else 'runs'}"
        used = (
            f"{len(group.layers)} layers use {group.used_bytes:,} of {self.plan.block_bytes:,} "
            f"bytes, in {runs}"
        )
        _text(svg, x, y + 14, about, "panel")
        _text(svg, x, y + 31, used, "muted")
        y += _TITLE
        height = 12 if len(rows) > _MANY_ROWS else 18
        for row in rows:
            self._row(svg, row, x, y, height)
            y += height
            if row.num_left_out:
                note = f"... {row.num_left_out} more like these ..."
                _text(svg, x + self.offsets + 8, y + height - 5, note, "muted")
                y += height
        self._axis(svg, x + self.offsets + 8, y, max(row.length for row in rows))
        return y + _AXIS

    def _row(self, svg: Element, row: BlockRow, x: float, y: float, height: int) -> None:
        baseline = y + height / 2 + 4
        _text(svg, x, baseline, row.label, "muted")
        _text(svg, x + self.offsets, baseline, f"{row.offset:,}", "offset end")
        left = x + self.offsets + 8
        first = _first_parts(row.cells)
        for cell in row.cells:
            width = cell.length * self.per_byte
            place = (left + cell.start * self.per_byte, y + 1, max(width - 1, 0.5), height - 2)
            style = "first" if cell.name in first else ""
            fill = {} if cell.layer is None else {"fill": self.colours[cell.layer]}
            box = _box(svg, place, fill | {"class": style if fill else "unused"})
            begin, end = row.offset + cell.start, row.offset + cell.start + cell.length
            about = f"{cell.name}: bytes {begin:,} to {end - 1:,} ({cell.length:,})"
            SubElement(box, "title").text = about
            if width >= len(cell.name) * 10 * _CHARACTER + 4:
                style = f"name {style}".rstrip() if fill else "none"
                _text(svg, place[0] + width / 2, baseline - 0.5, cell.name, style)

    def _axis(self, svg: Element, x: float, y: float, length: int) -> None:
        ends = {"x1": x, "x2": x + length * self.per_byte, "y1": y + 3, "y2": y + 3}
        SubElement(svg, "line", {"class": "axis"} | {k: _number(v) for k, v in ends.items()})
        for tick in _ticks(length):
            at = x + tick * self.per_byte
            mark = {"x1": at, "x2": at, "y1": y + 3, "y2": y + 7}
            SubElement(svg, "line", {"class": "axis"} | {k: _number(v) for k, v in mark.items()})
            anchor = "end" if at > x + self.width - self.offsets - 30 else "middle"
            _text(svg, at, y + 17, _size(tick), f"tick {anchor}")

    def legend(self, svg: Element, y: float) -> None:
        """Draw what colours and hatching mean."""
        x: float = _MARGIN
        _box(svg, (x, y, 120, 14), {"fill": "url(#ramp)"})
        text = f"layers {self.names[0]} to {self.names[-1]}"
        _text(svg, x + 128, y + 11, text, "muted")
        x += 128 + len(text) * 12 * _CHARACTER + 20
        rows = [row for mine in self.rows for row in mine]
        if any(cell.layer is None for row in rows for cell in row.cells):
            text = "used by no layer of the group"
            _box(svg, (x, y, 24, 14), {"class": "unused"})
            _text(svg, x + 32, y + 11, text, "muted")
            x += 32 + len(text) * 12 * _CHARACTER + 20
        if any(_first_parts(row.cells) for row in rows):
            _box(svg, (x, y, 24, 14), {"fill": self.colours[self.names[0]], "class": "first"})
            _text(svg, x + 32, y + 11, "fainter: the first tensor of a layer's state", "muted")


def _head(svg: Element, plan: MemoryPlan, rows: Sequence[Sequence[BlockRow]], title: str) -> float:
    """Draw the title and what holds for the whole picture; return where it ends."""
    _text(svg, _MARGIN, 30, title, "title")
    of = " of one buffer" if len(plan.buffers) > 1 else ""
    lines = [
        f"One block: {plan.block_bytes:,} bytes"
        + (f", in {len(plan.buffers)} buffers." if len(plan.buffers) > 1 else ", one range.")
        + " It belongs to one group at a time: all panels show the same bytes.",
        f"Rows{of} follow each other in memory; on their left, the offset of each in bytes.",
    ]
    if len(plan.groups) == 1:
        lines[0] = lines[0].partition(" It belongs")[0]
    if any(row.num_left_out for mine in rows for row in mine):
        lines[1] += " Of many rows alike, the first three and the last are drawn."
    for index, line in enumerate(lines):
        _text(svg, _MARGIN, 52 + 17 * index, line, "muted")
    return 52 + 17 * len(lines) + 4


def _patterns(defs: Element) -> None:
    pattern = SubElement(
        defs,
        "pattern",
        {
            "id": "hatch",
            "width": "5",
            "height": "5",
            "patternUnits": "userSpaceOnUse",
            "patternTransform": "rotate(45)",
        },
    )
    line = {"class": "hatching", "x1": "0", "y1": "0", "x2": "0", "y2": "5"}
    SubElement(pattern, "line", line)
    ramp = SubElement(defs, "linearGradient", {"id": "ramp"})
    for index, colour in enumerate(_RAMP):
        offset = _number(index / (len(_RAMP) - 1))
        SubElement(ramp, "stop", {"offset": offset, "stop-color": f"#{colour}"})


def _first_parts(cells: Sequence[BlockCell]) -> frozenset[str]:
    """The names of the first tensor of each state that has several."""
    names: dict[str, list[str]] = {}
    for cell in cells:
        if cell.layer is not None and cell.name not in names.setdefault(cell.layer, []):
            names[cell.layer].append(cell.name)
    return frozenset(mine[0] for mine in names.values() if len(mine) > 1)


def _in_model_order(groups: Sequence[PlannedGroup]) -> list[str]:
    """All layers: numbered ones by number, others as the groups name them."""
    names = list(dict.fromkeys(name for group in groups for name in group.layers))
    numbered = all(name.partition(".")[0].isdecimal() for name in names)
    return sorted(names, key=lambda name: int(name.partition(".")[0])) if numbered else names


def _ramp(count: int) -> Iterator[str]:
    anchors = [tuple(bytes.fromhex(each)) for each in _RAMP]
    for index in range(count):
        at = index * (len(anchors) - 1) / max(count - 1, 1)
        low = min(int(at), len(anchors) - 2)
        mixed = (
            round(a + (b - a) * (at - low))
            for a, b in zip(anchors[low], anchors[low + 1], strict=True)
        )
        yield "#" + bytes(mixed).hex()


def _ticks(length: int) -> range:
    """Return round numbers of bytes from 0 to the end of a row."""
    step = 1
    while length // step >= _NUM_TICKS:
        step *= 2
    return range(0, length + 1, step)


def _size(num_bytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:g} {unit}"
    return f"{num_bytes} B" if num_bytes else "0"


def _text(svg: Element, x: float, y: float, text: str, kind: str) -> None:
    attributes = {"x": _number(x), "y": _number(y), "class": kind}
    SubElement(svg, "text", attributes).text = text


def _box(svg: Element, place: Sequence[float], attributes: Mapping[str, str]) -> Element:
    """Draw a rectangle at x and y, of a width and a height."""
    names = ("x", "y", "width", "height")
    found = {name: _number(value) for name, value in zip(names, place, strict=True)}
    return SubElement(svg, "rect", found | {k: v for k, v in attributes.items() if v})


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
