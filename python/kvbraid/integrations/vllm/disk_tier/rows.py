"""A directory whose reads can be given up while they hang.

Invariant: after `leave`, no read of these keys writes into the buffer that it was called with.
vLLM takes the row of a load that has failed for another block at once; a read that ends later
must not touch it. So each thread reads into pages of its own and copies from there.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.records import PAGE_BYTES, pages
from kvbraid.transfer.status import Status


class LeavableDisk(DiskTier):
    """A `DiskTier` whose payloads are all of `row_bytes`, a multiple of a page."""

    def __init__(
        self, directory: str | os.PathLike[str], *, max_bytes: int, row_bytes: int
    ) -> None:
        super().__init__(directory, max_bytes=max_bytes)
        self._num_pages: Final = row_bytes // PAGE_BYTES
        self._own: Final = threading.local()
        self._copying: Final = threading.Lock()
        self._left: Counter[BlockKey] = Counter()

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        """Read a record, and copy it unless it was left meanwhile."""
        if not hasattr(self._own, "row"):
            self._own.row = pages(self._num_pages)
        status = super().load(key, header, self._own.row)
        with self._copying:
            if key in self._left:
                return Status.IO_ERROR
            if status is Status.OK:
                np.copyto(np.asarray(payload), np.asarray(self._own.row))
        return status

    def leave(self, keys: Iterable[BlockKey]) -> None:
        """Give up the reads of these keys; waits for a copy that has begun, not for the disk."""
        with self._copying:
            self._left.update(keys)

    def forgive(self, keys: Iterable[BlockKey]) -> None:
        """Note that reads which were left have ended: once for each call of `leave`."""
        with self._copying:
            self._left -= Counter(keys)
