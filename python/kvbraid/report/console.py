"""Where reports go: standard output, or a progress bar on standard error.

Rich decides whether there is a terminal; without one the same text is printed without colours.
"""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn


def stdout() -> Console:
    """Return the console for results, which does not colour numbers."""
    return Console(highlight=False)


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
