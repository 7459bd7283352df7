"""Draws token hit rates against memory, one line per policy; loads matplotlib only then."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from kvbraid.errors import InvalidValueError
from kvbraid.extras import remedy


class Point(NamedTuple):
    """A hit rate (0 to 1) at a memory, and the eviction policy chosen there; "": none is."""

    memory: float
    rate: float
    policy: str = ""


Curves: TypeAlias = Mapping[str, Sequence[Point]]
"""For each policy its points, sorted by memory."""

_DPI: Final = 150
_LEAST_WIDTH_IN: Final = 8.0  # 1 200 pixels.
_WIDTH_IN: Final = 5.0
_HEIGHT_IN: Final = 4.2
_X_MARGIN: Final = 0.08
_MARKERS: Final = "osv^DP*X"
_THICKEST, _THINNEST = 4.0, 1.0
_LARGEST, _SMALLEST = 10.0, 3.5
_ROOM_ABOVE: Final = 1.06
_CHOICE_PT: Final = 7.0
_CHOICE_ROW: Final = 0.045  # Of the height of a panel.


def load_matplotlib() -> Any:  # noqa: ANN401 - a module that may be absent
    """Return `matplotlib.figure`.

    Raises:
        InvalidValueError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError:
        msg = f"a plot needs matplotlib, which is not installed: {remedy('plot')}"
        raise InvalidValueError(msg) from None
    return matplotlib


def check_path(path: Path) -> None:
    """Refuse a picture that could not be written in the end.

    Raises:
        InvalidValueError: matplotlib is not installed, there is no such folder, or matplotlib
            does not know the form of the file.
    """
    canvas = load_matplotlib().figure.Figure().canvas
    forms = sorted(canvas.get_supported_filetypes())
    why = ""
    if path.suffix.removeprefix(".").lower() not in forms:
        why = f"choose a name that ends in one of .{', .'.join(forms)}"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}; make it first"
    if why:
        raise InvalidValueError(f"{path}: the plot cannot be written: {why}")


def draw(
    path: Path,
    panels: Mapping[str, Curves],
    *,
    columns: int = 1,
    memory: str = "memory",
    tick: Callable[[float], str] = "{:.3g}".format,
) -> None:
    """Write one panel per title, in rows of `columns` panels, with one legend for all.

    `memory` names the axis, and `tick` each memory on it.

    Raises:
        InvalidValueError: matplotlib is not installed, or the file cannot be written.
    """
    picture = figure(panels, columns=columns, memory=memory, tick=tick)
    try:
        picture.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{path}: the plot cannot be written: {error}") from error


def figure(
    panels: Mapping[str, Curves],
    *,
    columns: int = 1,
    memory: str = "memory",
    tick: Callable[[float], str] = "{:.3g}".format,
) -> Any:  # noqa: ANN401 - matplotlib's Figure
    """Return the picture that `draw` writes.

    Raises:
        InvalidValueError: matplotlib is not installed.
    """
    matplotlib = load_matplotlib()
    rows = -(-len(panels) // columns)
    picture = matplotlib.figure.Figure(
        figsize=(max(_LEAST_WIDTH_IN, _WIDTH_IN * columns), _HEIGHT_IN * rows),
        dpi=_DPI,
        layout="constrained",
    )
    grid = picture.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        _draw_lines(axes, curves)
        _name_axes(axes, title, curves, memory, tick)
    lines = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
    picture.legend(lines.values(), lines, loc="outside lower center", ncols=4, fontsize=8)
    return picture


def _draw_lines(axes: Any, curves: Curves) -> None:  # noqa: ANN401
    """Draw each line thinner, with smaller and hollow markers, than those that it lies upon.

    So lines that coincide stay visible. Markers may cross the frame, which cuts none of them.
    """
    for i, (policy, points) in enumerate(curves.items()):
        last = i / max(1, len(curves) - 1)
        axes.plot(
            [point.memory for point in points],
            [100 * point.rate for point in points],
            label=policy,
            linewidth=_THICKEST + last * (_THINNEST - _THICKEST),
            marker=_MARKERS[i % len(_MARKERS)],
            markersize=_LARGEST + last * (_SMALLEST - _LARGEST),
            markerfacecolor="none",
            clip_on=False,
            zorder=3,
        )


def _name_axes(
    axes: Any,  # noqa: ANN401
    title: str,
    curves: Curves,
    memory_label: str,
    tick: Callable[[float], str],
) -> None:
    """Name what the axes show, and in rows above all lines what each one chose."""
    axes.set_title(title, fontsize=9)
    axes.set_xscale("log", base=2)
    memories = sorted({point.memory for points in curves.values() for point in points})
    axes.set_xticks(memories, labels=[tick(memory) for memory in memories])
    axes.margins(x=_X_MARGIN)
    axes.set_xlabel(memory_label)
    axes.set_ylabel("token hit rate (%)")
    highest = max((point.rate for points in curves.values() for point in points), default=0.0)
    lines = zip(curves.values(), axes.get_lines(), strict=True)
    choices = [(points, line) for points, line in lines if any(point.policy for point in points)]
    for row, (points, line) in enumerate(choices):
        _name_choices(axes, points, line.get_color(), 1 - _CHOICE_ROW * (row + 0.5))
    below_choices = 1 - _CHOICE_ROW * len(choices)
    axes.set_ylim(0, max(1.0, 100 * highest * _ROOM_ABOVE / below_choices))
    axes.grid(visible=True, alpha=0.3)


def _name_choices(axes: Any, points: Sequence[Point], color: Any, height: float) -> None:  # noqa: ANN401
    """Write each choice in the line's colour at its memory, inside the frame."""
    for i, point in enumerate(points):
        is_edge = len(points) > 1 and i in (0, len(points) - 1)
        axes.annotate(
            point.policy,
            (point.memory, height),
            xycoords=("data", "axes fraction"),
            ha=("left" if i == 0 else "right") if is_edge else "center",
            va="center",
            fontsize=_CHOICE_PT,
            color=color,
            zorder=4,
        )
