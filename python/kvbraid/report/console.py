"""Where reports go: the terminal, a text, or a progress bar on standard error.

Rich decides whether there is a terminal; without one the same text is printed without colours.
"""

from io import StringIO
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn

_TEXT_COLUMNS: Final = 118


def stdout() -> Console:
    """Return the console for results, which does not colour numbers."""
    return Console(highlight=False)


def as_text(*parts: RenderableType) -> str:
    """Return what a console without colours would print, without spaces at the ends of lines."""
    out = StringIO()
    console = Console(file=out, width=_TEXT_COLUMNS, force_terminal=False, color_system=None)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def progress(*columns: ProgressColumn) -> Progress:
    """Return progress bars, one per task, followed by `columns`; they disappear at the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *columns,
        console=Console(stderr=True),
        transient=True,
    )
