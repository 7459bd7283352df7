"""What a report prints in a terminal of some columns, or into a pipe."""

from collections.abc import Callable
from io import StringIO
from typing import Final

from rich.console import Console

WIDTHS: Final = (80, 100, 140)


def shown_at(columns: int | None, show: Callable[[Console], None]) -> str:
    """Return the text without colours; None: there is no terminal."""
    out = StringIO()
    is_terminal = columns is not None
    show(Console(file=out, width=columns, force_terminal=is_terminal, color_system=None))
    return out.getvalue()
