"""A host tier without bytes: which blocks of which groups a load could read.

It keeps everything that was ever stored, less the records that failed loads have spoilt. All
groups have blocks of one size, so a record is named by its group and by the hash of the whole
prefix that the block, or the state, ends. Whoever stores a block has stored the blocks of all full
groups before it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kvbraid.loads import Record
from kvbraid.resume import needed_blocks
from kvbraid.sim.traces.prefix_hashes import num_leading
from kvbraid.spec import GroupSpec

TIER: Final = "host"


class Host:
    """The records, and the resume rule over them.

    Args:
        groups: The groups of the model, with blocks of one size, at least one of them full.
    """

    def __init__(self, groups: Sequence[GroupSpec]) -> None:
        (self.block_size,) = {group.block_size for group in groups}
        self._full = {index for index, group in enumerate(groups) if group.kind.is_full}
        self._others = [(i, group) for i, group in enumerate(groups) if i not in self._full]
        assert self._full
        self._records: dict[bytes, int] = {}  # One bit per group that stored the prefix's end.
        self._spoilt: dict[bytes, set[int]] = {}  # Groups whose record was dropped since.

    def store(self, groups: Iterable[int], hashes: Collection[bytes]) -> None:
        """Store the blocks, or states, of some groups that end these prefixes."""
        bits = sum(1 << group for group in groups)
        records = self._records
        for prefix in hashes:
            records[prefix] = records.get(prefix, 0) | bits
        for prefix in self._spoilt.keys() & hashes:
            self._spoilt[prefix] -= {group for group in self._spoilt[prefix] if bits >> group & 1}
            if not self._spoilt[prefix]:
                del self._spoilt[prefix]

    def record(self, group: int, prefix: bytes) -> Record:
        """Name a record."""
        return Record(TIER, bytes([group]) + prefix)

    def drop(self, record: Record) -> None:
        """Drop a record."""
        self._spoilt.setdefault(record.key[1:], set()).add(record.key[0])

    def holds(self, group: int, prefix: bytes) -> bool:
        """Return whether a record is there."""
        is_stored = self._records.get(prefix, 0) >> group & 1
        return bool(is_stored) and group not in self._spoilt.get(prefix, ())

    def longest(self, hashes: Sequence[bytes], num_hit_tokens: int, num_tokens: int) -> int:
        """Return the longest boundary at which a prompt can resume, its hit in the pool included.

        It is in tokens. Everything that a resume there needs is in the hit or stored here.

        Args:
            hashes: The hashes of the prompt's whole blocks.
            num_hit_tokens: The hit, which ends where a block ends.
            num_tokens: Tokens of the prompt; at least one of them is left to compute.
        """
        hit = num_hit_tokens // self.block_size
        end = min(self._num_full(hashes, hit), (num_tokens - 1) // self.block_size)
        for boundary in range(end, hit, -1):
            if all(self._serves(hashes, hit, boundary, *group) for group in self._others):
                return boundary * self.block_size
        return num_hit_tokens

    def _num_full(self, hashes: Sequence[bytes], hit: int) -> int:
        """Return how many leading blocks the hit and all full groups hold together."""
        end = max(hit, num_leading(range(len(hashes)), lambda p: hashes[p] in self._records))
        if self._spoilt.keys().isdisjoint(hashes[hit:end]):
            return end
        gaps = (p for p in range(hit, end) if self._full & self._spoilt.get(hashes[p], set()))
        return next(gaps, end)

    def _serves(
        self, hashes: Sequence[bytes], hit: int, boundary: int, index: int, group: GroupSpec
    ) -> bool:
        needed = needed_blocks(group, boundary * self.block_size)
        positions = range(max(needed.start, hit), needed.stop)
        return all(self.holds(index, hashes[position]) for position in positions)
