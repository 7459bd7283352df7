"""A gateway that follows an engine over ZeroMQ and asks its index from an event loop.

The engine is a publisher with the engines' own wire. It stores a prompt before anybody listens, so
the subscriber asks for what it has missed. Later the engine evicts the end of a window.
"""

import asyncio

from kvbraid import (
    FleetIndex,
    GroupSpec,
    PodFeed,
    PodId,
    PodState,
    Request,
    SpecKind,
    Subscriber,
    Topology,
)  # fmt: skip
from kvbraid.events import BlockRemoved, BlockStored, encode_batch
from kvbraid.service.feeds.publisher import Publisher

POD = PodId("a")
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=8)
TOKENS = tuple(range(100, 116))  # Four blocks.
ANYWHERE = "tcp://127.0.0.1:0"


def stored(group: int) -> BlockStored:
    """The event of a prompt that one group keeps whole."""
    return BlockStored(
        block_hashes=(1, 2, 3, 4), parent_block_hash=None, token_ids=TOKENS, block_size=4,
        group_idx=group,
    )  # fmt: skip


async def caught_up(subscriber: Subscriber, seq: int) -> None:
    """Wait until the index has everything up to message `seq`."""
    while (row := subscriber.status()[0]).state is not PodState.EXACT or row.last_seq != seq:
        await asyncio.sleep(0.01)


async def gateway(engine: Publisher, index: FleetIndex, subscriber: Subscriber) -> None:
    """Follow the engine and ask twice."""
    request = Request(model="m", token_ids=[*TOKENS, 7])
    index.register(POD, model="m", topology=Topology(groups=(FULL, WINDOW)))
    subscriber.add(POD, PodFeed(engine.endpoint, engine.replay_endpoint))
    await caught_up(subscriber, 0)
    print("after the replay:", (await index.score_async(request)).rows[0].lower, "of 17 tokens")
    engine.publish(encode_batch([BlockRemoved(block_hashes=(4,), group_idx=1)]))
    await caught_up(subscriber, 1)
    print("after an eviction:", (await index.score_async(request)).rows[0].lower, "of 17 tokens")


fleet = FleetIndex()
with Publisher(ANYWHERE, replay_endpoint=ANYWHERE, bind=True) as one, Subscriber(fleet) as feed:
    one.publish(encode_batch([stored(group=0), stored(group=1)]))
    asyncio.run(gateway(one, fleet, feed))
