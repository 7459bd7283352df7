"""A gateway's choice: pods ranked by score, less their load, and a way on without an answer.

`choose` takes the rows of `FleetIndex.score`. `ask` gets the same rows from `kvbraid serve`.
"""

from array import array
from collections.abc import Mapping, Sequence
from random import SystemRandom

from kvbraid import FleetIndex, GroupSpec, PodId, PodState, Request, SpecKind, Topology
from kvbraid.errors import ServiceError
from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet.answer import PodScore
from kvbraid.service.http.client import Client, TokenBytes

Rank = tuple[PodId, int]
TOKENS_PER_REQUEST = 256  # A request in flight delays the next one as so many tokens do.
chance = SystemRandom()


def ask(server: Client, model: str, tokens: Sequence[int]) -> Sequence[PodScore]:
    """Ask a server for its rows; there are none if it refuses or does not answer in time."""
    try:
        return server.score(TokenBytes(array("I", tokens).tobytes()), {"model": model}).pods
    except ServiceError:
        return ()


def choose(rows: Sequence[PodScore], load: Mapping[Rank, int]) -> Rank:
    """Pick one of the gateway's ranks; `load` has the number of requests in flight on each.

    A stale pod is not connected, so it is picked only if all are stale. Load alone decides where
    no rank has anything, or where there are no rows. Chance decides among equals.
    """
    stale = {(row.pod, row.dp_rank) for row in rows if row.state is PodState.STALE}
    score = {(row.pod, row.dp_rank): row.score for row in rows}
    worth = {
        rank: score.get(rank, 0.0) - TOKENS_PER_REQUEST * load[rank]
        for rank in (load.keys() - stale) or load
    }
    return chance.choice([rank for rank in worth if worth[rank] == max(worth.values())])


if __name__ == "__main__":
    full = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=128)
    window = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=128, window=256)
    prompt, index, a, b = tuple(range(1024)), FleetIndex(), PodId("a"), PodId("b")
    for pod, in_window in {a: 8, b: 6}.items():  # b has lost the end of its window.
        index.register(pod, model="m", topology=Topology(groups=(full, window)))
        for group, held in enumerate((8, in_window)):
            store = BlockStored(
                block_hashes=tuple(range(held)), parent_block_hash=None, block_size=128,
                token_ids=prompt[: 128 * held], group_idx=group,
            )  # fmt: skip
            index.apply(pod, encode_batch([store]))  # A real gateway has a Subscriber.
    answer = index.score(Request(model="m", token_ids=[*prompt, 7])).rows
    print("scores:", {row.pod: row.score for row in answer})
    for load in ({(a, 0): 0, (b, 0): 0}, {(a, 0): 2, (b, 0): 0}):
        print(f"with {load[a, 0]} requests at a, send it to", choose(answer, load)[0])
