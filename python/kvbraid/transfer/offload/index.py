"""What one tier holds, as the pool of a cache without requests: a block of it is a slot.

Invariant: each slot has at most one key, and each key at most one slot. A slot that is pinned
keeps its content; its key may be forgotten in the meantime. The null block is no slot.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kvbraid.cache import CacheConfig, CacheManager
from kvbraid.cache.pool import BlockPool
from kvbraid.ids import BlockId
from kvbraid.spec import Topology
from kvbraid.transfer.keys import BlockKey


class Pins:
    """The references that the manager has to a pool's blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool: Final = pool
        self._counts: Final[dict[BlockId, int]] = {}  # A Counter deletes more slowly.

    def hold(self, *blocks: BlockId) -> None:
        """Keep blocks from being handed out."""
        self._pool.hold(blocks)
        counts = self._counts
        for block in blocks:
            counts[block] = counts.get(block, 0) + 1

    def take(self, count: int) -> list[BlockId]:
        """Take those that would be handed out next, as many as there are."""
        blocks = self._pool.take(min(count, self._pool.num_free))
        self._counts.update(dict.fromkeys(blocks, 1))
        return blocks

    def free(self, *blocks: BlockId) -> None:
        """Drop one reference to each block; the one given first is handed out first."""
        self._pool.free(blocks)
        counts = self._counts
        for block in blocks:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]

    def __len__(self) -> int:
        """How many blocks are held."""
        return len(self._counts)

    def blocks(self) -> list[BlockId]:
        """Return each block as often as it is held."""
        return [block for block, count in sorted(self._counts.items()) for _ in range(count)]


class Taken(NamedTuple):
    """A slot with one reference, and whose content it has lost."""

    slot: BlockId
    evicted: BlockKey | None


class TierIndex:
    """The slots of one tier, and what they hold."""

    def __init__(self, topology: Topology, name: str, medium: str, num_slots: int) -> None:
        self.name: Final = name
        self.medium: Final = medium
        self._cache: Final = CacheManager(CacheConfig(topology=topology, num_blocks=num_slots + 1))
        self.pool: Final = self._cache.pool
        self.pins: Final = Pins(self.pool)
        self.keys: Final[dict[BlockId, BlockKey]] = {}
        self._slots: Final[dict[BlockKey, BlockId]] = {}
        self._removed: list[BlockKey] = []

    def __contains__(self, key: BlockKey) -> bool:
        """Whether the tier has a block."""
        return key in self._slots

    def __len__(self) -> int:
        """How many blocks the tier has."""
        return len(self.keys)

    def slot_of(self, key: BlockKey) -> BlockId | None:
        """Return the slot that holds a block; None if none does."""
        return self._slots.get(key)

    def take(self, count: int) -> list[Taken]:
        """Take the slots that were used least recently, fewer if the others are pinned."""
        taken = [Taken(slot, self.keys.pop(slot, None)) for slot in self.pins.take(count)]
        evicted = [key for _, key in taken if key is not None]
        for key in evicted:
            del self._slots[key]
        self._removed += evicted
        return taken

    def add(self, slot: BlockId, key: BlockKey, num_tokens: int) -> None:
        """Make a block findable in a slot that is pinned."""
        assert slot not in self.keys, f"slot {slot} of {self.name} holds something"
        assert key not in self, f"{key} is in {self.name} already"
        self.pool.register(slot, key.group, key.block_hash, num_tokens)
        self.keys[slot], self._slots[key] = key, slot

    def lacks(self, keys: Iterable[BlockKey]) -> set[BlockKey]:
        """Return those that the tier does not have."""
        return {*keys}.difference(self._slots)

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that blocks were used now, the last one last."""
        self._requeue([slot for slot in map(self._slots.get, keys) if slot is not None])

    def _requeue(self, slots: Sequence[BlockId]) -> None:
        """Let slots be taken last, in this order; first those that are empty."""
        self.pool.hold(slots)
        self.pool.free(slots)

    def forget(self, key: BlockKey) -> bool:
        """Make sure that a block is not found any more; return whether it was."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return False
        self.pool.forget([slot])
        self._requeue([slot])
        del self.keys[slot]
        self._removed.append(key)
        return True

    def clear(self) -> list[BlockKey]:
        """Forget all blocks; return which."""
        keys, slots = list(self._slots), list(self._slots.values())
        self.pool.forget(slots)
        self._requeue(slots)
        self.keys.clear()
        self._slots.clear()
        self._removed += keys
        return keys

    @property
    def has_removed(self) -> bool:
        """Whether `take_removed` has something to return."""
        return bool(self._removed)

    def take_removed(self) -> list[BlockKey]:
        """Return what is no longer found, since the last call, in order."""
        removed, self._removed = self._removed, []
        return removed

    def check_integrity(self) -> None:
        """Panic unless the pool, the keys and the pins agree."""
        self._cache.debug.check_integrity(self.pins.blocks())
        found = {slot: BlockKey(h, g) for (g, h), (slot,) in self._cache.debug.cached().items()}
        assert found == self.keys, f"{self.name} finds {found} instead of {self.keys}"
        assert self._slots == {key: slot for slot, key in found.items()}
        assert 0 not in found, "the null block is no slot"
