"""Draws token hit rates against memory, one line per policy; loads matplotlib only then."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from kvbraid.errors import InvalidValueError

Curves: TypeAlias = Mapping[str, Sequence[tuple[float, float]]]
"""For each policy, pairs of memory and hit rate (0 to 1), sorted by memory."""

_WIDTH_IN: Final = 5.0
_HEIGHT_IN: Final = 3.6
_MARKERS: Final = "osv^Dx*P"


def load_matplotlib() -> Any:  # noqa: ANN401 - a module that may be absent
    """Return `matplotlib.figure`.

    Raises:
        InvalidValueError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError:
        msg = "a plot needs matplotlib, which is not installed: pip install 'kvbraid[plot]'"
        raise InvalidValueError(msg) from None
    return matplotlib


def draw(
    path: Path, panels: Mapping[str, Curves], *, columns: int = 1, memory: str = "memory (GiB)"
) -> None:
    """Write one panel per title, in rows of `columns` panels.

    Raises:
        InvalidValueError: matplotlib is not installed, or the file cannot be written.
    """
    matplotlib = load_matplotlib()
    rows = -(-len(panels) // columns)
    figure = matplotlib.figure.Figure(
        figsize=(_WIDTH_IN * columns, _HEIGHT_IN * rows), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        _draw_panel(axes, title, curves, memory)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        msg = f"{path}: the plot cannot be written: {error}"
        raise InvalidValueError(msg) from error


def _draw_panel(axes: Any, title: str, curves: Curves, memory: str) -> None:  # noqa: ANN401
    for marker, (policy, points) in zip(_cycle(len(curves)), curves.items(), strict=True):
        memories, rates = [x for x, _ in points], [100 * y for _, y in points]
        axes.plot(memories, rates, marker=marker, label=policy, markersize=4, linewidth=1.2)
    axes.set_title(title, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(memory)
    axes.set_ylabel("token hit rate (%)")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)


def _cycle(length: int) -> str:
    return (_MARKERS * -(-length // len(_MARKERS)))[:length]
