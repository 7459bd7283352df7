"""A rank that reads the log of events, against an engine, a relay and a log that do their worst.

The invariant that is checked after every step: while the rank is exact, what was applied since the
last reset is what one process of the engine has published, from its first batch on, in order.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvbraid.events.sequence import SequenceTracker
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.log_link import LogLink
from kvbraid.service.feeds.rank_feed import RankFeed
from kvbraid.service.shared.inbox import CAUGHT_UP, Inbox, LoggedBatch

from tests.service.recording_sink import RecordingSink

POD = PodId("pod")


class Reactor:
    def hand_in(self, reader: object) -> None:
        del reader


class NoJournal:
    def note(self, *told: object) -> None:
        del told


class FakeLog:
    """Batches as they were stored, and where the one who reads them is."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, int, bytes]] = []
        self.inbox: Inbox | None = None
        self.ask_number, self.place, self.is_caught_up = 0, 0, True

    def follow(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def leave(self, inbox: Inbox) -> None:
        del inbox

    def ask(self, inbox: Inbox, ask: int, start: str, seq: int) -> None:
        assert inbox is self.inbox
        start = start or (self.stored[-1][0] if self.stored else "")
        places = [n for n, it in enumerate(self.stored) if it[0] == start and it[1] >= seq]
        self.ask_number, self.is_caught_up = ask, False
        self.place = places[0] if places else len(self.stored)

    def bring(self, most: int) -> None:
        assert self.inbox is not None
        for batch in self.stored[self.place : self.place + most]:
            self.inbox.put(LoggedBatch(self.ask_number, *batch))
            self.place += 1
        if self.place == len(self.stored) and not self.is_caught_up:
            self.is_caught_up = True
            self.inbox.put(LoggedBatch(self.ask_number, "", CAUGHT_UP, b""))


class ReadingTheLog(RuleBasedStateMachine):
    """One engine that restarts, a relay that lags and loses, a log that is lost, one reader."""

    @initialize(buffer_batches=st.sampled_from([2, 1000]), replay=st.booleans())
    def start(self, buffer_batches: int, *, replay: bool) -> None:
        self.lives: list[list[bytes]] = [[]]
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_batches)
        self.relayed = 0
        self.number = 0  # Of the relay's start.
        self.replay = replay
        self.answers: list[tuple[int, bytes]] | None = None
        self.sink, self.log = RecordingSink(), FakeLog()
        self.feed = RankFeed(self.sink, POD, 0, tracker=SequenceTracker(remembered=4), owner=self)
        environment: Any = SimpleNamespace(journal=NoJournal(), reactor=Reactor())
        self.link = LogLink(environment, self.feed, self.log)
        self.link.open(0)

    # What a feed asks of its owner.

    def start_replay(self, feed: RankFeed, start: int) -> bool:
        self.stop_replay(feed)
        if self.link.asks(start):
            return True
        if self.replay:
            self.answers = [batch for batch in self.buffer if batch[0] >= start]
        return self.replay

    def stop_replay(self, feed: RankFeed) -> None:
        del feed
        self.answers = None
        self.link.stop_replay()

    def wake(self, feed: RankFeed) -> None:
        del feed

    hand_in = wake

    def start_again(self, feed: RankFeed) -> None:
        raise AssertionError(feed.status())

    def work(self) -> None:
        """Let the link and the feed take their turns until nothing is left."""
        for _ in range(1000):
            is_left = self.link.read(0)
            if not self.feed.read(0) and not is_left:
                return
        raise AssertionError("it goes on for ever")

    @rule(num=st.integers(1, 4))
    def publish(self, num: int) -> None:
        for _ in range(num):
            life = self.lives[-1]
            life.append(f"{len(self.lives)}.{len(life)}".encode())
            self.buffer.append((len(life) - 1, life[-1]))

    @rule(num=st.integers(0, 4))
    def restart_the_engine(self, num: int) -> None:
        self.lives.append([])
        self.buffer.clear()
        if num:
            self.publish(num)

    @rule(num=st.integers(1, 6), gap=st.sampled_from([0, 0, 0, 1]))
    def relay(self, num: int, gap: int) -> None:
        """What the relay has missed for good begins another start, and so does a restart."""
        is_new = self.number < len(self.lives) * 1000
        if is_new:
            self.number, self.relayed = len(self.lives) * 1000, 0
        self.relayed += gap
        self.number += gap
        for seq, batch in list(enumerate(self.lives[-1]))[self.relayed : self.relayed + num]:
            self.log.stored.append((f"start {self.number}", seq, batch))
            self.relayed = seq + 1

    @rule(data=st.data())
    def lose_of_the_log(self, data: st.DataObject) -> None:
        """A hole, or all that is old."""
        if self.log.stored and self.log.inbox and not self.log.inbox.connection:
            first = data.draw(st.integers(0, len(self.log.stored) - 1))
            del self.log.stored[first : first + data.draw(st.integers(1, 3))]

    @rule(most=st.integers(1, 8))
    def bring(self, most: int) -> None:
        if self.log.inbox and self.log.inbox.connection:
            self.log.bring(most)
            self.work()

    @precondition(lambda self: self.answers is not None)
    @rule(fails=st.sampled_from([False, False, True]))
    def answer(self, *, fails: bool) -> None:
        """The engine answers; in the end it says so, or is not heard any more."""
        answers = self.answers
        for batch in answers or ():
            self.feed.carry_out(self.feed.tracker.replayed(*batch))
            if self.answers is not answers:
                self.work()
                return
        self.answers = None
        tracker = self.feed.tracker
        self.feed.carry_out(tracker.replay_failed() if fails else tracker.replay_ended())
        self.work()

    @rule()
    def fall_silent(self) -> None:
        self.feed.replay_endpoint = "tcp://h:1" if self.replay else None
        self.feed.fall_silent()
        self.work()

    @rule()
    def connect(self) -> None:
        assert self.log.inbox
        self.log.inbox.connection = self.log.inbox.connection or self.log.ask_number + 1
        self.work()

    @rule()
    def disconnect(self) -> None:
        assert self.log.inbox
        self.log.inbox.connection = 0
        self.work()

    @rule()
    def come_to_rest(self) -> None:
        """It is exact if nothing was lost and the log has all; what is lost stays so."""
        self.relay(1000, 0)
        self.connect()
        for _ in range(4):
            self.bring(1000)
            for _ in range(10):
                if self.answers is not None:
                    self.answer(fails=False)
        assert self.answers is None
        starts = [it for it in self.log.stored if it[0] == f"start {self.number}"]
        is_whole = [it[2] for it in starts] == self.lives[-1] != []
        if is_whole and not self.sink.rank(POD).losses:
            assert self.feed.tracker.state is PodState.EXACT
            assert self.sink.rank(POD).batches == self.lives[-1]

    @invariant()
    def exact_is_what_one_process_has_published(self) -> None:
        if self.feed.tracker.state is PodState.EXACT and not self.feed.is_behind:
            batches = self.sink.rank(POD).batches
            assert any(batches == life[: len(batches)] for life in self.lives)


TestReadingTheLog = ReadingTheLog.TestCase
TestReadingTheLog.settings = settings(max_examples=80, stateful_step_count=25)


def machine() -> ReadingTheLog:
    made = ReadingTheLog()
    made.start(1000, replay=True)
    return made


def come_to_know(made: ReadingTheLog) -> PodState:
    """Read the log, let the engine answer whatever is asked, and check the invariant."""
    made.connect()
    for _ in range(3):
        made.bring(1000)
        while made.answers is not None:
            made.answer(fails=False)
    made.exact_is_what_one_process_has_published()
    return made.feed.tracker.state


def test_an_engine_that_has_started_again_since_the_log_ended_is_another_one() -> None:
    """Its numbers would go on where the log ends."""
    made = machine()
    made.publish(1)
    made.relay(1, 0)
    made.restart_the_engine(4)
    assert come_to_know(made) is PodState.EXACT
    assert made.sink.rank(POD).batches == made.lives[-1]


def test_an_engine_that_has_started_again_does_not_fill_a_hole_of_the_log() -> None:
    made = machine()
    made.publish(6)
    made.relay(6, 0)
    del made.log.stored[1:4]
    made.restart_the_engine(4)
    come_to_know(made)
    assert made.sink.rank(POD).batches == made.lives[-1]


def test_the_log_of_an_earlier_process_is_left_out_until_it_tells_of_the_next() -> None:
    made = machine()
    made.publish(6)
    made.relay(2, 0)
    made.restart_the_engine(4)
    assert come_to_know(made) is PodState.EXACT
    late = [("start 1000", seq, made.lives[0][seq]) for seq in range(2, 6)]
    made.log.stored += late
    assert come_to_know(made) is PodState.EXACT
    assert made.sink.rank(POD).batches == made.lives[-1]
    made.relay(9, 0)
    assert come_to_know(made) is PodState.EXACT
    assert made.sink.rank(POD).batches == made.lives[-1]


def test_two_relays_of_different_starts_in_turn_end() -> None:
    made = machine()
    made.publish(6)
    for seq, batch in enumerate(made.lives[-1]):
        made.log.stored += [("start 1000", seq, batch), ("start 1001", seq, batch)]
    assert come_to_know(made) is PodState.EXACT
