"""A gateway's choice: it feeds two pods' events to an index and picks the pod that reuses most."""

from kvbraid import FleetIndex, GroupSpec, PodId, Request, SpecKind, Topology
from kvbraid.events import BlockStored, encode_batch

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=8)
TOKENS = tuple(range(100, 116))  # Four blocks.

index = FleetIndex()
for pod, in_window in {PodId("a"): 4, PodId("b"): 2}.items():
    index.register(pod, model="m", topology=Topology(groups=(FULL, WINDOW)))
    for group, held in enumerate((4, in_window)):
        store = BlockStored(
            block_hashes=tuple(range(1, held + 1)),
            parent_block_hash=None,
            token_ids=TOKENS[: 4 * held],
            block_size=4,
            group_idx=group,
        )
        index.apply(pod, encode_batch([store]))  # A real gateway passes the bytes from ZeroMQ.
request = Request(model="m", token_ids=[*TOKENS, 7])
print("send it to", max(index.score(request).rows, key=lambda row: row.score).pod)
for why in index.explain(request).rows:
    print(why.pod, why.lower, why.limiting, ["".join(".#"[b] for b in g.held) for g in why.groups])
