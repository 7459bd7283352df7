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
    source = read.find(copies.sources, copies.lengths)
    target = written.find(copies.targets, copies.lengths)
    pairs = source * len(written.views) + target
    # Usually there is one pair of regions; a row then costs no look-up of views.
    for pair in set(pairs.tolist()):
        at, to = divmod(pair, len(written.views))
        mine = pairs == pair
        rows = zip(
            read.offsets(copies.sources[mine], at).tolist(),
            written.offsets(copies.targets[mine], to).tolist(),
            copies.lengths[mine].tolist(),
            strict=True,
        )
        reads, writes = read.views[at], written.views[to]
        for begin, start, length in rows:
            writes[start : start + length] = reads[begin : begin + length]
