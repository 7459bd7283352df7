"""The page of the study `routing`: what was run, and how our rule stands beside the best others.

A cell is a point without its seed. Its ratio divides means over the seeds: ours, and that of the
baseline whose mean is the least. This baseline is found after the fact, cell by cell, which no
router could do, so a ratio of 1 is hard to reach. The noise of a cell is by what factor our rule
differs from itself if chance decides otherwise among equals.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import geometric_mean, mean
from typing import Final, NamedTuple

from bench.studies.policies import Row
from bench.studies.routing import BASELINES, RULES, SHIPPED, Point, point_of, points

TOLERATED: Final = 1.02
_AXES: Final = ("form", "load", "model", "pool", "work")
_HEAD: Final = (
    "cells | geometric mean | worst | worst beyond noise | more than 2 % worse |",
    "---|--:|--:|--:|--:|--:|",
)


class CellMeans(NamedTuple):
    """One cell: the mean of each rule over its seeds, in seconds until the first token."""

    cell: Point
    ttft_s: dict[str, float]

    def best(self, rivals: Sequence[str]) -> str:
        """Return the rival whose mean is the least."""
        return min(rivals, key=self.ttft_s.__getitem__)

    def ratio(self, rule: str, rivals: Sequence[str]) -> float:
        """Return a rule's mean over that of the best rival."""
        return self.ttft_s[rule] / self.ttft_s[self.best(rivals)]

    @property
    def noise(self) -> float:
        """By what factor our rule differs from itself."""
        factor = self.ttft_s["cost"] / self.ttft_s["cost again"]
        return max(factor, 1 / factor)


def cells_of(rows: Sequence[Row]) -> list[CellMeans]:
    """Return the cells of which there is any point."""
    found: dict[Point, list[Row]] = defaultdict(list)
    for row in rows:
        found[point_of(row).cell].append(row)
    return [
        CellMeans(cell, {rule: mean(row["ttft_s"][rule] for row in mine) for rule in RULES})
        for cell, mine in sorted(found.items())
    ]


def figures(cells: Sequence[CellMeans], rule: str, rivals: Sequence[str]) -> str:
    """Return the columns of a line: how a rule stands beside the best rival of each cell."""
    ratios = [each.ratio(rule, rivals) for each in cells]
    beyond = max(ratio / each.noise for ratio, each in zip(ratios, cells, strict=True))
    worse = 100 * mean(ratio > TOLERATED for ratio in ratios)
    return (
        f"{len(cells)} | {geometric_mean(ratios):.3f} | {max(ratios):.2f} | {beyond:.2f} "
        f"| {worse:.0f} % |"
    )


def page(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    cells, seeds = cells_of(rows), Counter(row["seed"] for row in rows)
    every = points()
    lines = [
        "# Our rule beside the published ones",
        "",
        "Written by `make study ONLY=routing`; do not edit by hand. Mean times until the first",
        "token, over the best baseline of each cell: below 1, users wait less with ours. The",
        "docstrings of `routing.py` and `routing_page.py` say what a cell is, and what noise is.",
        "",
        f"Played so far: {len(rows)} of {len(every)} points, which is some of "
        f"{len(cells)} of {len({point.cell for point in every})} cells; by seed: "
        f"{', '.join(f'{seed}: {count}' for seed, count in sorted(seeds.items())) or 'none'}.",
    ]
    if cells:
        lines += ["", *_overall(cells), "", *_by_axis(cells), "", *_by_rule(cells)]
    return lines


def _overall(cells: Sequence[CellMeans]) -> Iterator[str]:
    yield f"| a rule beside the best baseline | {_HEAD[0]}"
    yield f"|{_HEAD[1]}"
    yield f"| ours, all baselines | {figures(cells, 'cost', BASELINES)}"
    yield f"| ours with other ties, all baselines | {figures(cells, 'cost again', BASELINES)}"
    yield f"| ours with events alone, all baselines | {figures(cells, 'cost events', BASELINES)}"
    yield f"| ours, baselines as they ship (events alone) | {figures(cells, 'cost', SHIPPED)}"


def _by_axis(cells: Sequence[CellMeans]) -> Iterator[str]:
    yield f"| ours, all baselines: the cells with | {_HEAD[0]}"
    yield f"|{_HEAD[1]}"
    for axis in _AXES:
        groups: dict[str, list[CellMeans]] = defaultdict(list)
        for each in cells:
            groups[str(getattr(each.cell, axis))].append(each)
        for value, mine in sorted(groups.items()):
            yield f"| {axis} {value} | {figures(mine, 'cost', BASELINES)}"


def _by_rule(cells: Sequence[CellMeans]) -> Iterator[str]:
    best = Counter(each.best(BASELINES) for each in cells)
    yield "| rule | over ours, geometric mean | over ours, worst | best baseline in cells |"
    yield "|---|--:|--:|--:|"
    for rule in RULES:
        ratios = [each.ttft_s[rule] / each.ttft_s["cost"] for each in cells]
        yield f"| {rule} | {geometric_mean(ratios):.2f} | {max(ratios):.2f} | {best[rule]} |"
