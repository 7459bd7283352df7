"""Calls on the block tables of requests, for engines that recover from loads that failed.

Invariant: presence is what a request's own tables hold, whether or not a hash finds it. Questions
change nothing, and `rewind` does what it says or raises and changes nothing. Nothing here decides
what is bad: the caller names the blocks.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kvbraid._native import CacheCore
from kvbraid.cache.counts import NOT_TAKEN, check_counts
from kvbraid.errors import InvalidValueError, shortened
from kvbraid.ids import BlockId
from kvbraid.reading import COUNT, check


class TableEntry(NamedTuple):
    """One entry of a block table."""

    request: int
    group: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where blocks stand, in flat buffers that are not copied.

    `block_ids` are the blocks that were asked for, except the null block: ascending, each once.
    The places of block i are those from `ends[i - 1]` to `ends[i]`, ordered by request (the one
    added first comes first), then by group, then by position.
    """

    block_ids: "memoryview[int]"
    ends: "memoryview[int]"
    requests: "memoryview[int]"
    groups: "memoryview[int]"
    positions: "memoryview[int]"

    def of(self, block_id: BlockId) -> list[TableEntry]:
        """Return the places of a block; none if it was not asked for."""
        i = bisect_left(self.block_ids, block_id)
        if i == len(self.block_ids) or self.block_ids[i] != block_id:
            return []
        own = slice(self.ends[i - 1] if i else 0, self.ends[i])
        columns = (self.requests[own], self.groups[own], self.positions[own])
        return [TableEntry(*row) for row in zip(*columns, strict=True)]


class Why(StrEnum):
    """Why a group refuses a boundary."""

    NOT_HELD = "not_held"
    """The table has no block there, or no state after exactly so many tokens."""
    BAD = "bad"
    """The block is one of the bad ones."""
    NOT_COMPUTED = "not_computed"
    """A draft head needs the unit after the boundary, which is not computed."""


class Refusal(NamedTuple):
    """A boundary that a group refuses because of one block.

    `block_id` is the block at `position`, 0 if there is none. If this block is bad or missing, the
    group refuses every lower boundary that needs it, too; such boundaries are not listed.
    """

    boundary: int
    group: int
    position: int
    block_id: BlockId
    why: Why


class ResumePoint(NamedTuple):
    """How many tokens of a request need not be computed again, and what larger boundaries lack."""

    num_tokens: int
    refused: list[Refusal]


class RequestTables:
    """The block tables of a cache's requests: `CacheManager.tables`."""

    def __init__(self, core: CacheCore) -> None:
        self._core = core

    @property
    def native(self) -> CacheCore:
        """The native core, for `kvbraid.recovery`, which reads the tables where they are."""
        return self._core

    def requests_of(self, block_ids: Sequence[BlockId]) -> Places:
        """Return where each of these blocks stands in the tables of requests.

        The null block stands nowhere. The call reads all tables once, whatever the number of
        blocks.

        Raises:
            InvalidValueError: A block does not exist.
        """
        check_counts("block_id", block_ids)
        blocks, ends, requests, groups, positions = self._core.requests_of(block_ids)
        return Places(
            block_ids=memoryview(blocks).cast("I"),
            ends=memoryview(ends).cast("I"),
            requests=memoryview(requests).cast("Q"),
            groups=memoryview(groups).cast("I"),
            positions=memoryview(positions).cast("I"),
        )

    def resume_points(
        self,
        requests: Sequence[int],
        bad: Sequence[BlockId],
        *,
        limits: Sequence[int] | None = None,
        drops_unit: bool = True,
        max_refusals: int = 0,
    ) -> list[ResumePoint]:
        """Return how far each request can resume with its own blocks, without the bad ones.

        This is the largest boundary that every group accepts, at most the computed tokens and at
        least one token before the end of the request: what `kvbraid.resume.resume` says of the
        same blocks. A block counts if it is in the table, not bad, and its tokens are computed. A
        state counts at the boundary of its hash; without a hash, the running state and the one
        before it count at the ends of their blocks.

        Args:
            requests: The requests.
            bad: Blocks that must not be used, of any request.
            limits: For each request, how many of its computed tokens count; None: all.
            drops_unit: The group of a draft head needs one more unit after the boundary, as in a
                match. False if the unit was there when the request got its blocks.
            max_refusals: How many refusals to return for each request, from the largest boundary
                down.

        Raises:
            UnknownError: A request is not known.
            InvalidValueError: A block does not exist, or there is not one limit for each request.
        """
        most = limits if limits is not None else [None] * len(requests)
        if len(most) != len(requests):
            msg = f"{len(most)} limits for {len(requests)} requests; give one for each"
            raise InvalidValueError(msg)
        check_counts("block_id", bad)
        check_counts("limit", [limit for limit in most if limit is not None])
        check("max_refusals", max_refusals, COUNT)
        pairs = list(zip(requests, most, strict=True))
        try:
            points = self._core.resume_points(pairs, bad, drops_unit, max_refusals)
        except NOT_TAKEN:
            what = f"requests are {shortened(requests)}; expected numbers that add returned"
            raise InvalidValueError(what) from None
        return [
            ResumePoint(num_tokens, [Refusal(*row[:4], Why(row[4])) for row in refused])
            for num_tokens, refused in points
        ]

    def rewind(self, request: int, num_tokens: int) -> None:
        """Go back to the first `num_tokens` tokens of a request. Its blocks stay in its tables.

        What is computed again is registered again. A block with later tokens that nobody else
        refers to loses its hashes, and events say so. A block that others refer to keeps them,
        because the same tokens are written into it again: give blocks that hold garbage to
        `pool.forget`.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: `num_tokens` is more than are computed.
            NotHeldError: The request has states, or a window or chunk has given back a block that
                would be read or written again: preempt the request, then match again.
        """
        check("num_tokens", num_tokens, COUNT)
        self._core.rewind(request, num_tokens)
