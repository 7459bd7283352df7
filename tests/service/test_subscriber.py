"""The subscriber over real sockets, with engines that fail in every way seen in the field."""

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from kvbraid.errors import InvalidValueError, ServiceError, UnknownError
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.feeds.rank_feed import GATHERED, FeedStatus, PodFeed
from kvbraid.service.feeds.subscriber import Subscriber

from tests.service.engines import (
    LOOPBACK,
    LossyPublisher,
    RawEngine,
    consecutive_ports,
    open_publisher,
    seq_bytes,
)
from tests.service.recording_sink import TIMEOUT_S, Rank, RecordingSink

A, B = PodId("a"), PodId("b")


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def subscriber(sink: RecordingSink) -> Iterator[Subscriber]:
    with Subscriber(sink, retry_max_s=0.2) as started:
        yield started


def publish(publisher: Publisher, *payloads: str) -> None:
    for payload in payloads:
        publisher.publish(payload.encode())


def holds(rank: Rank, *payloads: str, state: PodState = PodState.EXACT) -> Callable[[], bool]:
    expected = [payload.encode() for payload in payloads]
    return lambda: rank.batches == expected and rank.state is state


def only(subscriber: Subscriber) -> FeedStatus:
    (row,) = subscriber.status()
    return row


def follow(subscriber: Subscriber, publisher: Publisher, pod: PodId = A) -> None:
    subscriber.add(pod, PodFeed(publisher.endpoint, publisher.replay_endpoint))


@pytest.mark.parametrize("framing", ["topic", "bare"])
def test_a_late_joiner_is_brought_up_to_date_by_replay(
    sink: RecordingSink, subscriber: Subscriber, framing: Literal["topic", "bare"]
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK, replay_framing=framing) as publisher:
        publish(publisher, "0", "1", "2")
        follow(subscriber, publisher)
        sink.wait(holds(sink.rank("a"), "0", "1", "2"))
        publish(publisher, "3")
        sink.wait(holds(sink.rank("a"), "0", "1", "2", "3"))
        assert sink.rank("a").states == [PodState.STALE, PodState.REBUILDING, PodState.EXACT]
        row = only(subscriber)
        assert (row.last_seq, row.messages, row.replays) == (3, 4, 1)


def test_a_replay_endpoint_that_does_not_answer_degrades_until_batch_0(
    sink: RecordingSink,
) -> None:
    with RawEngine() as engine, Subscriber(sink, replay_timeout_s=0.1) as subscriber:
        subscriber.add(A, PodFeed(engine.endpoint, engine.replay_endpoint))
        sink.wait(lambda: sink.rank("a").state is PodState.DEGRADED)
        engine.wait_subscribed()
        engine.say(b"", seq_bytes(0), b"0")
        sink.wait(holds(sink.rank("a"), "0"))


def test_a_lost_batch_is_fetched_before_later_ones_are_applied(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as publisher:
        follow(subscriber, publisher)
        assert publisher.wait_subscribed(TIMEOUT_S)
        publish(publisher, "0")
        publisher.lose(b"1")
        publisher.lose(b"2")
        publish(publisher, "3", "4")
        sink.wait(holds(sink.rank("a"), "0", "1", "2", "3", "4"))
        assert sink.rank("a").losses == 0


def test_a_lost_last_batch_is_found_by_asking_a_silent_pod(sink: RecordingSink) -> None:
    with (
        open_publisher(replay_endpoint=LOOPBACK) as publisher,
        Subscriber(sink, silence_s=0.1) as subscriber,
    ):
        publish(publisher, "0")
        follow(subscriber, publisher)
        sink.wait(holds(sink.rank("a"), "0"))
        publisher.lose(b"1")
        sink.wait(holds(sink.rank("a"), "0", "1"))


def test_live_batches_wait_for_a_replay_that_takes_its_time(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint, engine.replay_endpoint))
        engine.wait_subscribed()
        client, start = engine.asked()
        assert start == 0
        engine.answer(client, b"", seq_bytes(0), b"0")
        sink.wait(lambda: sink.rank("a").batches == [b"0"])
        engine.say(b"", seq_bytes(2), b"2")
        engine.say(b"", seq_bytes(3), b"3")
        engine.say(b"not a batch")  # Once this is counted, the two before it have been read.
        sink.wait(lambda: sink.rank("a").refused["bad_frames"] == 1)
        assert sink.rank("a").batches == [b"0"]
        engine.answer(client, seq_bytes(1), b"1")
        engine.answer(client, b"", seq_bytes(2), b"2")
        engine.end(client)
        sink.wait(holds(sink.rank("a"), "0", "1", "2", "3"))


def test_malformed_replay_answers_are_counted_and_never_followed(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint, engine.replay_endpoint))
        client, _ = engine.asked()
        engine.answer(client, b"0")
        engine.answer(client, b"", b"", seq_bytes(0), b"x", b"y")
        engine.answer(client, b"short", b"x")
        engine.answer(client, b"", b"\xfe" * 8, b"x")
        engine.end(client)
        sink.wait(holds(sink.rank("a")))
        assert sink.rank("a").refused == {"bad_replay_frames": 3, "bad_replay_seq": 1}


def test_an_engine_that_dies_and_comes_back_is_rebuilt_from_0(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as first:
        publish(first, "old 0", "old 1", "old 2")
        follow(subscriber, first)
        sink.wait(holds(sink.rank("a"), "old 0", "old 1", "old 2"))
    sink.wait(lambda: sink.rank("a").state is PodState.STALE)
    with open_publisher(first.endpoint, replay_endpoint=first.replay_endpoint) as second:
        publish(second, "new 0")
        sink.wait(holds(sink.rank("a"), "new 0"))
        publish(second, "new 1")
        sink.wait(holds(sink.rank("a"), "new 0", "new 1"))
        assert sink.rank("a").resets == 1
        assert only(subscriber).last_seq == 1


def test_ranks_are_followed_on_consecutive_ports(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    base = consecutive_ports(4)
    endpoint, replay = f"tcp://127.0.0.1:{base}", f"tcp://127.0.0.1:{base + 2}"
    with (
        open_publisher(endpoint, replay_endpoint=replay) as rank_0,
        open_publisher(
            f"tcp://127.0.0.1:{base + 1}", replay_endpoint=f"tcp://127.0.0.1:{base + 3}"
        ) as rank_1,
    ):
        publish(rank_0, "zero")
        publish(rank_1, "one", "one more")
        subscriber.add(A, PodFeed(endpoint, replay, dp_size=2))
        sink.wait(holds(sink.rank("a", 0), "zero"))
        sink.wait(holds(sink.rank("a", 1), "one", "one more"))
        assert [(row.dp_rank, row.last_seq) for row in subscriber.status()] == [(0, 0), (1, 1)]


def test_a_topic_that_names_another_pod_or_model_is_counted_and_not_followed(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint, model="m@fp8"))
        engine.wait_subscribed()
        topics = [b"kv@b@m@fp8", b"kv@a@m", b"kv@a@m@fp8", b"", b"events", b"kv@b@m@fp8"]
        for seq, topic in enumerate(topics):
            engine.say(topic, seq_bytes(seq), b"%d" % seq)
        sink.wait(holds(sink.rank("a"), "0", "1", "2", "3", "4", "5"))
        assert sink.rank("a").refused == {"topic_mismatch": 3}
        assert set(sink.ranks) == {("a", 0)}
        assert only(subscriber).topic == "kv@b@m@fp8"


def test_a_bound_address_of_one_pod_belongs_to_it_whatever_the_topic(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    subscriber.add(A, PodFeed(LOOPBACK, bind=True))
    with LossyPublisher(only(subscriber).endpoint, replay_endpoint=LOOPBACK, bind=False) as engine:
        assert engine.wait_subscribed(TIMEOUT_S)
        publish(engine, "0")
        sink.wait(holds(sink.rank("a"), "0"))
    sink.wait(lambda: sink.rank("a").state is PodState.STALE)


def test_on_a_shared_bound_address_the_topic_names_the_pod(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    subscriber.add(A, PodFeed(LOOPBACK, bind=True, model="m"))
    subscriber.add(B, PodFeed(LOOPBACK, bind=True, model="m"))
    endpoints = {row.endpoint for row in subscriber.status()}
    assert len(endpoints) == 1
    (endpoint,) = endpoints
    with Publisher(endpoint, topic="kv@b@m") as second:
        with Publisher(endpoint, topic="kv@a@m") as first:
            assert first.wait_subscribed(TIMEOUT_S)
            assert second.wait_subscribed(TIMEOUT_S)
            publish(first, "a0", "a1")
            publish(second, "b0")
            sink.wait(holds(sink.rank("a"), "a0", "a1"))
            sink.wait(holds(sink.rank("b"), "b0"))
        sink.wait(lambda: sink.rank("a").state is PodState.STALE)
        publish(second, "b1")
        sink.wait(holds(sink.rank("b"), "b0", "b1"))
        assert PodState.STALE not in sink.rank("b").states[1:]


def test_on_a_shared_bound_address_a_strange_topic_is_counted_apart(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    subscriber.add(A, PodFeed(LOOPBACK, bind=True))
    subscriber.add(B, PodFeed(LOOPBACK, bind=True))
    endpoint = subscriber.status()[0].endpoint
    with Publisher(endpoint, topic="kv@c@m") as stranger, Publisher(endpoint, topic="kv@a@m") as a:
        assert stranger.wait_subscribed(TIMEOUT_S)
        assert a.wait_subscribed(TIMEOUT_S)
        publish(stranger, "c0", "c1")
        publish(a, "a0")
        sink.wait(holds(sink.rank("a"), "a0"))
        subscriber.remove(B)  # Now the address is a's alone.
        publish(stranger, "c2")
        sink.wait(lambda: sink.rank("a").refused["topic_mismatch"] > 0)
    assert subscriber.strays() == {"unknown_topic": 2}


def test_hostile_frames_are_counted_and_the_next_good_batch_is_applied(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint))
        engine.wait_subscribed()
        engine.say(b"x")
        engine.say(b"x", seq_bytes(0))
        engine.say(b"x", b"short", b"0")
        engine.say(b"x", seq_bytes(0), b"0", b"more", b"and more")
        engine.say(b"t", b"\xff" * 8, b"0")
        engine.say(b"t", seq_bytes(0), b"0")
        engine.say(b"t", seq_bytes(1), b"1", b"more", b"and more")
        engine.say(b"t", b"short", b"1")
        engine.say(b"t", seq_bytes(1), b"1")
        sink.wait(holds(sink.rank("a"), "0", "1"))
        assert sink.rank("a").refused == {"bad_frames": 6, "bad_seq": 1}


def test_a_message_cut_short_is_at_worst_a_gap(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint))
        engine.wait_subscribed()
        engine.say(b"t", seq_bytes(0), b"0")
        sink.wait(holds(sink.rank("a"), "0"))
        engine.say(b"t")
        for seq in range(1, 5):
            engine.say(b"t", seq_bytes(seq), b"%d" % seq)
        sink.wait(lambda: b"4" in sink.rank("a").batches)
        assert sink.rank("a").refused["bad_frames"] == 1


def test_a_removed_pod_is_heard_no_more_and_can_be_added_again(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with (
        open_publisher(replay_endpoint=LOOPBACK) as a,
        open_publisher(replay_endpoint=LOOPBACK) as b,
    ):
        follow(subscriber, a, A)
        follow(subscriber, b, B)
        publish(a, "a0")
        sink.wait(lambda: sink.rank("a").batches == [b"a0"])
        subscriber.remove(A)
        calls = len(sink.rank("a").states)
        publish(a, "a1")
        publish(b, "b0")
        sink.wait(holds(sink.rank("b"), "b0"))
        assert sink.rank("a").batches == [b"a0"]
        assert len(sink.rank("a").states) == calls
        assert [row.pod for row in subscriber.status()] == [B]
        follow(subscriber, a, A)
        sink.wait(holds(sink.rank("a"), "a0", "a0", "a1"))  # A new feed starts from 0.


def test_an_engine_in_the_same_process_is_followed(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with Publisher("inproc://kvbraid-test", replay_endpoint=LOOPBACK) as publisher:
        publish(publisher, "0")
        follow(subscriber, publisher)
        sink.wait(holds(sink.rank("a"), "0"))
        assert publisher.wait_subscribed(TIMEOUT_S)
        publish(publisher, "1")
        sink.wait(holds(sink.rank("a"), "0", "1"))


def test_what_cannot_be_followed_is_refused_and_leaves_nothing_behind(
    subscriber: Subscriber,
) -> None:
    with open_publisher() as publisher:
        with pytest.raises(ServiceError, match="cannot follow"):
            subscriber.add(A, PodFeed(publisher.endpoint, bind=True))
        with pytest.raises(InvalidValueError, match="tcp://HOST:PORT"):
            subscriber.add(A, PodFeed("5557"))
        with pytest.raises(InvalidValueError, match="dp_size is 0"):
            subscriber.add(A, PodFeed(publisher.endpoint, dp_size=0))
        with pytest.raises(InvalidValueError, match="use tcp, or dp_size 1"):
            subscriber.add(A, PodFeed("ipc:///tmp/kvbraid-test", dp_size=2))
        assert subscriber.status() == []
        follow(subscriber, publisher)
        with pytest.raises(InvalidValueError, match="'a' is followed already"):
            follow(subscriber, publisher)
        with pytest.raises(UnknownError, match="'b' is not followed"):
            subscriber.remove(B)


def test_a_subscriber_that_is_not_running_says_so(sink: RecordingSink) -> None:
    subscriber = Subscriber(sink)
    assert subscriber.status() == []
    assert subscriber.strays() == {}
    subscriber.close()
    with pytest.raises(ServiceError, match="not running"):
        subscriber.add(A, PodFeed(LOOPBACK))
    with pytest.raises(InvalidValueError, match="silence_s is 0"):
        Subscriber(sink, silence_s=0)


def test_batches_in_a_row_come_to_the_sink_together_and_other_things_in_between(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint, engine.replay_endpoint))
        engine.wait_subscribed()
        client, _ = engine.asked()
        for seq in (1, 2, 4, 5, 6):
            engine.say(b"", seq_bytes(seq), b"%d" % seq)
        engine.say(b"not a batch")  # Once this is counted, those before it have been read.
        sink.wait(lambda: sink.rank("a").refused["bad_frames"] == 1)
        engine.answer(client, b"", seq_bytes(0), b"0")
        engine.end(client)
        client, start = engine.asked()
        assert start == 3
        engine.end(client)
        sink.wait(holds(sink.rank("a"), "0", "1", "2", "4", "5", "6", state=PodState.DEGRADED))
        assert sink.gathered == [3, 3]
        assert sink.rank("a").losses == 1


def test_live_batches_that_wait_are_taken_in_runs_in_order_whoever_else_shares_the_address(
    subscriber: Subscriber, sink: RecordingSink
) -> None:
    """More than are ever taken at once, from two pods in turn."""
    for pod in (A, B):
        subscriber.add(pod, PodFeed(LOOPBACK, bind=True))
    endpoint = subscriber.status()[0].endpoint
    batches = [b"%d" % seq for seq in range(3 * GATHERED)]
    with Publisher(endpoint, topic="kv@a@m") as a, Publisher(endpoint, topic="kv@b@m") as b:
        assert a.wait_subscribed(TIMEOUT_S)
        assert b.wait_subscribed(TIMEOUT_S)
        for batch in batches:
            a.publish(batch)
            b.publish(batch)
        for pod in (A, B):
            sink.wait(holds(sink.rank(pod), *(batch.decode() for batch in batches)))
        assert max(sink.gathered) <= GATHERED
        assert [row.messages for row in subscriber.status()] == [len(batches)] * 2


def test_a_long_topic_is_a_bad_frame_and_is_not_kept(
    sink: RecordingSink, subscriber: Subscriber
) -> None:
    with RawEngine() as engine:
        subscriber.add(A, PodFeed(engine.endpoint))
        engine.wait_subscribed()
        engine.say(b"short", seq_bytes(0), b"0")
        engine.say(b"x" * 1_000_000, seq_bytes(1), b"1")
        engine.say(b"short", seq_bytes(1), b"1")
        sink.wait(holds(sink.rank("a"), "0", "1"))
        assert sink.rank("a").refused == {"bad_frames": 1}
        assert only(subscriber).topic == "short"
