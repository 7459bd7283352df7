"""Blocks in an object store (S3, GCS, Azure, or memory as here): a tier of one's own."""

from collections.abc import Iterator

import obstore
from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Item, Job, Kind
from kvbraid.transfer.keys import BlockKey, Namespace
from kvbraid.transfer.record_store import RecordStore
from kvbraid.transfer.records import pages
from kvbraid.transfer.status import Status
from obstore.store import MemoryStore, ObjectStore


class ObjectTier:
    """Records as objects, each named by its namespace and its key."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    def open(self, namespace: Namespace) -> None:
        self.prefix = f"kvbraid/{namespace.digest}/"

    def keys(self) -> Iterator[BlockKey]:
        for batch in obstore.list(self.objects, self.prefix):
            for found in batch:
                yield BlockKey.from_bytes(bytes.fromhex(found["path"].rpartition("/")[2]))

    def store(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        obstore.put(self.objects, self.path(key), [header, payload])
        return Status.OK

    def load(self, key: BlockKey, header: memoryview, payload: memoryview) -> Status:
        try:
            record = memoryview(obstore.get(self.objects, self.path(key)).bytes())
        except FileNotFoundError:
            return Status.MISS
        if record.nbytes != header.nbytes + payload.nbytes:
            return Status.SHORT
        header[:], payload[:] = record[: header.nbytes], record[header.nbytes :]
        return Status.OK

    def drop(self, key: BlockKey) -> None:
        obstore.delete(self.objects, self.path(key))

    def close(self) -> None: ...

    def path(self, key: BlockKey) -> str:
        return self.prefix + key.to_bytes().hex()


if __name__ == "__main__":
    names = Namespace(layout="plan", model="m", hash_algorithm="sha256", hash_seed="0")
    store = RecordStore("s3", ObjectTier(MemoryStore()), namespace=names, used_bytes=[9])
    item = Item(0, BlockId(0), BlockId(0), BlockKey(b"hash of a prefix", 0))
    written, loaded = pages(), pages()
    written[:9] = b"its block"
    for number, kind, block in ((1, Kind.WRITE, written), (2, Kind.PROMOTE, loaded)):
        store.submit(Job(number=number, kind=kind, items=(item,)), [block])
        print(kind, *store.wait(60.0)[0].statuses, bytes(loaded[:9]))
