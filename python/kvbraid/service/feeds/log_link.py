"""A link to the log of events that a relay writes, in place of the engine's own socket.

The log answers a replay first, and brings what comes later after it. What it does not have is
asked of the engine, from where the log ended. So a hole in the log, a lost tail and one that
begins too late are gaps like any other, and the sequence tracker decides what is known.

    connected ──► asked: answers of a replay ──caught up──► the engine is asked ──► live
                       ▲                                                            │
                       └─────────────── another start of the engine ◄───────────────┘
"""

from collections import Counter
from collections.abc import Callable, Iterable

from kvbraid.service.feeds.rank_feed import GATHERED, RankFeed
from kvbraid.service.feeds.reactor import SLICE, SLICE_BYTES
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment
from kvbraid.service.journal import Rank
from kvbraid.service.shared.inbox import CAUGHT_UP, Inbox, LoggedBatch, LogSource


class LogLink:
    """The log as one rank's source; it has the calls of a `Link`."""

    def __init__(
        self,
        environment: ZmqEnvironment,
        feed: RankFeed,
        log: LogSource,
        ask_engine: Callable[[RankFeed, int], bool],
    ) -> None:
        self.endpoint = feed.endpoint
        self.strays: Counter[str] = Counter()
        self._journal, self._reactor = environment.journal, environment.reactor
        self._feed = feed
        self._log = log
        self._ask_engine = ask_engine
        self._inbox = Inbox(feed.pod, feed.rank, lambda: self._reactor.hand_in(self))
        self._connection = 0
        self._reopen_at = 0.0
        self._ask = 0  # Number of the question; what was put for an earlier one is dropped.
        self._asked_from = 0
        self._is_replaying = False
        self._first: int | None = None  # The first number that the log has answered.
        self._next: int | None = None  # The log has nothing from here on but what comes later.
        self._start = ""
        self._other_start = ""  # Of the last answer, if it is not of `_start`.
        self._run: list[bytes] = []  # Live, of consecutive numbers, not yet taken.
        self._run_first = 0

    def feeds(self) -> Iterable[RankFeed]:
        """Return the one feed."""
        return (self._feed,)

    def discard(self, feed: RankFeed) -> bool:
        """Remove the one feed."""
        return False

    def open(self, now: float) -> None:
        """Begin to follow; the connection stands when the log says so."""
        del now
        self._log.follow(self._inbox)

    def close(self) -> None:
        """Leave the log; what waits is dropped."""
        self._log.leave(self._inbox)
        self._connection = 0
        self._ask += 1
        self._reactor.forget(self)

    def start_again(self, feed: RankFeed, now: float, pause_s: float) -> None:
        """Begin with the log as if it had not been there, after the pause."""
        self._connection = 0
        self._start = ""
        self._reopen_at = now + pause_s
        self._ask += 1

    def on_error(self, error: BaseException) -> None:
        """Leave it to the feed; see Reader."""
        self._feed.on_error(error)

    def attend(self, now: float) -> None:
        """Note that the log is there, or is gone."""
        connection = self._inbox.connection
        if self._connection == connection:
            return
        rank = Rank(self._feed.pod, self._feed.rank)
        if self._connection:
            self._connection = 0
            self._journal.note("disconnected", rank, "the log of events")
            self._feed.disconnected()
        if connection and now >= self._reopen_at:
            self._connection, self._next = connection, None
            self._journal.note("connected", rank, "the log of events")
            self._feed.heard_at = now
            self._feed.connected()

    def asks(self, start: int) -> bool:
        """Ask the log for batches from `start` on; False: it cannot have them."""
        if self._next is not None and start >= self._next:
            return False
        self._ask += 1
        self._is_replaying, self._first, self._other_start = True, None, ""
        self._asked_from = start
        # The batch before it proves that the engine is still the same.
        self._log.ask(self._inbox, self._ask, self._start, max(start - 1, 0))
        return True

    def stop_replay(self) -> None:
        """Take no further answers; what comes later needs a new question, too."""
        if self._is_replaying:
            self._is_replaying = False
            self._ask += 1

    def read(self, now: float) -> bool:
        """Take a slice of batches; see Reader."""
        self.attend(now)
        if self._feed.is_behind:
            return True
        num_bytes = 0
        for _ in range(SLICE):
            batch = self._inbox.take()
            if batch is None:
                self._end_run()
                return False
            if batch.ask == self._ask and self._connection:
                self._take(batch, now)
                num_bytes += len(batch.payload)
            if num_bytes > SLICE_BYTES:
                break
        self._end_run()
        return True

    def _take(self, batch: LoggedBatch, now: float) -> None:
        self._feed.heard_at = now
        if batch.seq == CAUGHT_UP:
            self._catch_up()
            return
        self._start = self._start or batch.start
        if batch.start != self._start:
            self._other_start = batch.start
            if not self._is_replaying:
                self._restart()
            return
        self._other_start = ""
        self._next = batch.seq + 1
        if self._is_replaying:
            self._first = batch.seq if self._first is None else self._first
            self._feed.carry_out(self._feed.tracker.replayed(batch.seq, batch.payload))
            return
        if batch.seq != self._run_first + len(self._run) or len(self._run) == GATHERED:
            self._end_run()
            self._run_first = batch.seq
        self._run.append(batch.payload)

    def _end_run(self) -> None:
        """Pass on what was gathered."""
        run, self._run = self._run, []
        if run:
            self._feed.take(self._run_first, run)

    def _catch_up(self) -> None:
        """Go on with the engine, from where the log's answers end."""
        if self._other_start:
            self._restart()
            return
        self._is_replaying = False
        feed, asked = self._feed, self._asked_from
        is_answered = self._first is not None and self._first <= asked
        self._next = max(self._next or 0, feed.tracker.last + 1)
        if not self._ask_engine(feed, feed.tracker.last + 1 if is_answered else asked):
            feed.carry_out(feed.tracker.replay_failed())

    def _restart(self) -> None:
        """The relay has seen the engine start again: begin with the new start."""
        self._end_run()
        self._start, self._next = self._other_start, None
        self._ask += 1
        self._feed.carry_out(self._feed.tracker.restarted())
