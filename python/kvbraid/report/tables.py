"""Tables of results, in which nothing is ever cut, and the lines around them.

Invariant: every name and number is shown whole. A table that is wider than the terminal is printed
as records: the first cell of a row on a line of its own, below it the others with their names.
Where there is no terminal, a row is one line, however long it is.

    pod    rank  state            pod-with-a-long-name
    a         0  exact              rank: 0   state: exact
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, TypeAlias

from rich.console import Console
from rich.text import Text

Cell: TypeAlias = str | Text
Row: TypeAlias = Sequence[Cell]

_GAP: Final = 2
_LEAST_WRAPPED: Final = 24  # A wrapped column that is narrower is hard to read.
_INDENT: Final = "  "
_BETWEEN: Final = "   "
_NOTHING: Final = ("", "-")  # Cells that a record leaves out.


@dataclass(frozen=True, slots=True)
class Column:
    """A column: numbers stand on the right, names on the left; `wraps` allows several lines."""

    name: str
    is_left: bool = False
    wraps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a table shows; rows of `footer` stand below a line."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    footer: Sequence[Row] = ()
    title: str = ""


def print_lines(console: Console, lines: Iterable[Cell]) -> None:
    """Print lines as they are; a terminal gets them wrapped between words."""
    for line in lines:
        text = Text(line) if isinstance(line, str) else line
        console.print(text, soft_wrap=not console.is_terminal)


def print_listing(console: Console, listing: Listing) -> None:
    """Print a table, or its records where the terminal is too narrow for it."""
    widths = _widths(listing, console.width if console.is_terminal else None)
    if listing.title:
        print_lines(console, [listing.title])
    lines = _records(console, listing) if widths is None else _table(console, listing, widths)
    for line in lines:
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _table(console: Console, listing: Listing, widths: Sequence[int]) -> Iterator[Text]:
    dash = "-" if console.options.ascii_only else "─"
    rule = Text(dash * (sum(widths) + _GAP * (len(widths) - 1)))
    yield from _row(console, listing, widths, [Text(c.name, "bold") for c in listing.columns])
    yield rule
    for row in listing.rows:
        yield from _row(console, listing, widths, row)
    if listing.footer:
        yield rule
    for row in listing.footer:
        yield from _row(console, listing, widths, row)


def _row(console: Console, listing: Listing, widths: Sequence[int], row: Row) -> Iterator[Text]:
    """Return the lines of one row: more than one if a cell is wrapped."""
    cells = [
        list(_text(cell).wrap(console, width, overflow="fold", no_wrap=not column.wraps))
        for column, width, cell in zip(listing.columns, widths, row, strict=True)
    ]
    for parts in zip_longest(*cells, fillvalue=Text()):
        line = Text()
        for column, width, part in zip(listing.columns, widths, parts, strict=True):
            part.rstrip()
            pad = " " * (width - part.cell_len)
            gap = " " * _GAP if line else ""
            line = Text.assemble(line, gap, *((part, pad) if column.is_left else (pad, part)))
        yield line


def _widths(listing: Listing, room: int | None) -> list[int] | None:
    """Return the width of each column, or None if the table is wider than `room`."""
    rows = [*listing.rows, *listing.footer]
    natural = [
        max(len(column.name), *(_text(row[i]).cell_len for row in rows), 0)
        for i, column in enumerate(listing.columns)
    ]
    if room is None:
        return natural
    widths = [
        min(width, _LEAST_WRAPPED) if column.wraps else width
        for column, width in zip(listing.columns, natural, strict=True)
    ]
    spare = room - sum(widths) - _GAP * (len(widths) - 1)
    if spare < 0:
        return None
    for i, width in enumerate(natural):
        more = min(spare, width - widths[i])
        widths[i] += more
        spare -= more
    return widths


def _records(console: Console, listing: Listing) -> Iterator[Text]:
    for row in (*listing.rows, *listing.footer):
        first = listing.columns[0]
        name = Text.assemble("" if first.is_left else f"{first.name} ", _text(row[0]))
        name.stylize("bold")
        yield from name.wrap(console, console.width, overflow="fold")
        parts = [
            Text.assemble((f"{column.name}: ", "dim"), cell)
            for column, cell in zip(listing.columns[1:], row[1:], strict=True)
            if _text(cell).plain not in _NOTHING
        ]
        yield from _packed(console, parts)


def _packed(console: Console, parts: Iterable[Text]) -> Iterator[Text]:
    """Put as many parts on a line as fit; a part that is longer gets lines of its own."""
    line = Text()
    for part in parts:
        if line and line.cell_len + len(_BETWEEN) + part.cell_len <= console.width:
            line = Text.assemble(line, _BETWEEN, part)
            continue
        if line:
            yield line
        first, *rest = part.wrap(console, console.width - len(_INDENT) * 2, overflow="fold")
        for more in rest:
            yield Text.assemble(_INDENT, first)
            first = Text.assemble(_INDENT, more)
        line = Text.assemble(_INDENT, first)
    if line:
        yield line


def _text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else cell
