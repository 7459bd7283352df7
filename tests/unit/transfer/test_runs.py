"""Rows are joined where that changes nothing, and none leaves its region."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.transfer.mover.rows import copy_rows
from kvbraid.transfer.mover.runs import Copies, Regions, joined


def copies(*rows: tuple[int, int, int]) -> Copies:
    table = np.array(rows, np.uint64).reshape(-1, 3)
    return Copies(table[:, 0], table[:, 1], table[:, 2])


def rows(of: Copies) -> list[tuple[int, int, int]]:
    return list(zip(of.sources.tolist(), of.targets.tolist(), of.lengths.tolist(), strict=True))


WIDE = Regions([(1000, 1000)])


@pytest.mark.parametrize(
    ("given_rows", "expected"),
    [
        ([], []),
        ([(1000, 1500, 8)], [(1000, 1500, 8)]),
        ([(1000, 1500, 8), (1008, 1508, 4), (1012, 1512, 4)], [(1000, 1500, 16)]),
        ([(1000, 1500, 8), (1008, 1516, 8)], [(1000, 1500, 8), (1008, 1516, 8)]),
        ([(1000, 1500, 8), (1016, 1508, 8)], [(1000, 1500, 8), (1016, 1508, 8)]),
        (
            [(1000, 1500, 8), (1008, 1508, 8), (1000, 1600, 8), (1008, 1608, 8)],
            [(1000, 1500, 16), (1000, 1600, 16)],
        ),
    ],
)
def test_rows_that_touch_on_both_sides_are_one(
    given_rows: list[tuple[int, int, int]], expected: list[tuple[int, int, int]]
) -> None:
    assert rows(joined(copies(*given_rows), WIDE, WIDE)) == expected


def test_no_row_crosses_from_one_region_into_the_next() -> None:
    """Two pieces of an arena may lie side by side, and a device knows each of them alone."""
    pieces = Regions([(1508, 100), (1400, 108)])
    touching = [(1000, 1500, 8), (1008, 1508, 8), (1016, 1516, 8)]
    expected = [(1000, 1500, 8), (1008, 1508, 16)]
    assert rows(joined(copies(*touching), WIDE, pieces)) == expected
    back = [(target, source, length) for source, target, length in touching]
    expected = [(1500, 1000, 8), (1508, 1008, 16)]
    assert rows(joined(copies(*back), pieces, WIDE)) == expected


@pytest.mark.parametrize(
    "row", [(999, 1500, 8), (1000, 1996, 8), (1000, 5000, 1), (0, 1500, 1), (1 << 60, 1500, 1)]
)
def test_a_row_outside_of_all_regions_is_refused(row: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidValueError, match="are in none of 1 regions of memory"):
        joined(copies((1000, 1500, 8), row), WIDE, WIDE)


def test_nothing_is_copied_if_one_row_is_outside() -> None:
    memory = np.zeros(64, np.uint8)
    base = memory.ctypes.data
    memory[:8] = 7
    region = Regions([(base, 64)])
    with pytest.raises(InvalidValueError):
        copy_rows(copies((base, base + 8, 8), (base, base + 60, 8)), region, region)
    assert not memory[8:].any()


@given(data=st.data())
def test_joined_rows_name_the_same_bytes_in_the_same_order(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    found, source, target = [], 1000, 1500
    for length in lengths:
        source += data.draw(st.sampled_from((0, 0, 0, 3)))
        target += data.draw(st.sampled_from((0, 0, 0, 5)))
        found.append((source, target, length))
        source, target = source + length, target + length
    border = data.draw(st.sampled_from([row[1] for row in found]))
    pieces = Regions([(1500, border - 1500), (border, 500)] if border > 1500 else [(1500, 500)])
    after = rows(joined(copies(*found), WIDE, pieces))
    assert len(after) <= len(found)

    def bytes_of(of: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        return [(at + i, to + i) for at, to, length in of for i in range(length)]

    assert bytes_of(after) == bytes_of(found)
