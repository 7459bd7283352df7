"""A tier that is a dictionary: what every tier has to do, as simply as it can be said."""

from collections.abc import Iterable

from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.status import Status


class MemoryTier:
    """Records in memory, of which at most `max_records` fit."""

    def __init__(self, max_records: int = 1 << 30) -> None:
        self.max_records = max_records
        self.records: dict[BlockKey, bytes] = {}
        self.is_open = False

    def open(self, namespace: Namespace) -> None:
        del namespace
        self.is_open = True

    def keys(self) -> Iterable[BlockKey]:
        return list(self.records)

    def store(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        if key not in self.records and len(self.records) >= self.max_records:
            return Status.FULL
        self.records[key] = bytes(header) + bytes(payload)
        return Status.OK

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        record = self.records.get(key)
        if record is None:
            return Status.MISS
        if len(record) != header.nbytes + payload.nbytes:
            return Status.SHORT
        header[:], payload[:] = record[: header.nbytes], record[header.nbytes :]
        return Status.OK

    def drop(self, key: BlockKey) -> None:
        self.records.pop(key, None)

    def close(self) -> None:
        self.is_open = False
