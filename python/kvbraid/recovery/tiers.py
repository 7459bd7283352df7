"""What recovery asks of the tiers from which blocks are loaded, and to which they are stored."""

from collections.abc import Collection
from typing import Protocol

from kvbraid.ids import BlockId
from kvbraid.recovery.failures import Record


class Tiers(Protocol):
    """The tiers of one engine. No call may wait or raise: what it starts is reported later."""

    def forget_blocks(self, block_ids: Collection[BlockId]) -> None:
        """Make sure that nothing copied from these blocks is ever loaded.

        A pending store of one of them is cancelled; a store that has been announced is retracted,
        its record dropped. A block may have been stored by any of its hashes.
        """
        ...

    def drop(self, record: Record) -> None:
        """Drop a record that is missing, short or corrupt; forget that it was ever looked up."""
        ...

    def back_off(self, record: Record) -> None:
        """Do not ask the record's tier for a while; the record stays."""
        ...
