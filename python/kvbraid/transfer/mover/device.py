"""Moves where the pool is memory of a device: asynchronous, in streams of their own.

    direct    run -> run              by a function of `CudaRuntime.copies`
    staged    runs -> staging -> slots, or the other way round: the device collects or spreads
              runs, and what crosses the bus is as long as what is together on the host

Invariant: a move begins after all that was computed before it was started, and has ended once its
event has. So a block is stored with what was computed, and loaded after it was zeroed. This module
imports no torch: streams and staging are protocols, and tests bring their own.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from kvbraid.layout.descriptors import Array
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.calibration import Calibration, Choice, RunSizes, Trial
from kvbraid.transfer.mover.cudart import PLAIN
from kvbraid.transfer.mover.moving import Done, Move, Pending
from kvbraid.transfer.mover.runs import Copies, Regions, joined


class CopyStreams(Protocol):
    """One stream for each kind of move, none of them the default one."""

    def begin(self, kind: Kind) -> int:
        """Let a stream wait for all that the caller's stream has got so far; return its handle."""

    def scope(self, kind: Kind) -> AbstractContextManager[object]:
        """Return what makes the operations inside it go to a stream."""

    def mark(self, kind: Kind) -> Pending:
        """Return what is over once all that a stream has got so far is."""

    def wait(self) -> None:
        """Wait for all streams."""


class Staging(Protocol):
    """Memory of the device where blocks stand as in slots, one after the other.

    Attributes:
        address: Where it begins.
        size_bytes: How long it is.
    """

    address: int
    size_bytes: int

    def takes(self, group: int) -> bool:
        """Return whether blocks of this group can be collected."""

    def collect(self, group: int, blocks: Array) -> None:
        """Copy blocks from the pool to the start of the staging memory, in this order."""

    def spread(self, group: int, blocks: Array) -> None:
        """Copy the start of the staging memory to blocks of the pool, in this order."""


class PinningState(Protocol):
    """Whether all host memory is pinned."""

    has_failed: bool


CopyRuns = Callable[[Copies, Kind, int], None]
"""Begins copies of a kind in a stream."""


class DeviceEngine:
    """Carries out moves on a device, each by the mechanism that the calibration names.

    Moves are started by the thread that computes, while its stream is the current one. Each kind
    has staging memory of its own, or none: nothing orders its stream with those of the others.

    Attributes:
        counts: Moves, by kind and choice.
        incidents: What made moves slower than they could be.
    """

    def __init__(
        self,
        *,
        copies: Mapping[str, CopyRuns],
        streams: CopyStreams,
        calibration: Calibration,
        used_bytes: tuple[int, ...],
        pinning: PinningState,
        staging: Mapping[Kind, Staging] = MappingProxyType({}),
    ) -> None:
        self.counts: Final[Counter[tuple[Kind, Choice]]] = Counter()
        self.incidents: Final[Counter[str]] = Counter()
        self._copies: Final = dict(copies)
        self._streams: Final = streams
        self._calibration: Final = calibration
        self._used_bytes: Final = used_bytes
        self._pinning: Final = pinning
        self._staging: Final = staging
        self._staged = Regions((each.address, each.size_bytes) for each in staging.values())

    def start(self, move: Move) -> Pending:
        """Begin to copy; if that raises, wait until nothing is copied any more."""
        if not len(move.copies):
            return Done()
        stream = self._streams.begin(move.kind)
        try:
            choice = self._choose(move)
            if choice.is_staged:
                self._copy_staged(move, choice.mechanism, stream)
            else:
                self._copies[choice.mechanism](move.copies, move.kind, stream)
            self.counts[move.kind, choice] += 1
            return self._streams.mark(move.kind)
        except BaseException:
            self._streams.wait()
            raise

    def close(self) -> None:
        """Wait for all that was begun."""
        self._streams.wait()

    def _choose(self, move: Move) -> Choice:
        mechanisms = tuple(self._copies)
        if self._pinning.has_failed and move.kind is not Kind.COPY:
            mechanisms = (PLAIN,)
        runs = RunSizes(move.copies.num_bytes / len(move.copies), len(move.copies))
        return self._calibration.best(move.kind, mechanisms, runs, self._size_staged(move))

    def _size_staged(self, move: Move) -> RunSizes | None:
        """Return what would cross the bus if runs were collected, None if they cannot be."""
        used_bytes, staging = self._used_bytes[move.group], self._staging.get(move.kind)
        if staging is None or staging.size_bytes < used_bytes or not staging.takes(move.group):
            return None
        if move.kind is Kind.COPY:
            return RunSizes(0, 0)
        slots, arena = np.sort(move.slots), move.read if move.kind is Kind.LOAD else move.written
        lengths = np.full(len(slots), np.uint64(used_bytes))
        num = 1 + int(np.count_nonzero(arena.are_apart(slots, lengths)))
        return RunSizes(used_bytes * len(slots) / num, num)

    def _copy_staged(self, move: Move, mechanism: str, stream: int) -> None:
        """Fill the staging memory again and again: the stream keeps what follows in order."""
        staging = self._staging[move.kind]
        num = staging.size_bytes // self._used_bytes[move.group]
        # By slots, so that those side by side are copied together.
        order = np.argsort(move.slots) if len(move.slots) else np.arange(len(move.blocks))
        for begin in range(0, len(order), num):
            mine = order[begin : begin + num]
            with self._streams.scope(move.kind):
                if move.kind is not Kind.LOAD:
                    staging.collect(move.group, move.blocks[mine])
                if move.kind is Kind.COPY:
                    staging.spread(move.group, move.others[mine])
                else:
                    copies = self._between(move, move.slots[mine], staging.address)
                    self._copies[mechanism](copies, move.kind, stream)
                if move.kind is Kind.LOAD:
                    staging.spread(move.group, move.blocks[mine])

    def _between(self, move: Move, slots: Array, address: int) -> Copies:
        """Return the copies between the start of staging memory and these slots."""
        used_bytes = np.uint64(self._used_bytes[move.group])
        staged = np.uint64(address) + np.arange(len(slots), dtype=np.uint64) * used_bytes
        lengths = np.full(len(slots), used_bytes)
        if move.kind is Kind.LOAD:
            return joined(Copies(slots, staged, lengths), move.read, self._staged)
        return joined(Copies(staged, slots, lengths), self._staged, move.written)


def trial_copies(trial: Trial, device: int, other: int) -> Copies:
    """Return the copies of a trial between two memories: runs in order there, and here in none."""
    length = np.uint64(trial.run_bytes)
    places = np.arange(trial.num_runs, dtype=np.uint64)
    mixed = np.random.default_rng(trial.num_runs).permutation(places)
    here = np.uint64(device) + mixed * length
    there = np.uint64(other) + places * length
    lengths = np.full(trial.num_runs, length)
    if trial.kind is Kind.LOAD:
        return Copies(there, here, lengths)
    return Copies(here, there, lengths)
