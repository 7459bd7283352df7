"""A real engine's feed and a real index, when payloads name a rank that is not registered.

With external data parallelism each engine is a pod of one rank, and its payloads say which rank of
the deployment it is.
"""

import time
from collections.abc import Iterator

import pytest
from kvbraid.events import BlockStored, Event, encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.service.engines import LOOPBACK, RawEngine, open_publisher, seq_bytes
from tests.service.recording_sink import TIMEOUT_S

POD = PodId("a")
FULL = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4),))
PROMPT = tuple(range(9))
STORE = BlockStored(
    block_hashes=(1, 2), parent_block_hash=None, token_ids=PROMPT[:8], block_size=4, group_idx=0
)

Row = tuple[int, str, int, int]


@pytest.fixture
def index() -> FleetIndex:
    index = FleetIndex()
    index.register(POD, model="m", dp_size=1, topology=FULL)
    return index


@pytest.fixture
def subscriber(index: FleetIndex) -> Iterator[Subscriber]:
    with Subscriber(index, retry_max_s=0.2, replay_timeout_s=TIMEOUT_S) as started:
        yield started


def of_rank_3(*events: Event, ts: float = 0.0) -> bytes:
    return encode_batch(events, dp_rank=3, ts=ts)


def rows(index: FleetIndex) -> list[Row]:
    """Rank, state, lower and upper bound of every row."""
    answer = index.score(Request(model="m", token_ids=PROMPT)).rows
    return [(row.dp_rank, row.state.value, row.lower, row.upper) for row in answer]


def wait_for(index: FleetIndex, *expected: Row) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (actual := rows(index)) != [*expected]:
        assert time.monotonic() < deadline, actual
        time.sleep(0.01)
    index.check_integrity()


def test_a_gap_a_disconnection_and_a_restart_reach_a_rank_that_only_payloads_name(
    index: FleetIndex, subscriber: Subscriber
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as engine:
        subscriber.add(POD, PodFeed(engine.endpoint, engine.replay_endpoint))
        assert engine.wait_subscribed(TIMEOUT_S)
        engine.publish(of_rank_3(STORE))
        wait_for(index, (0, "exact", 0, 0), (3, "exact", 8, 8))
        engine.lose(of_rank_3(), is_buffered=False)
        engine.publish(of_rank_3())
        wait_for(index, (0, "degraded", 0, 8), (3, "degraded", 0, 8))
    wait_for(index, (0, "stale", 0, 8), (3, "stale", 0, 8))
    with open_publisher(engine.endpoint, replay_endpoint=engine.replay_endpoint) as restarted:
        restarted.publish(of_rank_3(ts=9.0))
        wait_for(index, (0, "exact", 0, 0), (3, "exact", 0, 0))


def test_while_a_replay_is_under_way_a_rank_that_only_payloads_name_is_rebuilding(
    index: FleetIndex, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(POD, PodFeed(engine.endpoint, engine.replay_endpoint))
        client, start = engine.asked()
        assert start == 0
        engine.answer(client, b"", seq_bytes(0), of_rank_3(STORE))
        wait_for(index, (0, "rebuilding", 0, 8), (3, "rebuilding", 0, 8))
        engine.end(client)
        wait_for(index, (0, "exact", 0, 0), (3, "exact", 8, 8))
        # A number that comes again with other bytes: the engine restarted, and holds nothing.
        engine.wait_subscribed()
        engine.say(b"", seq_bytes(0), of_rank_3(ts=9.0))
        client, start = engine.asked()
        assert start == 0
        wait_for(index, (0, "rebuilding", 0, 8), (3, "rebuilding", 0, 8))
        engine.answer(client, b"", seq_bytes(0), of_rank_3(ts=9.0))
        engine.end(client)
        wait_for(index, (0, "exact", 0, 0), (3, "exact", 0, 0))
