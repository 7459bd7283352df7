"""A link to the log of events that a relay writes, in place of the engine's own socket.

The log answers the first replay, and then brings each batch that comes. At the log's end, the
engine itself is asked, which has to prove that it is the process that the log tells of. So a hole
in the log, a lost tail and one that begins too late are gaps like any other, and the sequence
tracker decides what is known.

    connected ──► the log answers ──ran out──► the engine is asked ──► live, from the log
                       ▲                                                     │
                       └──────── the log tells of another start ◄────────────┘

If the engine has shown that it started again before the log tells so, the log's batches are those
of an earlier process, and are left out until it does.
"""

from collections import Counter
from collections.abc import Iterable

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
    ) -> None:
        self.endpoint = feed.endpoint
        self.strays: Counter[str] = Counter()
        self._journal, self._reactor = environment.journal, environment.reactor
        self._feed = feed
        self._log = log
        self._inbox = Inbox(feed.pod, feed.rank, lambda: self._reactor.hand_in(self))
        self._connection = 0
        self._reopen_at = 0.0
        self._ask = 0  # Number of the question; what was put for an earlier one is dropped.
        self._is_log_next = False  # The next replay is asked of the log.
        self._is_replaying = False
        self._restarts = 0  # Of the tracker, as far as this link has to do with them.
        self._start = ""
        self._other_start = ""  # Of the last answer, if it is not of `_start`.
        self._left_out = ""
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
        self._start = self._left_out = ""
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
            self._connection, self._is_log_next = connection, True
            self._journal.note("connected", rank, "the log of events")
            self._feed.heard_at = now
            self._feed.connected()

    def asks(self, start: int) -> bool:
        """Ask the log for batches from `start` on; False: only the engine can be asked."""
        restarts = self._feed.tracker.counts.restarts
        if restarts != self._restarts:
            self._restarts, self._left_out = restarts, self._start
        if not self._is_log_next:
            return False
        self._ask += 1
        self._is_log_next, self._is_replaying = False, True
        self._other_start = ""
        # The batch before it proves that the engine is still the same.
        known = "" if self._left_out else self._start
        self._log.ask(self._inbox, self._ask, known, max(start - 1, 0))
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
        feed = self._feed
        feed.heard_at = now
        if batch.seq == CAUGHT_UP:
            self._catch_up()
            return
        if not self._start and (self._is_replaying or feed.tracker.last < 0):
            self._start = batch.start
        if batch.start != self._start:
            self._other_start = batch.start
            if not self._is_replaying:
                self._restart()
            return
        self._other_start = ""
        if batch.start == self._left_out:
            return
        if self._is_replaying:
            feed.carry_out(feed.tracker.replayed(batch.seq, batch.payload))
            if feed.tracker.counts.restarts != self._restarts:  # The log itself has shown it.
                self._restarts, self._is_log_next = feed.tracker.counts.restarts, True
            return
        if batch.seq <= feed.tracker.last:
            return  # The engine has told it before the log did.
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
        else:
            self._is_replaying = False
            self._feed.carry_out(self._feed.tracker.ran_out())

    def _restart(self) -> None:
        """The relay has seen the engine start again: begin with the new start."""
        self._end_run()
        self._start, self._left_out = self._other_start, ""
        self._is_log_next, self._is_replaying = True, False
        self._ask += 1
        self._feed.carry_out(self._feed.tracker.restarted())
        self._restarts = self._feed.tracker.counts.restarts
