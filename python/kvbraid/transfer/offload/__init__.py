"""The scheduler's side of moving blocks: what is stored and loaded, and what tiers hold. No bytes.

    cache -> storing -> host index -> writing -> record indexes
    cache <- loading <- host index <- promoting <- record indexes

In reading order:

    options           the limits
    counts            what is counted
    index             what one tier holds, and what of it is pinned
    announcing        events of what tiers hold
    retracting        which device blocks the copies came from
    tracking          jobs, until the last rank has answered
    tiers             what all parts below share
    storing           device blocks into host slots
    writing           host slots into records, and records that are to go
    promoting         records into host slots
    lookup            what a request can load
    attributing       which tier the tokens of a load are counted under
    loading           host slots, and blocks of the pool, into device blocks
    manager           the face
"""

from kvbraid.transfer.offload.counts import Drop, OffloadCounts
from kvbraid.transfer.offload.lookup import Again, Found, LoadSource
from kvbraid.transfer.offload.manager import OffloadManager
from kvbraid.transfer.offload.options import OffloadOptions

__all__ = [
    "Again",
    "Drop",
    "Found",
    "LoadSource",
    "OffloadCounts",
    "OffloadManager",
    "OffloadOptions",
]
