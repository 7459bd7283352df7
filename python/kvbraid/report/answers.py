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
from kvbraid.report.tables import Column, Listing, Row, print_lines, print_listing
from kvbraid.service.answers import (
    Coverage,
    ExplainAnswer,
    ExplainGroup,
    ExplainRow,
    PickAnswer,
    PickCandidate,
    PodRow,
    PodsAnswer,
    ScoreAnswer,
    Strip,
    Strips,
)

_STATE_STYLE: Final[Mapping[PodState, str]] = {
    PodState.EXACT: "green",
    PodState.REBUILDING: "yellow",
    PodState.DEGRADED: "red",
    PodState.STALE: "red",
}
_ENDS: Final = ">"
_CELLS: Final[Mapping[Coverage, tuple[str, str]]] = {
    Coverage.HELD: ("█", "green"),
    Coverage.PARTLY: ("▒", "yellow"),
    Coverage.MISSING: ("·", "dim"),
}
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


_TERMS: Final[Mapping[str, str]] = {
    "wait": "wait",
    "prefill": "prefill",
    "loading": "load",
    "decoding": "decode",
    "potential": "potential",
    "displacement": "displace",
    "queue": "queue",
}
"""The terms of a cost, and what their columns are called."""


def show_pick(console: Console, answer: PickAnswer) -> None:
    """Print what each candidate would cost, the chosen one first; terms are in milliseconds.

    Terms that are 0 for all candidates have no column.
    """
    chosen = (answer.pod, answer.dp_rank)
    candidates = sorted(
        answer.candidates or (),
        key=lambda row: ((row.pod, row.dp_rank) != chosen, row.cost is None, row.cost),
    )
    terms = [name for name in _TERMS if any(_term(row, name) for row in candidates)]
    columns = (
        Column("pod", is_left=True),
        *map(Column, ("rank", "reuse", *(_TERMS[name] for name in terms), "cost")),
    )
    rows: list[Row] = [
        (
            _text(row.pod),
            str(row.dp_rank),
            str(row.resumable),
            *(f"{1000 * _term(row, name) + 0.0:.1f}" for name in terms),
            _cost(row),
        )
        for row in candidates
    ]
    where = f"{answer.pod} rank {answer.dp_rank}" + (f" at {answer.url}" if answer.url else "")
    title = printable(f"{answer.model}: {counted(answer.num_tokens, 'token')} to {where}")
    print_listing(console, Listing(columns=columns, rows=rows, title=title))
    print_lines(console, map(printable, _grounds(answer)))


def _grounds(answer: PickAnswer) -> Iterator[str]:
    """What the decision was made from, and who was not asked."""
    reuse = f"{_bounds(answer.lower, answer.upper)} tokens are there now"
    yield f"{reuse}, {answer.resumable} when the request gets there, known from {answer.knowledge}"
    unit = f", in ms, with {answer.seconds} coefficients" if answer.terms else ""
    if answer.terms and answer.fit is not None and answer.fit.num_samples:
        unit += f" ({counted(answer.fit.num_samples, 'sample')})"
    yield f"cost by policy {answer.policy}{unit}"
    for name, count in answer.left_out.items():
        yield f"left out: {count} {name}"
    for name in answer.lifted:
        yield f"not left out although {name}: nobody else is there"


def _term(row: PickCandidate, name: str) -> float:
    return 0.0 if row.terms is None else float(getattr(row.terms, name))


def _cost(row: PickCandidate) -> str:
    if row.cost is None:
        return "never"
    return f"{row.cost:g}" if row.terms is None else f"{1000 * row.cost:.1f}"


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
    if row.drain:
        yield "draining"
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
        "█ held  ▒ partly  · not held  ^ a boundary that the group accepts  | the answer"
    )


def _strips(row: ExplainRow, num_tokens: int, width: int) -> Iterator[Text]:
    labels = [_label(row, number, group) for number, group in enumerate(row.groups)]
    columns = max(_LABEL_COLUMNS, *(len(label) + 1 for label in labels))
    bounds = f" {_bounds(row.lower, row.upper)}"  # It may stand after the last cell.
    room = width - len(bounds) - columns
    strips = row.strips(num_tokens, most_cells=max(room, _MIN_CELLS))
    for label, strip in zip(labels, strips.groups, strict=True):
        yield _strip(f"{label:<{columns}}", strip)
        yield _marks(f"{'    accepts':<{columns}}", strip)
    yield _ruler(f"{'  answer':<{columns}}", strips, bounds)


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


def _strip(label: str, strip: Strip) -> Text:
    line = Text(label, style="bold red" if label.startswith(_ENDS) else "")
    for cell in strip.cells:
        line.append(*_CELLS[cell])
    return line


def _marks(label: str, strip: Strip) -> Text:
    line = Text(label, style="dim")
    if strip.accepted is None:
        return line.append("every boundary", style="dim")
    last = max(strip.accepted, default=-1)
    marks = "".join("^" if cell in strip.accepted else " " for cell in range(last + 1))
    return line.append(marks, style="cyan")


def _ruler(label: str, strips: Strips, bounds: str) -> Text:
    """Point at the answer: `|` at lower, and a dash up to upper where that is larger."""
    line = Text(label, style="bold")
    low, high = strips.lower, strips.upper
    if high < 0:
        return line.append("0: nothing can be reused", style="bold")
    text = "".join(
        "|" if cell in {low, high} else "-" if low < cell < high else " "
        for cell in range(high + 1)
    )
    return line.append(text + bounds, style="bold")


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
