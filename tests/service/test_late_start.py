"""A service over real sockets that is started after its engine and knows the size of its pool."""

from collections.abc import Callable
from time import monotonic, sleep

from kvbraid.engine import EngineProfile
from kvbraid.events import BlockRemoved, BlockStored, encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.service.engines import open_publisher
from tests.service.recording_sink import TIMEOUT_S

POD = PodId("a")
FULL = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4),))


def stored(first: int, blocks: int) -> bytes:
    """So many blocks of a prompt of its own."""
    event = BlockStored(
        block_hashes=tuple(range(first, first + blocks)),
        parent_block_hash=None,
        token_ids=tuple(range(4 * first, 4 * (first + blocks))),
        block_size=4,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return encode_batch([event])


def removed(*hashes: int) -> bytes:
    return encode_batch([BlockRemoved(block_hashes=hashes, group_idx=0)])


def wait_until(is_so: Callable[[], bool]) -> None:
    end = monotonic() + TIMEOUT_S
    while not is_so():
        assert monotonic() < end
        sleep(0.01)


def test_a_pod_that_was_met_late_is_exact_again_when_its_pool_is_known() -> None:
    index = FleetIndex()
    index.register(POD, model="m", topology=FULL, engine=EngineProfile(num_gpu_blocks=9))
    unseen = Request(model="m", token_ids=range(100, 133))

    def bounds() -> tuple[PodState, int, int]:
        (row,) = index.score(unseen).rows
        return row.state, row.lower, row.upper

    with open_publisher() as publisher, Subscriber(index) as subscriber:
        publisher.publish(stored(0, 8))
        subscriber.add(POD, PodFeed(publisher.endpoint))
        assert publisher.wait_subscribed(TIMEOUT_S)
        publisher.publish(removed(0, 1, 2))
        publisher.publish(stored(50, 3))
        wait_until(lambda: bounds() == (PodState.DEGRADED, 0, 20))
        publisher.publish(removed(3, 4, 5, 6, 7))
        wait_until(lambda: bounds() == (PodState.EXACT, 0, 0))
        (info,) = index.pods()
        assert (info.state, info.reason) == (PodState.EXACT, "")
