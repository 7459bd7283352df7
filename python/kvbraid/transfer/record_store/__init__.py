"""The records of one tier: threads that write, read and verify them, within deadlines.

    RecordStore(name, tier, namespace=, used_bytes=)
        submit(job, payloads)        WRITE, PROMOTE, DROP; never waits
        poll() -> results            one status per block; never waits
        refresh(), take_changes()    what others stored or evicted

In reading order:

    options   limits and deadlines
    counts    what became of all blocks, by kind and status
    open_job  a job that is not answered yet
    queue     what waits, in the order of its keys
    schedule  what runs next, what is given up, and how it is answered
    store     RecordStore: the only caller of a tier
"""

from kvbraid.transfer.record_store.counts import TierCounts
from kvbraid.transfer.record_store.options import StoreOptions
from kvbraid.transfer.record_store.store import RecordStore

__all__ = ["RecordStore", "StoreOptions", "TierCounts"]
