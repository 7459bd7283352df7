"""Which device blocks the copies in the tiers came from.

Invariant: as long as any tier has a block, or gets it, each device block that one of its copies
was made from is known here, up to a limit: beyond it the oldest copy is forgotten, and counted.
What is known too long makes too much be retracted, never too little.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final

from kvbraid.ids import BlockId
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.counts import OffloadCounts


class Origins:
    """The device blocks of each key, and the keys of each device block."""

    def __init__(self, most: int, counts: OffloadCounts) -> None:
        self._most: Final = most
        self._counts: Final = counts
        self._blocks: Final[OrderedDict[BlockKey, set[BlockId]]] = OrderedDict()
        self._keys: Final[dict[BlockId, set[BlockKey]]] = {}

    def note(self, key: BlockKey, block: BlockId) -> None:
        """Note that a copy was made from a block."""
        self._blocks.setdefault(key, set()).add(block)
        self._blocks.move_to_end(key)
        self._keys.setdefault(block, set()).add(key)
        if len(self._blocks) > self._most:
            self.forget(next(iter(self._blocks)))
            self._counts.num_forgotten_origins += 1

    def keys_of(self, blocks: Collection[BlockId]) -> list[BlockKey]:
        """Return what was copied from these blocks."""
        return sorted({key for block in blocks for key in self._keys.get(block, ())})

    def forget(self, key: BlockKey) -> None:
        """Forget a key that no tier has any more."""
        for block in self._blocks.pop(key, ()):
            keys = self._keys[block]
            keys.remove(key)
            if not keys:
                del self._keys[block]

    def clear(self) -> None:
        """Forget all keys."""
        self._blocks.clear()
        self._keys.clear()

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._blocks)

    def __iter__(self) -> Iterator[BlockKey]:
        """Iterate over the keys that are known."""
        return iter(self._blocks)

    def check_integrity(self) -> None:
        """Assert that both directions agree."""
        pairs = {(key, block) for key, blocks in self._blocks.items() for block in blocks}
        assert pairs == {(key, block) for block, keys in self._keys.items() for key in keys}
        assert len(self) <= self._most, "more copies are known than may be"
