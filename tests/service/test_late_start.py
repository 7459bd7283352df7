"""A service over real sockets that is started after its engine and knows the size of its pool."""

from kvbraid.engine import EngineProfile
from kvbraid.events import BlockRemoved, encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.subscriber import Subscriber

from tests.service.engines import open_publisher
from tests.service.recording_sink import TIMEOUT_S
from tests.service.stores import FULL, stored, wait_until

POD = PodId("a")


def removed(*hashes: int) -> bytes:
    return encode_batch([BlockRemoved(block_hashes=hashes, group_idx=0)])


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
