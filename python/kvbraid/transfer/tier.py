"""What a tier below host memory has to do.

Invariant: a tier keeps records, a header page and a payload each, and knows nothing of what is in
them. Whoever calls it verifies what comes back, so a tier that loses, cuts or swaps bytes costs a
hit, not an answer. Calls may wait: they are made on threads of `kvbraid.transfer`, never on the
engine's, and several at a time.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, Self, runtime_checkable

from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.status import Status


class TierBackend(Protocol):
    """A store of records of one namespace: six calls.

    An exception counts as `Status.IO_ERROR`. Buffers belong to the caller and are valid during
    the call; their addresses and lengths are multiples of 4 096 bytes.
    """

    def open(self, namespace: Namespace) -> None:
        """Get ready to keep the records of a namespace; called once, before all others.

        Raises:
            InvalidValueError: It cannot be used, with the remedy.
        """

    def keys(self) -> Iterable[BlockKey]:
        """Return the keys of the records that are there, in any order."""

    def store(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        """Keep a record: it is there whole, or not at all. One with this key may be there already.

        Returns `OK`, `FULL` or `IO_ERROR`.
        """

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        """Fill two writable buffers with a record.

        Returns `OK`, `MISS`, `SHORT` (its length is not that of the buffers) or `IO_ERROR`.
        """

    def drop(self, key: BlockKey) -> None:
        """Make sure that a record is never loaded again; it need not be there."""

    def close(self) -> None:
        """Give everything back; no other call follows but this one again."""


class TierChanges(NamedTuple):
    """Records that came and went without a call of `store` or `drop` that was answered."""

    added: tuple[BlockKey, ...]
    removed: tuple[BlockKey, ...]

    @classmethod
    def of(cls, is_there: Mapping[BlockKey, bool]) -> Self:
        """Return the changes of keys, each with whether its record is there now."""
        return cls(
            tuple(key for key, is_added in is_there.items() if is_added),
            tuple(key for key, is_added in is_there.items() if not is_added),
        )


@runtime_checkable
class SharedTier(TierBackend, Protocol):
    """A tier that evicts, or that others write too."""

    def refresh(self) -> TierChanges:
        """Return what has changed since `open` or the last call; called every few seconds."""
