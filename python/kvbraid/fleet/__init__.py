"""An index of what every pod of a fleet holds: it tells how much of a request each can reuse.

1. `register` makes a pod known to a `FleetIndex`.
2. `apply` takes in a batch of events, as the pod's engine published it.
3. `score` says, for a `Request`, what each pod can reuse: at least `lower` and at most `upper`
   tokens. The two are equal where the events decide the answer.
4. `explain` says why, group by group.
5. `promise` notes a request on its way to a pod, until `withdraw` or until its events tell of it.
6. `seen` says how much of a request was ever there, wherever it was and whatever became of it.
7. `set_state` notes how far the pod's history is known. An answer can be exact only while the
   state is `PodState.EXACT`; `reset` and `lose` note a restart and lost messages.

A pod that has published one prompt of 64 tokens in blocks of 16:

>>> from kvbraid.events import BlockStored, encode_batch
>>> from kvbraid.fleet import FleetIndex, Request
>>> from kvbraid.ids import PodId, PodState
>>> index = FleetIndex()
>>> index.register(PodId("a"), model="m")
>>> stored = BlockStored(
...     block_hashes=(1, 2, 3, 4), parent_block_hash=None, token_ids=tuple(range(64)),
...     block_size=16, group_idx=0, kv_cache_spec_kind="full_attention",
... )
>>> index.apply(PodId("a"), encode_batch([stored]))
Applied(stored=4, removed=0, cleared=0, refused=0)
>>> request = Request(model="m", token_ids=[*range(64), 7])
>>> [row] = index.score(request).rows
>>> row.lower, row.upper, row.exactness
(64, 64, 'exact')
>>> [why] = index.explain(request).rows
>>> why.groups[0].held
[True, True, True, True]
>>> index.set_state(PodId("a"), PodState.STALE, reason="no connection")
>>> [row] = index.score(request).rows
>>> row.lower, row.upper, row.exactness
(0, 64, 'bound')

In reading order:

    request       what a caller asks
    answer        what it gets
    index         the face: event bytes in, scores out
    registration  a pod on its way to the core
    weights       what a token on each tier is worth
    awaiting      a score inside an event loop
    fields        what is wrong with a field
"""

from kvbraid.fleet.answer import (
    Applied,
    Bounds,
    Columns,
    Exactness,
    Explanation,
    GroupStrip,
    KnownGroup,
    Limiting,
    PodExplanation,
    PodInfo,
    PodScore,
    Scores,
    Seen,
)
from kvbraid.fleet.index import FleetIndex, IndexOptions, Keys, Presence
from kvbraid.fleet.request import Request, Strategy
from kvbraid.hashing import MediaItem

__all__ = [
    "Applied",
    "Bounds",
    "Columns",
    "Exactness",
    "Explanation",
    "FleetIndex",
    "GroupStrip",
    "IndexOptions",
    "Keys",
    "KnownGroup",
    "Limiting",
    "MediaItem",
    "PodExplanation",
    "PodInfo",
    "PodScore",
    "Presence",
    "Request",
    "Scores",
    "Seen",
    "Strategy",
]
