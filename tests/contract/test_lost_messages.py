"""Losses, restarts and late starts: the answers of the sequence tracker and the index together.

No sockets: a fake engine numbers its batches, loses some on the way, and answers replay.
"""

from collections.abc import Sequence

import pytest
from kvbraid.events import AllBlocksCleared, Event, encode_batch
from kvbraid.events.sequence import SequenceTracker
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodState
from kvbraid.service.feeds.rank_feed import RankFeed
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import (
    FULL,
    MODEL,
    POD,
    TEXT,
    WINDOW,
    Group,
    Text,
    an_index,
    answer,
    exactly,
)

NEW = Text(seed=1)
LAST_FULL = Group(idx=1)
FIRST_WINDOW = Group(idx=0, kind="sliding_window", window=128)


class Engine:
    """A publisher without sockets, followed by one feed. `buffer` None: no replay endpoint."""

    def __init__(self, index: FleetIndex, *, buffer: int | None = None) -> None:
        self.log: list[bytes] = []
        self.buffer = buffer
        self._asked: int | None = None
        self.feed = RankFeed(index, POD, 0, tracker=SequenceTracker(), owner=self)
        self.feed.announce()

    def start_replay(self, feed: RankFeed, start: int) -> bool:
        del feed
        self._asked = start
        return self.buffer is not None

    def stop_replay(self, feed: RankFeed) -> None:
        """Nothing is under way: answers come at once."""

    def wake(self, feed: RankFeed) -> None:
        """Do at once what would wait for a turn."""
        while feed.read(0.0):
            pass

    def hand_in(self, feed: RankFeed) -> None:
        raise AssertionError("no other thread has news")

    def start_again(self, feed: RankFeed) -> None:
        raise AssertionError("no feed fails here")

    def connect(self) -> None:
        """The subscriber connects."""
        self.feed.connected()
        self.answer_replay()

    def answer_replay(self) -> None:
        """Send what is asked for and still buffered, as often as it is asked for."""
        tracker = self.feed.tracker
        while self._asked is not None and self.buffer is not None:
            start, self._asked = self._asked, None
            for seq in range(max(start, len(self.log) - self.buffer), len(self.log)):
                self.feed.carry_out(tracker.replayed(seq, self.log[seq]))
            self.feed.carry_out(tracker.replay_ended())

    def publish(self, *events: Event, lost: bool = False) -> None:
        """Send one batch, which may be lost."""
        self.log.append(encode_batch(events, ts=float(len(self.log))))
        if not lost:
            seq = len(self.log) - 1
            self.feed.carry_out(self.feed.tracker.message(seq, self.log[seq]))
            self.answer_replay()

    def restart(self) -> None:
        """Start counting from 0 with an empty cache."""
        self.log = []

    def fall_silent(self) -> None:
        """Nothing came for a while."""
        self.feed.replay_endpoint = "somewhere" if self.buffer is not None else None
        self.feed.fall_silent()
        self.answer_replay()


@pytest.fixture
def index() -> FleetIndex:
    return an_index()


def state(index: FleetIndex) -> tuple[PodState, str]:
    (pod,) = index.pods()
    return pod.state, pod.reason


EXACT = (PodState.EXACT, "")


def followed(index: FleetIndex, *batches: Sequence[Event], buffer: int | None = None) -> Engine:
    """An engine followed from its first batch on."""
    engine = Engine(index, buffer=buffer)
    engine.connect()
    for batch in batches:
        engine.publish(*batch)
    return engine


def test_a_lost_batch_is_replayed(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored(FULL, range(32))], buffer=100)
    engine.publish(TEXT.stored(FULL, range(32, 48)), lost=True)
    engine.publish(TEXT.stored(FULL, range(48, 64)))
    assert answer(index) == exactly(1024)
    assert state(index) == EXACT


def test_a_lost_last_batch_of_an_idle_engine_is_asked_for(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()], buffer=100)
    engine.publish(*TEXT.removed(FULL, range(32, 64)), lost=True)
    engine.fall_silent()
    assert answer(index) == exactly(512)
    assert state(index) == EXACT


def test_lost_removals_without_replay_leave_a_bound(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()])
    engine.publish(*TEXT.removed(FULL, range(1, 64)), lost=True)
    engine.publish(AllBlocksCleared(), lost=True)
    engine.publish(TEXT.stored(FULL, range(1)))
    assert answer(index) == (0, 1024)  # The engine would reuse 16.
    assert state(index) == (PodState.DEGRADED, "batches 1 to 2 are lost")
    engine.publish(AllBlocksCleared())
    engine.publish(TEXT.stored(FULL, range(2)))
    assert answer(index) == exactly(32)
    assert state(index) == EXACT


def test_where_the_groups_are_configured_what_followed_a_loss_is_certain() -> None:
    groups = (GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),)
    index = an_index(Topology(groups=groups))
    engine = followed(index, [TEXT.stored()])
    engine.publish(*TEXT.removed(FULL, range(64)), lost=True)
    engine.publish(TEXT.stored(FULL, range(1)))
    assert answer(index) == (16, 1024)


def test_a_restarted_engine_without_replay_starts_empty(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()])
    engine.restart()
    engine.publish(NEW.stored())
    assert answer(index) == exactly(0)
    assert answer(index, NEW.prompt) == exactly(1024)
    assert state(index) == EXACT


def test_a_restarted_engine_with_replay_starts_empty(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()], [NEW.stored(FULL, range(2))], buffer=100)
    engine.restart()
    engine.publish(NEW.stored(FULL, range(32)), lost=True)
    engine.publish(NEW.stored(FULL, range(32, 64)))
    assert answer(index) == exactly(0)
    assert answer(index, NEW.prompt) == exactly(1024)
    assert state(index) == EXACT


def test_hashes_of_a_restarted_engine_may_mean_other_prefixes(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()])
    hashes = TEXT.stored().block_hashes
    engine.restart()
    engine.publish(NEW.stored(block_hashes=hashes))
    assert answer(index) == exactly(0)
    assert answer(index, NEW.prompt) == exactly(1024)
    assert state(index) == EXACT


def test_a_late_start_without_replay_is_a_bound(index: FleetIndex) -> None:
    engine = Engine(index)
    engine.publish(TEXT.stored(FULL, range(32)), lost=True)
    engine.connect()
    engine.publish(TEXT.stored(FULL, range(32, 64)))
    assert answer(index) == (0, 1024)
    assert state(index)[0] is PodState.DEGRADED
    assert "lost" in state(index)[1]


def test_a_late_start_with_replay_is_exact(index: FleetIndex) -> None:
    engine = Engine(index, buffer=100)
    engine.publish(TEXT.stored(FULL, range(32)), lost=True)
    engine.connect()
    engine.publish(TEXT.stored(FULL, range(32, 64)))
    assert answer(index) == exactly(1024)
    assert state(index) == EXACT


def test_a_replay_buffer_shorter_than_history_leaves_a_bound(index: FleetIndex) -> None:
    engine = Engine(index, buffer=2)
    for first in range(0, 64, 16):
        engine.publish(TEXT.stored(FULL, range(first, first + 16)), lost=True)
    engine.connect()
    assert answer(index) == (0, 1024)
    assert state(index) == (PodState.DEGRADED, "batches 0 to 1 are lost")


@pytest.mark.parametrize(
    ("missed", "heard", "reused"),
    [
        pytest.param(
            [TEXT.stored(FIRST_WINDOW), TEXT.stored(LAST_FULL)],
            TEXT.removed(FIRST_WINDOW, range(56)),
            1024,
            id="removals of a window group before any of its stores",
        ),
        pytest.param(
            [TEXT.stored(LAST_FULL)],
            [TEXT.stored(FULL), *TEXT.removed(LAST_FULL, range(32, 64))],
            512,
            id="removals of a full group before any of its stores",
        ),
        pytest.param(
            [TEXT.stored(WINDOW, keep=range(32))],
            [TEXT.stored(FULL)],
            512,
            id="a group whose stores were all missed",
        ),
    ],
)
def test_groups_that_were_missed_do_not_make_an_answer_too_good(
    index: FleetIndex, missed: list[Event], heard: list[Event], reused: int
) -> None:
    engine = Engine(index)
    engine.publish(*missed, lost=True)
    engine.connect()
    engine.publish(*heard)
    lower, upper = answer(index)
    assert lower <= reused <= upper
    assert state(index)[0] is PodState.DEGRADED


def test_a_pod_out_of_reach_promises_nothing(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()])
    engine.feed.disconnected()
    engine.publish(*TEXT.removed(FULL, range(64)), lost=True)
    lower, upper = answer(index)
    assert lower <= 0 <= upper
    assert state(index) == (PodState.STALE, "not connected")


def test_a_pod_that_is_rebuilding_promises_nothing(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()])
    engine.publish(*TEXT.removed(FULL, range(64)), lost=True)
    engine.buffer = 100
    tracker = engine.feed.tracker
    payload = encode_batch([NEW.stored()])
    engine.feed.carry_out(tracker.message(2, payload))  # Its replay is not answered yet.
    lower, upper = answer(index)
    assert lower <= 0 <= upper
    assert state(index)[0] is PodState.REBUILDING


def test_live_batches_wait_for_the_replay_of_earlier_ones(index: FleetIndex) -> None:
    """Applied at once, the removal would come before the store that it undoes."""
    engine = Engine(index, buffer=100)
    engine.publish(TEXT.stored(), lost=True)
    engine.feed.connected()
    removal = encode_batch(TEXT.removed(FULL, range(64)), ts=1.0)
    engine.feed.carry_out(engine.feed.tracker.message(1, removal))
    engine.answer_replay()
    assert answer(index) == exactly(0)
    assert state(index) == EXACT


def test_the_same_batch_twice_counts_once(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored()])
    engine.feed.carry_out(engine.feed.tracker.message(0, engine.log[0]))
    engine.publish(*TEXT.removed(FULL, [10]))
    assert answer(index) == exactly(160)


def test_a_pod_registered_again_starts_anew(index: FleetIndex) -> None:
    followed(index, [TEXT.stored()])
    index.register(POD, model=MODEL)
    assert answer(index) == exactly(1024), "the same registration changes nothing"
    index.remove(POD)
    index.register(POD, model=MODEL)
    assert answer(index) == exactly(0)
    followed(index, [TEXT.stored()])
    assert answer(index) == exactly(1024)


def test_nothing_can_be_excluded_beyond_the_last_aligned_boundary(index: FleetIndex) -> None:
    engine = followed(index, [TEXT.stored(Group(block=64))])
    engine.feed.disconnected()
    assert answer(index, TEXT.tokens)[1] == 960
