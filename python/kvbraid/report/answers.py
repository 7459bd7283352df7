"""A server's answers as tables, and the strips of an explanation.

Names that servers and engines give are printed as plain text: they are never read as markup, and
cannot move or reverse a line of the terminal. Nothing here reads or sends anything.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console
from rich.text import Text

from kvbraid.errors import counted, printable
from kvbraid.fleet.answer import Limiting
from kvbraid.ids import PodState
from kvbraid.report.events import group_name
from kvbraid.report.tables import Column, Listing, print_lines, print_listing
from kvbraid.service.answers import (
    ExplainAnswer,
    ExplainGroup,
    ExplainRow,
    PodRow,
    PodsAnswer,
    ScoreAnswer,
)

_STATE_STYLE: Final[Mapping[PodState, str]] = {
    PodState.EXACT: "green",
    PodState.REBUILDING: "yellow",
    PodState.DEGRADED: "red",
    PodState.STALE: "red",
}
_HELD, _PARTLY, _MISSING, _ACCEPTED, _ENDS = "█", "▒", "·", "^", ">"
_CELL_STYLE: Final = {_HELD: "green", _PARTLY: "yellow", _MISSING: "dim", _ACCEPTED: "cyan"}
_LABEL_COLUMNS: Final = 30  # At least; a longer label moves the strips of its pod.
_MIN_CELLS: Final = 10
_SCORE_COLUMNS: Final = (
    Column("pod", is_left=True),
    Column("rank"),
    Column("state", is_left=True),
    *map(Column, ("reusable", "expected", "present", "ended by", "score")),
)
_POD_COLUMNS: Final = (
    Column("pod", is_left=True),
    Column("rank"),
    Column("model", is_left=True),
    Column("state", is_left=True, wraps=True),
    Column("last seq"),
    Column("messages"),
    *(Column(name, is_left=True, wraps=True) for name in ("groups", "placed", "refused")),
)


def show_scores(console: Console, answer: ScoreAnswer) -> None:
    """Print one line per pod and rank, best first."""
    rows = [
        (
            _text(row.pod),
            str(row.dp_rank),
            _state(row.state),
            _bounds(row.lower, row.upper),
            str(row.expected),
            str(row.present),
            _ended_by(row.limiting),
            f"{row.score:g}",
        )
        for row in sorted(answer.pods, key=lambda row: (-row.score, -row.lower, row.pod))
    ]
    title = printable(f"{answer.model}: {counted(answer.num_tokens, 'token')}")
    print_listing(console, Listing(columns=_SCORE_COLUMNS, rows=rows, title=title))


def show_pods(console: Console, answer: PodsAnswer) -> None:
    """Print one line per pod and rank."""
    rows = [
        (
            _text(row.pod),
            str(row.dp_rank),
            _text(row.model),
            _state(row.state) + _text("".join(f" {t}" for t in _reasons(row))),
            "-" if row.last_seq is None else str(row.last_seq),
            str(row.messages),
            ", ".join(f"{group_name(g.group)} {g.kind.value}/{g.block_size}" for g in row.groups),
            _text(_counts(row.placed)),
            _text(_counts(row.refused)),
        )
        for row in answer.pods
    ]
    print_listing(console, Listing(columns=_POD_COLUMNS, rows=rows))


def _reasons(row: PodRow) -> Iterator[str]:
    """Why the pod's state is what it is, and what to do about it."""
    if row.reason:
        yield row.reason
    if row.remedy:
        yield f"({row.remedy})"


def show_explanation(console: Console, answer: ExplainAnswer) -> None:
    """Print, per pod and group, the strip of held blocks and the boundaries the group accepts.

    One cell stands for one of the smallest blocks if the width allows it, otherwise for several.
    """
    for row in answer.pods:
        print_lines(console, [_headline(row, answer.num_tokens)])
        if not row.groups:
            console.print("  no group is known yet")
            continue
        for line in _strips(row, answer.num_tokens, console.width):
            console.print(line, no_wrap=True, overflow="crop")
    console.print(
        f"{_HELD} held  {_PARTLY} partly  {_MISSING} not held  "
        f"{_ACCEPTED} a boundary that the group accepts  | the answer"
    )


def _strips(row: ExplainRow, num_tokens: int, width: int) -> Iterator[Text]:
    labels = [_label(row, number, group) for number, group in enumerate(row.groups)]
    label_columns = max(_LABEL_COLUMNS, *(len(label) + 1 for label in labels))
    answer_columns = len(f" {_bounds(row.lower, row.upper)}")  # It may stand after the last cell.
    scale = _Scale.fitting(row, num_tokens, label_columns, width - answer_columns)
    for label, group in zip(labels, row.groups, strict=True):
        yield _strip(scale, label, group)
        yield _marks(scale, group)
    yield _ruler(scale, row)


class _Scale:
    """Tokens to cells: cell c stands for the tokens from c * unit to (c + 1) * unit.

    The cells stand after `label_columns` columns.
    """

    def __init__(self, unit: int, num_tokens: int, label_columns: int) -> None:
        self.unit = unit
        self.cells = max(1, -(-num_tokens // unit))
        self.label_columns = label_columns

    @classmethod
    def fitting(cls, row: ExplainRow, num_tokens: int, label_columns: int, width: int) -> "_Scale":
        """Return a scale whose cell is the smallest block, or several if the width requires it."""
        block = min(group.block_size for group in row.groups)
        cells = max(width - label_columns, _MIN_CELLS)
        unit = block * max(1, -(-num_tokens // (block * cells)))
        return cls(unit, num_tokens, label_columns)

    def cell_of_end(self, boundary: int) -> int:
        """The cell in which a boundary above 0 ends."""
        return (boundary - 1) // self.unit


def _headline(row: ExplainRow, num_tokens: int) -> Text:
    text = Text.assemble((printable(row.pod), "bold"), f" rank {row.dp_rank} ", _state(row.state))
    text.append(f": {_bounds(row.lower, row.upper)} of {counted(num_tokens, 'token')}")
    if row.limiting is not None:
        text.append(f", ended by {_ended_by(row.limiting)}")
    if row.reason:
        text.append(printable(f" ({row.reason})"))
    return text


def _label(row: ExplainRow, number: int, group: ExplainGroup) -> str:
    """Name a group; the mark says that it ends the prefix."""
    name = group.kind.value + (f"/{group.window}" if group.window else "")
    ends = row.limiting is not None and row.limiting.group == group.group
    return f"{_ENDS if ends else ' '} {group_name(group.group, number)} {name}"


def _strip(scale: _Scale, label: str, group: ExplainGroup) -> Text:
    """Draw one cell per unit: held if all blocks that overlap it are held, missing if none is."""
    style = "bold red" if label.startswith(_ENDS) else ""
    line = Text(f"{label:<{scale.label_columns}}", style=style)
    for cell in range(scale.cells):
        first = cell * scale.unit // group.block_size
        last = -(-(cell + 1) * scale.unit // group.block_size)
        held = group.held[first:last]
        mark = _MISSING if not any(held) else _HELD if all(held) else _PARTLY
        line.append(mark, style=_CELL_STYLE[mark])
    return line


def _marks(scale: _Scale, group: ExplainGroup) -> Text:
    line = Text(f"{'    accepts':<{scale.label_columns}}", style="dim")
    if group.accepted is None:
        return line.append("every boundary", style="dim")
    cells = {scale.cell_of_end(boundary) for boundary in group.accepted if boundary > 0}
    last = max(cells, default=-1)
    marks = "".join(_ACCEPTED if cell in cells else " " for cell in range(last + 1))
    return line.append(marks, style=_CELL_STYLE[_ACCEPTED])


def _ruler(scale: _Scale, row: ExplainRow) -> Text:
    """Point at the answer: `|` at lower, and a dash up to upper where that is larger."""
    line = Text(f"{'  answer':<{scale.label_columns}}", style="bold")
    if row.upper == 0:
        return line.append("0: nothing can be reused", style="bold")
    low = scale.cell_of_end(row.lower) if row.lower else -1
    high = scale.cell_of_end(row.upper)
    text = "".join(
        "|" if cell in {low, high} else "-" if low < cell < high else " "
        for cell in range(high + 1)
    )
    return line.append(f"{text} {_bounds(row.lower, row.upper)}", style="bold")


def _ended_by(limiting: Limiting | None) -> str:
    return "" if limiting is None else f"{group_name(limiting.group)} at {limiting.boundary}"


def _bounds(lower: int, upper: int) -> str:
    return str(lower) if lower == upper else f"{lower} to {upper}"


def _text(text: str) -> Text:
    return Text(printable(text))


def _state(state: PodState) -> Text:
    return Text(state.value, style=_STATE_STYLE[state])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "-"
