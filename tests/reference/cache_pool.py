"""The blocks of a cache as one would keep them on paper: lists, searched from the front.

A block is free or referenced; it may have several keys (the first is its own, the others name
places inside it), and several blocks may have the same key. Nothing is indexed or linked.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvbraid.cache import NoFit
from kvbraid.events.model import BlockRemoved, Event

Key: TypeAlias = tuple[int, bytes]
"""A group, and the hash of the whole prefix that ends where the key says."""

NULL: Final = 0  # Stands where a group needs no block: never free, never cached.


class OutOfBlocksError(Exception):
    """The free blocks did not suffice: whoever asked takes everything back.

    `has_retired` tells whether skipped blocks had been given back before, `reason` why.
    """

    def __init__(self, reason: NoFit = NoFit.MEMORY, *, has_retired: bool = True) -> None:
        super().__init__()
        self.has_retired = has_retired
        self.reason = reason


class HasHeirsError(Exception):
    """Another request has adopted what was not written yet: nothing has changed."""


class WouldWipeError(Exception):
    """Zeroing was asked for where somebody could still read: nothing has changed."""


def wire_hash(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


@dataclass
class Pool:
    """`free` lists unreferenced blocks, the next victim first."""

    num_blocks: int
    caching: bool = True
    free: list[int] = field(default_factory=list)
    references: dict[int, int] = field(default_factory=dict)  # Of blocks that have any.
    keys: dict[int, tuple[Key, ...]] = field(default_factory=dict)  # Of blocks that have any.
    own_end: dict[int, int] = field(default_factory=dict)  # Tokens before the own key's end.
    copies: dict[Key, tuple[int, ...]] = field(default_factory=dict)  # Oldest first.
    events: list[Event] = field(default_factory=list)
    authors: dict[int, int | None] = field(default_factory=dict)  # Of blocks that have keys.
    author: int | None = None  # Whoever registers now.
    registered: list[tuple[int | None, int]] = field(default_factory=list)  # In this order.
    num_taken: int = 0
    num_evicted: int = 0

    def __post_init__(self) -> None:
        self.free = list(range(1, self.num_blocks))

    @property
    def num_free(self) -> int:
        return len(self.free)

    def is_free(self, block: int) -> bool:
        return block in self.free

    def __deepcopy__(self, memo: dict[int, object]) -> "Pool":
        """Copy lists and dictionaries; what they hold never changes. Tests make many copies."""
        twin = copy.copy(self)
        twin.free, twin.events = self.free.copy(), self.events.copy()
        twin.references, twin.own_end = self.references.copy(), self.own_end.copy()
        twin.keys, twin.copies = self.keys.copy(), self.copies.copy()
        twin.authors, twin.registered = self.authors.copy(), self.registered.copy()
        return twin

    def find(self, key: Key) -> int | None:
        return next(iter(self.copies.get(key, ())), None)

    def own_key(self, block: int) -> Key | None:
        return next(iter(self.keys.get(block, ())), None)

    def touch(self, block: int) -> None:
        if block in self.free:
            self.free.remove(block)
        self.references[block] = self.references.get(block, 0) + 1

    def take(self, count: int) -> list[int]:
        """Hand out the next victims; what they held is forgotten, in their order."""
        if count > len(self.free):
            raise OutOfBlocksError
        taken, self.free = self.free[:count], self.free[count:]
        self.num_taken += count
        self.num_evicted += sum(block in self.keys for block in taken)
        for block in taken:
            self.forget(block)
            self.references[block] = 1
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference each. Blocks that nobody can find go first, in the given order;
        cached ones go last, in the given order."""
        unfindable = []
        for block in blocks:
            if block == NULL:
                continue
            self.references[block] -= 1
            if self.references[block]:
                continue
            del self.references[block]
            if self.caching and block in self.keys:
                self.free.append(block)
            else:
                unfindable.append(block)
        self.free = unfindable + self.free

    def register(self, block: int, key: Key, end: int) -> bool:
        """Make a block findable where `end` tokens end; return whether it was not yet.

        A shorter prefix is what the block held before it was written on: such keys go first.
        """
        if key in self.keys.get(block, ()):
            return False
        if block in self.keys and self.own_end[block] < end:
            self.forget(block)
        if block not in self.keys:
            self.own_end[block], self.authors[block] = end, self.author
        self.registered.append((self.author, block))
        self.keys[block] = (*self.keys.get(block, ()), key)
        self.copies[key] = (*self.copies.get(key, ()), block)
        return True

    def move_keys(self, source: int, destination: int) -> None:
        """Hand all keys over, silently: the contents are copied."""
        end, author = self.own_end.get(source, 0), self.authors.get(source)
        for key in self._drop_keys(source):
            self.register(destination, key, end)
            self.authors[destination] = author

    def forget(self, block: int) -> None:
        """Drop the keys of a block and say so, one event each."""
        for group, digest in self._drop_keys(block):
            removed = (wire_hash(digest),)
            self.events.append(BlockRemoved(block_hashes=removed, group_idx=group))

    def _drop_keys(self, block: int) -> tuple[Key, ...]:
        keys = self.keys.pop(block, ())
        self.own_end.pop(block, None)
        for key in keys:
            left = tuple(other for other in self.copies.pop(key) if other != block)
            self.copies.update({key: left} if left else {})
        return keys

    def check(self) -> None:
        assert sorted([*self.free, *self.references]) == list(range(1, self.num_blocks))
        assert all(count > 0 for count in self.references.values())
        listed = [(key, block) for block, keys in self.keys.items() for key in keys]
        found = [(key, block) for key, blocks in self.copies.items() for block in blocks]
        assert sorted(listed) == sorted(found)
        assert set(self.own_end) == set(self.keys)
