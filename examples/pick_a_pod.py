"""Ask which pod can reuse most of a request: bytes from engines in, token counts out."""

from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=8)
TOKENS = tuple(range(100, 116))  # Four blocks.

index = FleetIndex()
# Both hold four blocks for full attention; b has only two for its window layers.
for pod, in_window in {PodId("a"): 4, PodId("b"): 2}.items():
    index.register(pod, model="m", topology=Topology(groups=(FULL, WINDOW)))
    stores = [
        BlockStored(
            block_hashes=tuple(range(1, held + 1)),
            parent_block_hash=None,
            token_ids=TOKENS[: 4 * held],
            block_size=4,
            group_idx=group,
        )
        for group, held in enumerate((4, in_window))
    ]
    index.apply(pod, encode_batch(stores))  # A real gateway passes on what ZeroMQ brought.
for row in index.score(Request(model="m", token_ids=[*TOKENS, 7])).rows:
    print(row.pod, row.lower, row.exactness, row.limiting)
