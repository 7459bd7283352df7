"""The host tier: one arena of equal slots, in which a block of any group fits into any slot.

    piece    | slot 1 | slot 2 | ... | slot n |      1 GiB; further pieces follow in order
    slot     | run | run | ... | up to 4 KiB | lost |      the runs of a block, in order

Invariant: slots 1 to `num_ready_slots` have memory, at addresses that never change, and slot 0 has
none, as block 0 of an index is its null block. A slot is as large as the largest group's block in
steps of 4 KiB: what a smaller block leaves of it is lost, and there is no split between groups to
tune. This module copies nothing and decides nothing of what lies in a slot.
"""

import mmap
import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvbraid.errors import InvalidValueError
from kvbraid.layout.plan import MemoryPlan
from kvbraid.reading import SIZE, check

PAGE_BYTES: Final = 4096
"""Addresses and lengths of payloads are multiples of it, as direct I/O wants them."""

PIECE_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSlots:
    """How an arena is divided. Numbers alone: a scheduler computes what its workers compute.

    Attributes:
        used_bytes: The bytes of one block, for each group.
        slot_bytes: The bytes of one slot.
        num_slots: How many slots there are: 1 to `num_slots`. An index of them has one block more.
    """

    used_bytes: tuple[int, ...]
    slot_bytes: int
    num_slots: int

    @classmethod
    def of(cls, plan: MemoryPlan, size_bytes: int) -> Self:
        """Return as many slots as fit into `size_bytes`.

        Raises:
            InvalidValueError: Not even one fits.
        """
        check("size_bytes", size_bytes, SIZE)
        used_bytes = tuple(group.used_bytes for group in plan.groups)
        slot_bytes = in_pages(max(used_bytes))
        if size_bytes < slot_bytes:
            msg = f"size_bytes is {size_bytes}; one block takes {slot_bytes}: give at least that"
            raise InvalidValueError(msg)
        return cls(
            used_bytes=used_bytes, slot_bytes=slot_bytes, num_slots=size_bytes // slot_bytes
        )

    def payload_bytes(self, group: int) -> int:
        """Return the bytes of a group's payload: those of its block, in steps of 4 KiB."""
        return in_pages(self.used_bytes[group])


class Pinning(Protocol):
    """Makes memory such that a device reads and writes it by itself."""

    def pin(self, address: int, size_bytes: int) -> None:
        """Pin a range. Any exception says that it is not pinned."""

    def unpin(self, address: int) -> None:
        """Give a pinned range back, or raise RuntimeError."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory of consecutive slots."""

    first_slot: int
    memory: NDArray[np.uint8]
    is_pinned: bool

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.memory.ctypes.data)


class HostTier:
    """The arena's memory, made piece by piece by a thread of its own from the start on.

    A piece that cannot be pinned is used as it is: copies from and to it are slower, not wrong.
    At the first piece that cannot be made the arena stays as small as it is.

    Attributes:
        slots: How it is divided.
        num_ready_slots: Slots 1 to this one can be used. It only grows, until `close`.
        num_unpinned_slots: How many of them could not be pinned.
        failure: Why the arena stayed smaller than planned, or was not unpinned; "" if neither.
    """

    def __init__(
        self,
        slots: HostSlots,
        *,
        piece_bytes: int = PIECE_BYTES,
        pinning: Pinning | None = None,
    ) -> None:
        check("piece_bytes", piece_bytes, SIZE)
        self.slots: Final = slots
        self.num_ready_slots = 0
        self.num_unpinned_slots = 0
        self.failure = ""
        self._slots_per_piece: Final = max(1, piece_bytes // slots.slot_bytes)
        self._pinning = pinning
        self._pieces: list[Piece] = []
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._make, name="kvbraid-host", daemon=True)
        self._thread.start()

    @property
    def num_pieces(self) -> int:
        """How many pieces there are."""
        return len(self._pieces)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until no more pieces come; return whether that is so."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def payload(self, slot: int, group: int) -> memoryview:
        """Return the bytes that a record of this group has: those of the block, in steps of 4 KiB.

        The view is writable, and begins at a multiple of 4 096. Its memory lives as long as it.

        Raises:
            InvalidValueError: A slot that is not ready.
        """
        if not 1 <= slot <= self.num_ready_slots:
            msg = f"slot is {slot}; slots 1 to {self.num_ready_slots} are ready"
            raise InvalidValueError(msg)
        piece = self._pieces[(slot - 1) // self._slots_per_piece]
        begin = (slot - piece.first_slot) * self.slots.slot_bytes
        return piece.memory.data[begin : begin + self.slots.payload_bytes(group)]

    def addresses(self, slots: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return where slots begin; each of them has to be ready."""
        per_piece = np.uint64(self._slots_per_piece)
        starts = np.array([piece.address for piece in self._pieces], np.uint64)
        number, inside = np.divmod(slots - np.uint64(1), per_piece)
        found: NDArray[np.uint64] = starts[number] + inside * np.uint64(self.slots.slot_bytes)
        return found

    def regions(self) -> list[tuple[int, int]]:
        """Return address and length of each piece; no copy may cross their borders."""
        return [(piece.address, piece.memory.nbytes) for piece in list(self._pieces)]

    def close(self) -> None:
        """End the thread, unpin and let go of the memory; nothing may be copied any more.

        It waits for the piece that is being made. A payload that somebody still holds stays valid.
        """
        self._is_closing.set()
        self._thread.join()
        self.num_ready_slots = 0
        for piece in self._pieces:
            if piece.is_pinned and self._pinning is not None:
                try:
                    self._pinning.unpin(piece.address)
                except RuntimeError as error:  # A device that is gone has nothing pinned any more.
                    self.failure = str(error)
        self._pieces.clear()

    def check_integrity(self) -> None:
        """Assert that the pieces hold the ready slots, in order, aligned and apart."""
        num_ready, pieces = self.num_ready_slots, list(self._pieces)
        assert [piece.first_slot for piece in pieces] == [
            1 + number * self._slots_per_piece for number in range(len(pieces))
        ]
        held = [piece.memory.nbytes // self.slots.slot_bytes for piece in pieces]
        assert all(each == self._slots_per_piece for each in held[:-1])
        assert num_ready <= sum(held) <= self.slots.num_slots
        assert num_ready == sum(held) or self._thread.is_alive()
        assert all(piece.address % PAGE_BYTES == 0 for piece in pieces)
        ranges = sorted(self.regions())
        assert all(sum(before) <= after[0] for before, after in pairwise(ranges))

    def _make(self) -> None:
        """Make one piece after the other; a slot is ready once all of its piece is."""
        while self.num_ready_slots < self.slots.num_slots and not self._is_closing.is_set():
            num = min(self._slots_per_piece, self.slots.num_slots - self.num_ready_slots)
            try:
                memory = _allocated(num * self.slots.slot_bytes)
            except (OSError, MemoryError, OverflowError, ValueError) as error:
                self.failure = f"{num} slots of {self.slots.slot_bytes} bytes: {error}"
                return
            is_pinned = self._is_pinned(memory)
            self._pieces.append(Piece(1 + self.num_ready_slots, memory, is_pinned))
            self.num_unpinned_slots += 0 if is_pinned else num
            self.num_ready_slots += num

    def _is_pinned(self, memory: NDArray[np.uint8]) -> bool:
        """Pin memory if a device needs that; return whether it is as that needs it."""
        if self._pinning is None:
            return True
        try:
            self._pinning.pin(int(memory.ctypes.data), memory.nbytes)
        except Exception:  # noqa: BLE001 - whatever a driver says, the memory is there; it is counted.
            return False
        return True


def in_pages(size_bytes: int) -> int:
    """Return a size in whole steps of 4 KiB."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _allocated(size_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed memory of this process alone, at a page's border, with all pages there."""
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(mapping, np.uint8)
    memory[::PAGE_BYTES] = 0  # A page that comes with its first copy would slow that down.
    return memory
