"""A failure in one feed affects only this feed; a failure of the thread is shown and repaired."""

import contextlib
import resource
import threading
from collections.abc import Callable, Iterator

import pytest
from kvbraid.errors import InvalidValueError, ServiceError
from kvbraid.ids import PodId, PodState
from kvbraid.service import capacity
from kvbraid.service.errors import RefusalError
from kvbraid.service.feeds.follower import Follower
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.reactor import Reactor
from kvbraid.service.feeds.replay import Replay
from kvbraid.service.feeds.subscriber import Subscriber

from tests.service.engines import LOOPBACK, RawEngine, open_publisher, seq_bytes
from tests.service.recording_sink import TIMEOUT_S, Applied, RecordingSink

A, B = PodId("a"), PodId("b")
POISON = b"poison"


class PanicError(BaseException):
    """As a panic of the native core: no Exception."""


class FussySink(RecordingSink):
    """Raises `error` at every poisonous batch, while there is one to raise."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error

    def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
        if payload == POISON and self.error is not None:
            raise self.error
        return super().apply(pod, payload, dp_rank=dp_rank)


@pytest.fixture
def sink() -> FussySink:
    return FussySink()


@pytest.fixture
def subscriber(sink: FussySink) -> Iterator[Subscriber]:
    with Subscriber(sink, retry_max_s=0.2) as started:
        yield started


def follow(subscriber: Subscriber, publisher: Publisher, pod: PodId) -> None:
    subscriber.add(pod, PodFeed(publisher.endpoint, publisher.replay_endpoint))


def holds(sink: RecordingSink, pod: PodId, *payloads: bytes) -> Callable[[], bool]:
    rank = sink.rank(pod)
    return lambda: rank.batches == [*payloads] and rank.state is PodState.EXACT


def failed(sink: RecordingSink, pod: PodId, times: int = 1) -> Callable[[], bool]:
    rank = sink.rank(pod)
    return lambda: rank.refused["feed_failed"] >= times and rank.state is PodState.STALE


@pytest.mark.parametrize("error", [RuntimeError("broken sink"), PanicError("core")])
def test_a_batch_that_raises_costs_its_own_pod_alone_which_starts_again_from_0(
    sink: FussySink, subscriber: Subscriber, error: BaseException
) -> None:
    sink.error = error
    with (
        open_publisher(replay_endpoint=LOOPBACK) as bad,
        open_publisher(replay_endpoint=LOOPBACK) as good,
    ):
        bad.publish(b"0")
        good.publish(b"0")
        follow(subscriber, bad, A)
        follow(subscriber, good, B)
        sink.wait(holds(sink, A, b"0"))
        sink.wait(holds(sink, B, b"0"))
        bad.publish(POISON)
        sink.wait(failed(sink, A, times=2))  # Also what the replay brings is poisonous.
        assert sink.rank("a").reason.startswith(f"the feed failed: {type(error).__name__}: ")
        good.publish(b"1")
        sink.wait(holds(sink, B, b"0", b"1"))
        assert PodState.STALE not in sink.rank("b").states[1:]
        sink.error = None
        sink.wait(holds(sink, A, b"0", POISON))
        assert [row.failures > 0 for row in subscriber.status()] == [True, False]
        assert subscriber.failure is None


def test_a_pod_that_fails_leaves_its_neighbour_on_a_shared_address_alone(
    sink: FussySink, subscriber: Subscriber
) -> None:
    subscriber.add(A, PodFeed(LOOPBACK, bind=True))
    subscriber.add(B, PodFeed(LOOPBACK, bind=True))
    endpoint = subscriber.status()[0].endpoint
    sink.error = RuntimeError("broken sink")
    with Publisher(endpoint, topic="kv@a@m") as bad, Publisher(endpoint, topic="kv@b@m") as good:
        assert bad.wait_subscribed(TIMEOUT_S)
        assert good.wait_subscribed(TIMEOUT_S)
        bad.publish(POISON)
        sink.wait(failed(sink, A))
        good.publish(b"0")
        sink.wait(holds(sink, B, b"0"))
        sink.error = None
        while sink.rank("a").state is PodState.STALE:
            bad.publish(b"clear")
            sink.wait(lambda: sink.rank("a").refused["feed_pausing"] > 0 or holds_any(sink))
        sink.wait(lambda: sink.rank("a").state is not PodState.STALE)
        assert sink.rank("b").resets == 0


def holds_any(sink: RecordingSink) -> bool:
    return bool(sink.rank("a").batches)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_engine_that_reconnects_while_no_file_can_be_opened_is_followed_later(
    sink: FussySink, subscriber: Subscriber
) -> None:
    with open_publisher(replay_endpoint=LOOPBACK) as other:
        follow(subscriber, other, B)
        first = open_publisher(replay_endpoint=LOOPBACK)
        first.publish(b"old")
        follow(subscriber, first, A)
        sink.wait(holds(sink, A, b"old"))
        with no_more_files():
            first.close()
            sink.wait(failed(sink, A))
            assert "Too many open files" in sink.rank("a").reason
            other.publish(b"0")
            sink.wait(holds(sink, B, b"0"))
        with open_publisher(first.endpoint, replay_endpoint=first.replay_endpoint) as second:
            second.publish(b"new")
            sink.wait(holds(sink, A, b"new"))


def test_a_replay_that_cannot_be_begun_is_its_feeds_trouble(
    sink: FussySink, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Replay._ask

    def refuse(replay: Replay, now: float) -> None:
        raise OSError("no replay today")

    with open_publisher(replay_endpoint=LOOPBACK) as publisher:
        publisher.publish(b"0")
        monkeypatch.setattr(Replay, "_ask", refuse)
        follow(subscriber, publisher, A)
        sink.wait(failed(sink, A))
        monkeypatch.setattr(Replay, "_ask", begin)
        sink.wait(holds(sink, A, b"0"))


def test_a_thread_that_fails_shows_it_and_begins_anew_with_the_same_pods(
    sink: FussySink, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = Follower.attend
    may_go_on = threading.Event()

    def fail(follower: Follower, now: float) -> None:
        if not may_go_on.is_set():
            raise PanicError("the thread")
        attend(follower, now)

    subscriber.add(B, PodFeed(LOOPBACK, bind=True))
    bound_to = subscriber.status()[0].endpoint
    with open_publisher(replay_endpoint=LOOPBACK) as publisher:
        publisher.publish(b"0")
        follow(subscriber, publisher, A)
        sink.wait(holds(sink, A, b"0"))
        monkeypatch.setattr(Follower, "attend", fail)
        sink.wait(lambda: sink.rank("a").states.count(PodState.STALE) > 1)
        assert "PanicError: the thread" in sink.rank("a").reason
        may_go_on.set()
        publisher.publish(b"1")
        sink.wait(lambda: holds(sink, A, b"0", b"1")() and subscriber.failure is None)
        subscriber.remove(A)
    with Publisher(bound_to, topic="") as engine:
        assert engine.wait_subscribed(TIMEOUT_S)
        engine.publish(b"0")
        sink.wait(holds(sink, B, b"0"))


def test_while_the_thread_is_down_every_row_is_stale_and_commands_are_refused(
    sink: FussySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(follower: Follower, now: float) -> None:
        raise RuntimeError("the thread")

    with Subscriber(sink, retry_max_s=60) as subscriber:
        subscriber.add(A, PodFeed("tcp://127.0.0.1:1"))
        monkeypatch.setattr(Follower, "attend", fail)
        sink.wait(lambda: "the thread" in sink.rank("a").reason)
        for _ in range(2):
            with contextlib.suppress(ServiceError):  # It may just have begun anew.
                subscriber.add(B, PodFeed("tcp://127.0.0.1:1"))
                subscriber.remove(B)
        assert {row.state for row in subscriber.status()} == {PodState.STALE}


def test_a_command_that_waits_while_the_thread_fails_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_applying, may_go_on = threading.Event(), threading.Event()

    class SlowSink(RecordingSink):
        def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
            is_applying.set()
            may_go_on.wait(TIMEOUT_S)
            return super().apply(pod, payload, dp_rank=dp_rank)

    def fail(reactor: Reactor, timeout_s: float) -> None:
        raise RuntimeError("the thread")

    answers: list[str] = []

    def add_another() -> None:
        try:
            followed.add(B, PodFeed("tcp://127.0.0.1:1"))
        except ServiceError as error:
            answers.append(str(error))

    with (
        open_publisher(replay_endpoint=LOOPBACK) as publisher,
        Subscriber(SlowSink(), retry_max_s=0.2) as followed,
    ):
        publisher.publish(b"0")
        follow(followed, publisher, A)
        assert is_applying.wait(TIMEOUT_S)
        monkeypatch.setattr(Reactor, "wait", fail)
        asking = threading.Thread(target=add_another)
        asking.start()
        while not followed._commands:
            pass
        may_go_on.set()
        asking.join(TIMEOUT_S)
        assert len(answers) == 1


def test_whatever_a_command_raises_goes_back_to_who_gave_it(
    sink: FussySink, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PanicError("no way")

    with monkeypatch.context() as patched:
        patched.setattr(Follower, "_open", fail)
        with pytest.raises(ServiceError, match="PanicError: no way"):
            subscriber.add(A, PodFeed("tcp://127.0.0.1:1"))
    assert subscriber.status() == []
    subscriber.add(A, PodFeed("tcp://127.0.0.1:1"))
    assert subscriber.failure is None


@pytest.mark.parametrize("host", ["-engine-7", ".x", "_x"])
def test_an_endpoint_that_zeromq_refuses_is_refused_at_registration(
    subscriber: Subscriber, host: str
) -> None:
    with pytest.raises(InvalidValueError, match="which ZeroMQ refuses"):
        subscriber.add(A, PodFeed("tcp://127.0.0.1:1", f"tcp://{host}:6557"))
    with pytest.raises(InvalidValueError, match="which ZeroMQ refuses"):
        subscriber.add(A, PodFeed(f"tcp://{host}:6557"))
    with pytest.raises(InvalidValueError, match="cannot be connected to"):
        subscriber.add(A, PodFeed("tcp://127.0.0.1:1", "tcp://*:6557"))
    assert subscriber.status() == []


def test_closing_does_not_wait_for_a_sink_that_takes_for_ever() -> None:
    is_applying, may_end = threading.Event(), threading.Event()

    class StuckSink(RecordingSink):
        def apply(self, pod: PodId, payload: bytes, *, dp_rank: int = 0) -> Applied:
            is_applying.set()
            may_end.wait()
            return super().apply(pod, payload, dp_rank=dp_rank)

    answers: list[str] = []

    def add_another() -> None:
        try:
            followed.add(B, PodFeed("tcp://127.0.0.1:1"))
        except ServiceError as error:
            answers.append(str(error))

    with open_publisher(replay_endpoint=LOOPBACK) as publisher:
        publisher.publish(b"0")
        followed = Subscriber(StuckSink())
        followed.start()
        follow(followed, publisher, A)
        assert is_applying.wait(TIMEOUT_S)
        asking = threading.Thread(target=add_another)
        asking.start()
        while not followed._commands:
            pass
        followed.close()  # The sink is still stuck: nobody has let it go.
        assert not may_end.is_set()
        asking.join(TIMEOUT_S)
        assert len(answers) == 1
        may_end.set()


def test_more_ranks_than_the_process_has_files_for_are_refused(
    subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "max_ranks", lambda: 2)
    subscriber.add(A, PodFeed("tcp://127.0.0.1:1", dp_size=2))
    with pytest.raises(RefusalError, match="3 pod ranks would be followed") as refusal:
        subscriber.add(B, PodFeed("tcp://127.0.0.1:9"))
    assert "ulimit -n" in refusal.value.remedy
    with pytest.raises(RefusalError, match="3 pod ranks"):
        subscriber.check(PodFeed("tcp://127.0.0.1:9"))
    subscriber.check(PodFeed("tcp://127.0.0.1:9"), replaced=PodFeed("tcp://127.0.0.1:1"))
    assert {row.pod for row in subscriber.status()} == {A}


def test_as_many_ranks_as_are_promised_are_followed_with_a_replay_under_way_for_each(
    sink: FussySink,
) -> None:
    """One engine stands for all; ours and its own connections share the files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_ranks = min(1024, (soft - 500) // (capacity.DESCRIPTORS_PER_RANK + 2))
    assert num_ranks > 400, "ZeroMQ's own limit of sockets would not be met with so few"
    with RawEngine() as engine, Subscriber(sink, replay_timeout_s=60) as subscriber:
        for number in range(num_ranks):
            pod = PodId(f"pod-{number}")
            subscriber.add(pod, PodFeed(engine.endpoint, engine.replay_endpoint))
        clients = [engine.asked()[0] for _ in range(num_ranks)]
        assert {row.state for row in subscriber.status()} == {PodState.REBUILDING}
        for client in clients:
            engine.answer(client, b"", seq_bytes(0), b"0")
            engine.end(client)
        ranks = [sink.rank(f"pod-{number}") for number in range(num_ranks)]
        sink.wait(lambda: all(rank.state is PodState.EXACT for rank in ranks))
        assert all(rank.batches == [b"0"] for rank in ranks)
