"""Held blocks that a transfer may still write, until every rank has reported its end.

Invariant: a block is freed exactly as often as it was held, and not before the last rank of its
transfer has reported. Nothing here holds or frees: `CacheManager.recover` gives the references,
and the caller drops what `ended` returns with `pool.free`.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.ids import BlockId


@dataclass(slots=True)
class _HeldBlocks:
    ranks: frozenset[int]
    pending: set[int]
    blocks: list[BlockId] = field(default_factory=list)


class Quarantine:
    """The ledger of one cache.

    Attributes:
        num_unknown_reports: Ends of transfers, or of ranks, that hold nothing here. A transfer is
            forgotten when its last rank has reported.
        num_repeated_reports: Ends that a rank reported again while others are pending.
    """

    def __init__(self) -> None:
        self._transfers: Final[dict[int, _HeldBlocks]] = {}
        self._held: Final[Counter[BlockId]] = Counter()
        self.num_unknown_reports = 0
        self.num_repeated_reports = 0

    def add(self, transfer: int, blocks: Collection[BlockId], ranks: Collection[int]) -> None:
        """Add blocks that are held because of a transfer.

        Args:
            transfer: Its number. It may have blocks here already.
            blocks: One reference to each of them is held for this call.
            ranks: Those that have not reported the end yet.

        Raises:
            InvalidValueError: No rank is to report, a rank has reported already, or the null block
                is among the blocks.
        """
        known = self._transfers.get(transfer)
        if not ranks or (known is not None and set(ranks) != known.pending):
            pending = "some rank" if known is None else f"ranks {sorted(known.pending)}"
            raise InvalidValueError(
                f"transfer {transfer} is to be ended by ranks {sorted(ranks)}; expected {pending}:"
                " give those that have not reported, and free the blocks if there are none"
            )
        if min(blocks, default=1) < 1:
            msg = f"block {min(blocks)} of transfer {transfer} is not held; leave null blocks out"
            raise InvalidValueError(msg)
        if not blocks:
            return
        if known is None:
            known = self._transfers[transfer] = _HeldBlocks(frozenset(ranks), set(ranks))
        known.blocks.extend(blocks)
        self._held.update(blocks)

    def ended(self, transfer: int, rank: int) -> list[BlockId]:
        """Note that a rank's part of a transfer has ended, well or not.

        Returns the blocks to free now, in the order in which they came; each as often as it was
        held. Reports that say nothing new are counted.
        """
        known = self._transfers.get(transfer)
        if known is None or rank not in known.ranks:
            self.num_unknown_reports += 1
            return []
        if rank not in known.pending:
            self.num_repeated_reports += 1
            return []
        known.pending.remove(rank)
        if known.pending:
            return []
        del self._transfers[transfer]
        self._held.subtract(known.blocks)
        for block in known.blocks:
            if not self._held[block]:
                del self._held[block]
        return known.blocks

    def __contains__(self, transfer: int) -> bool:
        """Whether blocks are held because of this transfer."""
        return transfer in self._transfers

    @property
    def blocks(self) -> frozenset[BlockId]:
        """The blocks that are held; each once."""
        return frozenset(self._held)

    @property
    def num_blocks(self) -> int:
        """How many blocks are held; each counts once."""
        return len(self._held)

    def check_integrity(self) -> None:
        """Assert the invariant of this ledger."""
        held = Counter(block for each in self._transfers.values() for block in each.blocks)
        assert held == self._held, "the counts of held blocks differ from the transfers'"
        for transfer, each in self._transfers.items():
            assert each.pending, f"transfer {transfer} has ended"
            assert each.blocks, f"transfer {transfer} holds nothing"
            assert each.pending <= each.ranks, f"transfer {transfer} waits for a stranger"
