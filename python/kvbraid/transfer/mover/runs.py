"""What is copied, as arrays: from where, to where, how many bytes.

    block ids, slots  ->  one row per run of each block  ->  rows that touch on both sides, joined

Invariant: no row crosses the border of a region, and the rows of `joined` name the same bytes, in
the same order, as those that they were made of. Nothing here reads or writes what it names.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbraid.errors import InvalidValueError
from kvbraid.layout.descriptors import Array


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows of addresses and lengths in bytes; three arrays as long as each other."""

    sources: Array
    targets: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """The bytes of all rows."""
        return int(self.lengths.sum())


class Regions:
    """Ranges of memory, each an allocation or a part of one, as (address, length).

    The first of them is empty, so that every address comes after the start of one. Whoever owns
    the memory keeps it alive.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.ranges: Final = ((0, 0), *sorted(ranges))
        self._starts = np.array([start for start, _ in self.ranges], np.uint64)
        self._ends = np.array([start + length for start, length in self.ranges], np.uint64)

    @cached_property
    def views(self) -> list[memoryview]:
        """The ranges as bytes, where they are memory of this process."""
        return [
            memoryview((ctypes.c_ubyte * length).from_address(start)).cast("B")
            for start, length in self.ranges
        ]

    def find(self, addresses: Array, lengths: Array) -> NDArray[np.intp]:
        """Return in which region each run lies.

        Raises:
            InvalidValueError: A run that is in none, or not all of it.
        """
        found = self._starts.searchsorted(addresses, side="right") - 1
        outside = addresses + lengths > self._ends[found]
        if outside.any():
            row = int(outside.argmax())
            what = f"{lengths[row]} bytes at {int(addresses[row]):#x}"
            msg = f"{what} are in none of {len(self.ranges) - 1} regions of memory"
            raise InvalidValueError(msg)
        return found

    def are_apart(self, addresses: Array, lengths: Array) -> NDArray[np.bool_]:
        """Return whether each run but the first does not continue the one before it.

        Raises:
            InvalidValueError: As `find` does.
        """
        found = self.find(addresses, lengths)
        is_elsewhere = addresses[1:] != addresses[:-1] + lengths[:-1]
        apart: NDArray[np.bool_] = np.logical_or(is_elsewhere, found[1:] != found[:-1])
        return apart

    def offsets(self, addresses: Array, region: int) -> Array:
        """Return how far addresses are from the start of a region."""
        offsets: Array = addresses - self._starts[region]
        return offsets


def joined(copies: Copies, sources: Regions, targets: Regions) -> Copies:
    """Join neighbouring rows that touch at both sides and stay in one region.

    Raises:
        InvalidValueError: A row outside of all regions.
    """
    if not len(copies):
        return copies
    is_first = np.ones(len(copies), bool)
    is_first[1:] = sources.are_apart(copies.sources, copies.lengths)
    is_first[1:] |= targets.are_apart(copies.targets, copies.lengths)
    first = np.flatnonzero(is_first)
    if len(first) == len(copies):
        return copies
    return Copies(
        copies.sources[first], copies.targets[first], np.add.reduceat(copies.lengths, first)
    )
