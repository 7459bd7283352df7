"""Sequence tracking against a perfect log, under everything that a link and an engine can do.

The invariant that is checked after every step: while the tracker says EXACT, what it delivered
since the last Reset (or clear) is the engine's log from there on, in order, each batch once.
"""

from collections import deque
from functools import partial

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvbraid.events.held import OVERHEAD_BYTES
from kvbraid.events.sequence import AskReplay, Deliver, Effect, Lose, Reset, SequenceTracker
from kvbraid.ids import PodState

CLEAR = b"clear"


class Engine:
    """The truth: lives of batches, and a replay buffer of limited length."""

    def __init__(self, buffer_batches: int) -> None:
        self.life = 0
        self.log: list[bytes] = []
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_batches)

    def publish(self, *, clear: bool) -> tuple[int, bytes]:
        seq = len(self.log)
        batch = (CLEAR if clear else b"batch") + f" {self.life}.{seq}".encode()
        self.log.append(batch)
        self.buffer.append((seq, batch))
        return seq, batch

    def restart(self) -> None:
        self.life += 1
        self.log.clear()
        self.buffer.clear()


class Link(RuleBasedStateMachine):
    """One engine, one lossy subscription, one replay channel, one tracker."""

    @initialize(
        buffer_batches=st.sampled_from([1, 3, 1000]),
        remembered=st.sampled_from([2, 1000]),
        hold_limit_bytes=st.sampled_from([2 * OVERHEAD_BYTES + 20, 1 << 20]),
        is_strict=st.booleans(),
    )
    def start(
        self, buffer_batches: int, remembered: int, hold_limit_bytes: int, *, is_strict: bool
    ) -> None:
        self.engine = Engine(buffer_batches)
        self.renew = partial(
            SequenceTracker, hold_limit_bytes=hold_limit_bytes, remembered=remembered
        )
        self.is_strict = is_strict
        self.tracker = self.renew()
        self.tracker.is_strict = is_strict
        self.is_ample = buffer_batches == 1000
        self.is_up = False
        self.live: deque[tuple[int, bytes]] = deque()
        self.answers: list[tuple[int, bytes]] | None = None
        self.known: list[tuple[int, bytes]] = []  # Delivered since the last Reset or clear.
        self.has_lost = False
        self.lives: set[bytes] = set()  # Of what was delivered since the last Reset or loss.

    def carry_out(self, out: list[Effect]) -> None:
        cleared = None
        for item in out:
            match item:
                case Deliver(seq, payload):
                    if payload.startswith(CLEAR):
                        self.known.clear()
                        cleared = seq
                    self.known.append((seq, payload))
                    self.lives.add(payload.split()[1].split(b".")[0])
                case AskReplay(start):
                    self.answers = [batch for batch in self.engine.buffer if batch[0] >= start]
                case Reset():
                    self.known.clear()
                    self.lives.clear()
                case Lose():
                    self.has_lost = True
                    self.lives.clear()
        if cleared is not None:
            self.carry_out(self.tracker.cleared(cleared))
        self.tracker.check_integrity()
        assert not self.is_strict or len(self.lives) <= 1

    @rule(fates=st.lists(st.sampled_from(["sent"] * 4 + ["lost", "twice", "clear"]), max_size=4))
    def publish(self, *, fates: list[str]) -> None:
        for fate in fates:
            batch = self.engine.publish(clear=fate == "clear")
            if self.is_up:
                self.live.extend([batch] * {"lost": 0, "twice": 2}.get(fate, 1))

    @rule(num=st.integers(1, 4), is_gathered=st.booleans())
    def receive(self, num: int, *, is_gathered: bool) -> None:
        batches = [self.live.popleft() for _ in range(min(num, len(self.live)))]
        while batches:
            first = batches[0][0]
            run = [batches.pop(0)]
            while is_gathered and batches and batches[0][0] == first + len(run):
                run.append(batches.pop(0))
            if self.tracker.advance(first, [payload for _, payload in run]):
                self.carry_out([Deliver(*batch) for batch in run])
                continue
            for batch in run:
                self.carry_out(self.tracker.message(*batch))

    @precondition(lambda self: self.engine.log and self.is_up)
    @rule(data=st.data())
    def repeat_an_old_batch(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, len(self.engine.log) - 1))
        self.live.append((seq, self.engine.log[seq]))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        assert self.answers
        reach = data.draw(st.sampled_from([1, 1, 3]))  # Some answers overtake others.
        index = data.draw(st.integers(0, min(reach, len(self.answers)) - 1))
        self.carry_out(self.tracker.replayed(*self.answers.pop(index)))

    @precondition(lambda self: self.answers)
    @rule()
    def drop_an_answer(self) -> None:
        assert self.answers
        self.answers.pop()

    @precondition(lambda self: self.answers is not None)
    @rule()
    def end_replay(self) -> None:
        for batch in self.answers or ():
            asked = self.answers
            self.carry_out(self.tracker.replayed(*batch))
            if self.answers is not asked:
                return
        self.answers = None
        self.carry_out(self.tracker.replay_ended())

    @precondition(lambda self: self.answers is not None)
    @rule()
    def fail_replay(self) -> None:
        self.answers = None
        self.carry_out(self.tracker.replay_failed())

    @rule()
    def fall_silent(self) -> None:
        if not self.live:
            self.carry_out(self.tracker.silence())

    @rule()
    def connect(self) -> None:
        self.is_up = True
        self.carry_out(self.tracker.connected())

    @rule()
    def disconnect(self) -> None:
        self.is_up = False
        self.answers = None
        self.live.clear()
        self.carry_out(self.tracker.disconnected())

    @rule()
    def go_on_elsewhere(self) -> None:
        """The process ends, and what had been saved goes on in another one."""
        progress = self.tracker.progress()
        if progress is not None:
            self.disconnect()
            self.tracker = self.renew()
            self.tracker.is_strict = self.is_strict
            self.tracker.go_on(progress)
            self.tracker.check_integrity()

    @rule(reconnects=st.booleans())
    def fail(self, *, reconnects: bool) -> None:
        """Something raised while a batch was applied: nothing that was delivered counts."""
        self.is_up = False
        self.answers = None
        self.live.clear()
        self.carry_out(self.tracker.failed("broken"))
        if reconnects:
            self.connect()

    @rule(num=st.integers(0, 5), reconnects=st.booleans())
    def restart_engine(self, *, num: int, reconnects: bool) -> None:
        self.disconnect()
        self.engine.restart()
        self.publish(fates=["sent"] * num)
        if reconnects:
            self.connect()

    @rule()
    def come_to_rest(self) -> None:
        """With every message read and a last poll answered, EXACT means the whole log."""
        if not self.is_up:
            self.connect()
        for _ in range(3):
            while self.live:
                self.receive(4, is_gathered=True)
            while self.answers is not None:
                self.end_replay()
            self.fall_silent()
        while self.answers is not None:
            self.end_replay()
        assert self.tracker.state in {PodState.EXACT, PodState.DEGRADED}
        if self.tracker.state is PodState.EXACT:
            assert self.tracker.last == len(self.engine.log) - 1
        if self.is_ample and not self.has_lost:
            assert self.tracker.state is PodState.EXACT

    def teardown(self) -> None:
        if hasattr(self, "tracker"):
            self.come_to_rest()
            self.exact_is_the_log()

    @invariant()
    def exact_is_the_log(self) -> None:
        if not hasattr(self, "tracker") or self.tracker.state is not PodState.EXACT:
            return
        first = self.known[0][0] if self.known else 0
        assert first == 0 or self.known[0][1].startswith(CLEAR)
        log = list(enumerate(self.engine.log))
        assert self.known == log[first : first + len(self.known)]


TestLink = Link.TestCase
