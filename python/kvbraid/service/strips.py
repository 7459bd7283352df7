"""An explanation as a drawing: strips of cells, the boundaries of all groups, what is missing.

A terminal draws the same cells (`ExplainRow.strips`). All here are functions of an explanation.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.fleet import Request
from kvbraid.resume import needed_blocks
from kvbraid.service.answers import (
    Coverage,
    DrawnGroup,
    DrawnRow,
    ExplainGroup,
    ExplainRow,
    MissingBlocks,
    StripsAnswer,
)
from kvbraid.spec import GroupSpec, SpecKind

MOST_CELLS: Final = 128
"""Cells of a strip: what a narrow page has room for."""

MOST_SPANS: Final = 16
"""Runs of missing blocks that are told one by one."""

_MARKS: Final = {Coverage.HELD: "#", Coverage.PARTLY: "+", Coverage.MISSING: "."}


def draw(request: Request, rows: Sequence[ExplainRow]) -> StripsAnswer:
    """Return the answer that is drawn of an explained request."""
    num_tokens = len(request.token_ids)
    pods = [_row(row, num_tokens) for row in rows]
    return StripsAnswer(model=request.model, num_tokens=num_tokens, pods=pods)


def _row(row: ExplainRow, num_tokens: int) -> DrawnRow:
    strips = row.strips(num_tokens, most_cells=MOST_CELLS)
    common = common_boundaries(row.groups)
    return DrawnRow(
        pod=row.pod,
        dp_rank=row.dp_rank,
        state=row.state,
        lower=row.lower,
        upper=row.upper,
        limiting=row.limiting,
        reason=row.reason,
        unit=strips.unit,
        groups=[
            DrawnGroup(
                group=group.group,
                kind=group.kind,
                block_size=group.block_size,
                window=group.window,
                num_held=sum(group.held),
                cells="".join(_MARKS[cell] for cell in strip.cells),
                accepted=None if strip.accepted is None else sorted(strip.accepted),
            )
            for group, strip in zip(row.groups, strips.groups, strict=True)
        ],
        common=None if common is None else sorted({(end - 1) // strips.unit for end in common}),
        missing=_missing(row),
    )


def common_boundaries(groups: Iterable[ExplainGroup]) -> set[int] | None:
    """Return the boundaries that every group accepts; None if none of them restricts any."""
    given = [set(group.accepted) for group in groups if group.accepted is not None]
    return reduce(set.intersection, given) if given else None


def _missing(row: ExplainRow) -> MissingBlocks | None:
    """Return what the limiting group lacks at the first boundary that it refuses."""
    if row.limiting is None:
        return None
    boundary = row.limiting.boundary
    group = next((g for g in row.groups if g.group == row.limiting.group), None)
    if group is None:
        return None
    size, spans = group.block_size, _gaps(group, boundary)
    return MissingBlocks(
        group=group.group,
        boundary=boundary,
        num_blocks=sum((end - begin) // size for begin, end in spans),
        spans=spans[:MOST_SPANS],
    )


def _gaps(group: ExplainGroup, boundary: int) -> list[tuple[int, int]]:
    """Return the tokens from and to which a group lacks blocks that a boundary needs.

    The spec of an explanation has neither a chunk nor EAGLE's extra block: a chunked group is told
    as needing nothing more, and a draft head's group lacks at least what is returned.
    """
    if group.kind is SpecKind.CHUNKED_LOCAL_ATTENTION:
        return []
    spec = GroupSpec(kind=group.kind, block_size=group.block_size, window=group.window)
    try:
        needed = needed_blocks(spec, boundary)
    except InvalidValueError:  # It lies inside a block, where the group accepts nothing.
        needed = range(boundary // group.block_size, boundary // group.block_size + 1)
    size, gaps = group.block_size, list[tuple[int, int]]()
    for block in needed:
        if block < len(group.held) and group.held[block]:
            continue
        begin = block * size
        if gaps and gaps[-1][1] == begin:
            begin = gaps.pop()[0]
        gaps.append((begin, (block + 1) * size))
    return gaps
