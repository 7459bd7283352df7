"""What blocks held when they were read, although they may have been handed out again since.

```text
block 7     | content a |        | content b |          each handing out begins another content
                 ^ read at 3     ^ handed out at 5
```
Invariant: each content has one number. What a block holds now has the block's own number. What it
held before it was handed out again has a negative one, so whoever follows garbage need not know
when it was. Nothing here reads a cache.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NewType

from kvbraid.ids import BlockId

Content = NewType("Content", int)
"""A block's number for what it holds now, or a negative number for what a block held once."""

_BLOCKS: Final = 1 << 32  # Numbers of blocks are below it.


class Contents:
    """The handings-out of one pool, from one `catch_up` to the next."""

    def __init__(self) -> None:
        self._log: list[tuple[int, Sequence[int]]] = []
        self._last: Final[dict[int, int]] = {}
        self.now = 0
        self.num_logged = 0

    def hand_out(self, block_ids: Sequence[int]) -> None:
        """Note that blocks begin to hold something new. Keeps `block_ids`."""
        self.now += 1
        self.num_logged += len(block_ids)
        self._log.append((self.now, block_ids))
        self._last.update(dict.fromkeys(block_ids, self.now))

    def handed_out(self, block: BlockId) -> int:
        """Return when a block was handed out last; 0 if that was before anybody noted it."""
        return self._last.get(block, 0)

    def catch_up(self) -> "History":
        """Return what has happened since the last call, and forget it."""
        times: dict[int, list[int]] = {}
        for now, block_ids in self._log:
            for block in block_ids:
                times.setdefault(block, []).append(now)
        self._log, self.num_logged = [], 0
        return History(times)


class History:
    """When which block was handed out, in ascending order."""

    def __init__(self, times: dict[int, list[int]]) -> None:
        self._times: Final = times

    def content(self, block: Content, since: int) -> Content:
        """Return how that which a block held at `since` is numbered now."""
        times = self._times.get(block, ())
        at = bisect_right(times, since)
        return Content(-(times[at] * _BLOCKS + block)) if block > 0 and at < len(times) else block

    def contents(self, table: list[Content], since: int) -> list[Content]:
        """Return the same for a whole table."""
        if self._times.keys().isdisjoint(table):
            return table
        return [self.content(content, since) for content in table]


def block_of(content: Content) -> BlockId:
    """Return the block that holds a content, or held it."""
    return BlockId(content if content >= 0 else -content % _BLOCKS)
