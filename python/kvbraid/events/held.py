"""Batches that wait, by number, until all earlier ones are settled.

Every operation is O(log n): the lowest number is on top of a heap. Invariant: the heap's top is
held. Each batch counts with its overhead, so empty batches are not free.
"""

from heapq import heappop, heappush
from typing import Final

OVERHEAD_BYTES: Final = 200
"""Estimated overhead of one held batch: its objects, table entry and heap entry."""


class HeldBatches:
    """One payload per number; the order in which they came does not matter.

    Attributes:
        num_bytes: The bytes of all payloads and their overhead.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._payloads: dict[int, bytes] = {}
        self._heap: list[int] = []  # Every number held, and some lower ones that were held before.

    def __len__(self) -> int:
        """How many are held."""
        return len(self._payloads)

    def __contains__(self, seq: int) -> bool:
        """Whether this number is held."""
        return seq in self._payloads

    def __getitem__(self, seq: int) -> bytes:
        """The payload of a number that is held."""
        return self._payloads[seq]

    def numbers(self) -> list[int]:
        """Every number held, in no order."""
        return list(self._payloads)

    @staticmethod
    def cost(payload: bytes) -> int:
        """Return the bytes that it takes to hold this payload."""
        return len(payload) + OVERHEAD_BYTES

    def hold(self, seq: int, payload: bytes) -> None:
        """Keep a batch whose number is not held."""
        assert seq not in self._payloads, seq
        self._payloads[seq] = payload
        self.num_bytes += self.cost(payload)
        heappush(self._heap, seq)

    def lowest(self) -> int | None:
        """Return the lowest number held; None when nothing is."""
        return self._heap[0] if self._heap else None

    def take(self, seq: int) -> bytes | None:
        """Remove a batch and return its payload; None if it is not held."""
        payload = self._payloads.pop(seq, None)
        if payload is not None:
            self.num_bytes -= self.cost(payload)
            while self._heap and self._heap[0] not in self._payloads:
                heappop(self._heap)
        return payload

    def clear(self) -> None:
        """Hold nothing."""
        self._payloads.clear()
        self._heap.clear()
        self.num_bytes = 0

    def check_integrity(self) -> None:
        """Assert what must hold between any two operations."""
        assert self.num_bytes == sum(map(self.cost, self._payloads.values()))
        assert set(self._payloads) <= set(self._heap)
        assert self.lowest() == min(self._payloads, default=None)
