"""Follows the event feeds of any number of pods and ranks, in one thread of its own.

ZeroMQ's own thread receives messages without Python, into queues that are bounded in bytes: an
engine never waits for us, and messages that do not fit are a gap in the sequence like any other
loss. The subscriber's thread applies batches to the sink in slices, pod by pod. A failure in one
feed affects only that feed (rank_feed.py). If the thread itself fails, every pod turns stale,
`failure` says why, and the thread starts again with the same pods. Every method may be called
from any thread; `add` and `remove` wait until the subscriber's thread is done.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Self

from kvbraid.errors import InvalidValueError, KvbraidError, ServiceError, one_line
from kvbraid.events.digest import RANDOM, Digests
from kvbraid.events.sequence import Settled
from kvbraid.ids import PodId, PodState
from kvbraid.service.capacity import check_capacity, new_context
from kvbraid.service.closing import Closing
from kvbraid.service.feeds.backoff import Backoff
from kvbraid.service.feeds.bindable import check_bindable, wait_until_free
from kvbraid.service.feeds.follower import Follower, Patience, rank_addresses
from kvbraid.service.feeds.journalled import JournalledSink
from kvbraid.service.feeds.names import Names
from kvbraid.service.feeds.rank_feed import (
    FeedConfig,
    FeedStatus,
    NewFeed,
    RankFeed,
    Sink,
)
from kvbraid.service.feeds.reactor import Reactor
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment
from kvbraid.service.journal import Journal
from kvbraid.service.shared.inbox import LogSource

_LONGEST_TICK_S: Final = 0.25
_CALM_S: Final = 60.0
CLOSE_S: Final = 1.0
"""How long `close` waits for a slow sink."""

_logger: Final = logging.getLogger(__name__)


class Subscriber(Closing):
    """Brings what pods publish into a sink, complete and in order, or says that it is incomplete.

    Args:
        sink: Takes the batches and states; called from the subscriber's thread only.
        silence_s: After this long without a message, a pod is asked whether it has more.
        replay_timeout_s: After this long without an answer, a replay has failed.
        replay_spread_s: A replay is asked for after a random part of it: an engine serves one
            requester at a time, and other replicas miss what this one does.
        retry_max_s: Longest pause between two attempts to connect.
        hold_limit_bytes: Bytes that each rank may hold while a replay is under way.
        queue_limit_bytes: Bytes of a connection that may wait to be read; a connection with more
            is cut and made again. This is checked four times a second, for tcp on Linux only.

    Attributes:
        journal: Writes log lines about the pods.
        digests: Of payloads; set before the start. A `progress` is of use under the same key.
        log: Brings the batches in place of the pods' endpoints; set before the start.
        new_feed: Makes the feed of a rank; set before the start.

    Raises:
        InvalidValueError: A time or size that is not above 0.
    """

    def __init__(  # noqa: PLR0913 - limits, each by its name
        self,
        sink: Sink,
        *,
        silence_s: float = 5.0,
        replay_timeout_s: float = 5.0,
        replay_spread_s: float = 0.0,
        retry_max_s: float = 2.0,
        hold_limit_bytes: int = 32 << 20,
        queue_limit_bytes: int = 64 << 20,
    ) -> None:
        _check_positive(silence_s=silence_s, replay_timeout_s=replay_timeout_s)
        _check_positive(retry_max_s=retry_max_s, hold_limit_bytes=hold_limit_bytes)
        _check_positive(queue_limit_bytes=queue_limit_bytes)
        self._patience = Patience(
            silence_s=silence_s,
            replay_timeout_s=replay_timeout_s,
            replay_spread_s=replay_spread_s,
            retry_max_s=retry_max_s,
            hold_limit_bytes=hold_limit_bytes,
            queue_limit_bytes=queue_limit_bytes,
        )
        self.digests: Digests = RANDOM
        self.log: LogSource | None = None
        self.new_feed: NewFeed = RankFeed
        self.journal = Journal()
        self._sink = JournalledSink(sink, self.journal)
        self._tick_s = min(silence_s / 4, replay_timeout_s / 4, _LONGEST_TICK_S)
        self._lock = threading.Lock()  # Guards starting, stopping and giving commands.
        self._commands: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._reactor: Reactor | None = None  # None: no thread would carry out a command.
        self._follower: Follower | None = None
        self._failure: str | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the thread, once; pods are added afterwards."""
        with self._lock:
            assert self._thread is None, "a subscriber starts once"
            environment = self._open_environment()
            self._reactor = environment.reactor
            self._follower = self._new_follower(environment)
            self._thread = threading.Thread(
                target=self._run,
                args=(environment, self._follower),
                name="kvbraid-subscriber",
                daemon=True,
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the thread and close every socket; a second call does nothing.

        The thread cannot end while the sink takes a batch: this waits for it at most CLOSE_S, and
        the thread ends after the batch. Commands that still wait are refused at once.
        """
        with self._lock:
            self._is_closing.set()
            reactor, self._reactor = self._reactor, None
            if reactor is not None:
                reactor.interrupt()
        if self._thread is None:
            return
        self._thread.join(CLOSE_S)
        self._refuse_commands()

    @property
    def failure(self) -> str | None:
        """Why nothing is followed at the moment although it should be; None when all is well."""
        return self._failure

    def add(self, pod: PodId, feed: FeedConfig, progress: Sequence[Settled] = ()) -> None:
        """Follow all ranks of a pod, beginning with a replay from 0, or from a `progress` on.

        A progress is one per rank, as `at_rest` gave it to a process that has ended since.

        Raises:
            InvalidValueError: A malformed endpoint, or the pod is followed already.
            ServiceError: An address cannot be bound, or the subscriber is not running.
        """
        self._command(lambda follower: follower.add(pod, feed, progress))

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None]) -> bool:
        """Do some work while the sink has exactly what was settled of a pod.

        Returns False without any work if it does not now: batches wait, or it is in doubt whose
        they are. The work is done on the subscriber's thread, so nothing comes in meanwhile.

        Raises:
            ServiceError: The subscriber is not running, or the work raised.
        """
        done = threading.Event()

        def try_it(follower: Follower) -> None:
            progress = follower.progress(pod)
            if progress is not None:
                work(progress)
                done.set()

        self._command(try_it)
        return done.is_set()

    def check(self, feed: FeedConfig, replaced: FeedConfig | None = None) -> None:
        """Refuse an address that `add` could not bind once `replaced` is gone; change nothing.

        Raises:
            RefusalError: `invalid_endpoint`; `too_many_pods` for the files of this process.
            InvalidValueError: A malformed endpoint.
        """
        follower = self._follower
        wanted = self._bound(feed)
        if follower is not None:
            check_capacity(
                follower.num_ranks + feed.dp_size - (replaced.dp_size if replaced else 0)
            )
        check_bindable(
            wanted,
            held=() if follower is None else follower.bound(),
            leaving=() if replaced is None else self._bound(replaced),
        )

    def remove(self, pod: PodId) -> None:
        """Stop following a pod; after this returns, the sink hears nothing of the pod.

        An address that only this pod had bound is free by then, although ZeroMQ itself returns
        before it has released the address.

        Raises:
            UnknownError: The pod is not followed.
            ServiceError: The subscriber is not running.
        """
        follower = self._follower
        held = frozenset() if follower is None else frozenset(follower.bound())
        self._command(lambda follower: follower.remove(pod))
        if follower is not None:
            wait_until_free(held.difference(follower.bound()))

    def status(self) -> list[FeedStatus]:
        """Return one row per followed pod and rank, in order; none before the start.

        While the thread has failed (`failure`), every row is stale.
        """
        feeds = self._follower.feeds if self._follower is not None else {}
        rows = [feed.status() for pod in sorted(feeds) for feed in feeds[pod]]
        why = self._failure
        if why is None:
            return rows
        return [dataclasses.replace(row, state=PodState.STALE, reason=why) for row in rows]

    def strays(self) -> dict[str, int]:
        """Return how many messages concerned no followed pod, by reason."""
        return dict(self._follower.strays()) if self._follower is not None else {}

    def _stopped(self) -> ServiceError:
        if self._failure is None:
            return ServiceError("subscriber is not running; start a new one")
        return ServiceError(f"subscriber: {self._failure}; try again in a moment")

    def _command(self, work: Callable[[Follower], None]) -> None:
        """Let the subscriber's thread do something, and wait until it is done."""
        done: Future[None] = Future()
        with self._lock:
            follower = self._follower
            if self._reactor is None or follower is None:
                raise self._stopped()
            self._commands.append((done, lambda: work(follower)))
            self._reactor.interrupt()
        done.result()

    def _open_environment(self) -> ZmqEnvironment:
        return ZmqEnvironment(
            context=new_context(),
            reactor=Reactor(),
            names=Names(),
            retry_max_s=self._patience.retry_max_s,
            queue_limit_bytes=self._patience.queue_limit_bytes,
            journal=self.journal,
        )

    def _new_follower(self, environment: ZmqEnvironment) -> Follower:
        return Follower(
            self._sink,
            environment,
            self._patience,
            self.digests,
            log=self.log,
            new_feed=self.new_feed,
        )

    def _bound(self, feed: FeedConfig) -> list[str]:
        """The addresses of a pod that are bound here, one per rank, or none."""
        is_logged = self.log is not None
        return [] if is_logged else [r.endpoint for r in rank_addresses(feed) if r.is_bound]

    def _refuse_commands(self) -> None:
        """Refuse the commands that will not be carried out."""
        with self._lock:
            commands = list(self._commands)
            self._commands.clear()
        for done, _ in commands:
            done.set_exception(self._stopped())

    # The subscriber's thread.

    def _run(self, environment: ZmqEnvironment, follower: Follower) -> None:
        """Work until the end; start again after a failure, after a pause that grows."""
        backoff = Backoff(self._patience.retry_max_s, calm_s=_CALM_S)
        is_first = True
        while not self._is_closing.is_set():
            try:
                if not is_first:
                    environment, follower = self._begin_anew()
                is_first = False
                self._work(environment, follower)
            except BaseException as error:
                _logger.exception("the subscriber's thread failed; it starts again")
                self._mark_all_stale(error)
                self._refuse_commands()
                self._is_closing.wait(backoff.pause_s(time.monotonic()))
        self._refuse_commands()
        self.journal.tell_left_out(is_last=True)

    def _begin_anew(self) -> tuple[ZmqEnvironment, Follower]:
        """Follow the same pods with new sockets."""
        old = self._follower
        assert old is not None
        environment = self._open_environment()
        try:
            follower = self._new_follower(environment)
            follower.take_over(old)
        except BaseException:
            environment.close()
            raise
        with self._lock:
            self._follower, self._failure = follower, None
            if not self._is_closing.is_set():
                self._reactor = environment.reactor
        return environment, follower

    def _mark_all_stale(self, error: BaseException) -> None:
        """Nothing is followed now: say so for every pod. Never raises."""
        self._failure = one_line(
            f"the subscriber's thread failed: {type(error).__name__}: {error}"
        )
        assert self._follower is not None
        for pod, feeds in self._follower.feeds.items():
            for feed in feeds:
                with contextlib.suppress(BaseException):
                    self._sink.set_state(
                        pod, PodState.STALE, dp_rank=feed.rank, reason=self._failure
                    )

    def _work(self, environment: ZmqEnvironment, follower: Follower) -> None:
        try:
            attend_at = 0.0
            while not self._is_closing.is_set():
                environment.reactor.wait(self._tick_s)
                self._run_commands()
                now = time.monotonic()
                environment.reactor.read(now)
                if now >= attend_at:
                    attend_at = now + self._tick_s
                    follower.attend(now)
                    self.journal.tell_left_out()
        finally:
            with self._lock:
                self._reactor = None  # From here on no thread gives commands.
            environment.close()

    def _run_commands(self) -> None:
        """Carry out commands from other threads; exceptions are raised in those threads."""
        while self._commands:
            done, work = self._commands.popleft()
            try:
                work()
            except KvbraidError as error:
                done.set_exception(error)
            except BaseException as error:  # noqa: BLE001  Another thread waits for an answer.
                done.set_exception(ServiceError(f"subscriber: {type(error).__name__}: {error}"))
            else:
                done.set_result(None)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise InvalidValueError(f"{name} is {value}; expected more than 0")
