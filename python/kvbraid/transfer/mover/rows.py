"""Copies in the memory of the CPU, row by row.

Invariant: every access is through a view of its region, so a wrong address raises and writes
nothing. Copies on a device are compared with these.
"""

from kvbraid.transfer.mover.runs import Copies, Regions


def copy_rows(copies: Copies, read: Regions, written: Regions) -> None:
    """Copy all rows, one after the other; of what copies single rows, slices of views are fastest.

    Raises:
        InvalidValueError: A row outside of all regions; nothing was copied.
    """
    lengths = copies.lengths
    source, target = read.find(copies.sources, lengths), written.find(copies.targets, lengths)
    rows = zip(
        source.tolist(),
        read.offsets(copies.sources, source).tolist(),
        target.tolist(),
        written.offsets(copies.targets, target).tolist(),
        lengths.tolist(),
        strict=True,
    )
    sources, targets = read.views, written.views
    for at, begin, to, start, length in rows:
        targets[to][start : start + length] = sources[at][begin : begin + length]
