"""Follows the event feeds of any number of pods and ranks, in one thread of its own.

ZeroMQ's own thread takes messages off the wire without Python, into large queues: an engine never
waits for us, and what does not fit is a gap in the sequence like any other loss. The subscriber's
thread applies batches to the sink in slices, pod by pod. Every method may be called from any
thread; `add` and `remove` wait until the subscriber's thread has done it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from kvbraid.errors import InvalidValueError, KvbraidError, ServiceError
from kvbraid.ids import PodId
from kvbraid.service.bindable import bound_addresses, check_bindable, wait_until_free
from kvbraid.service.feed import FeedConfig, FeedStatus, Sink
from kvbraid.service.follower import Follower, Patience
from kvbraid.service.reactor import Reactor

_LONGEST_TICK_S: Final = 0.25


class Subscriber:
    """Bring what pods publish into a sink, complete and in order, or say that it is not.

    Args:
        sink: Takes the batches and states; called from the subscriber's thread only.
        silence_s: After how long without a message a pod is asked whether it has more.
        replay_timeout_s: After how long without an answer a replay has failed.
        retry_max_s: Longest pause between two attempts to connect.
        hold_limit_bytes: How much each rank may hold back while a replay is under way.

    Raises:
        InvalidValueError: A time or size that is not above 0.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        silence_s: float = 5.0,
        replay_timeout_s: float = 5.0,
        retry_max_s: float = 5.0,
        hold_limit_bytes: int = 32 << 20,
    ) -> None:
        _check_positive(silence_s=silence_s, replay_timeout_s=replay_timeout_s)
        _check_positive(retry_max_s=retry_max_s, hold_limit_bytes=hold_limit_bytes)
        self._patience = Patience(
            silence_s=silence_s,
            replay_timeout_s=replay_timeout_s,
            retry_max_s=retry_max_s,
            hold_limit_bytes=hold_limit_bytes,
        )
        self._sink = sink
        self._tick_s = min(silence_s / 4, replay_timeout_s / 4, _LONGEST_TICK_S)
        self._lock = threading.Lock()  # Guards starting, stopping and giving commands.
        self._commands: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        self._reactor: Reactor | None = None  # None: not running.
        self._follower: Follower | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread, once; pods are added afterwards."""
        with self._lock:
            assert self._thread is None, "a subscriber starts once"
            self._reactor = Reactor()
            self._follower = Follower(self._sink, self._reactor, self._patience)
            self._thread = threading.Thread(
                target=self._run,
                args=(self._reactor, self._follower),
                name="kvbraid-subscriber",
                daemon=True,
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the thread and close every socket; does nothing the second time."""
        with self._lock:
            reactor, self._reactor = self._reactor, None
            if reactor is not None:
                reactor.wake()
        if self._thread is not None:
            self._thread.join()

    def add(self, pod: PodId, feed: FeedConfig) -> None:
        """Follow a pod, all ranks, beginning with a replay from 0.

        Raises:
            InvalidValueError: A malformed endpoint, or the pod is followed already.
            ServiceError: An address cannot be bound, or the subscriber is not running.
        """
        self._command(lambda follower: follower.add(pod, feed))

    def check(self, feed: FeedConfig, replaced: FeedConfig | None = None) -> None:
        """Refuse an address that `add` could not bind once `replaced` is gone; change nothing.

        Raises:
            RefusalError: `invalid_endpoint`.
            InvalidValueError: A malformed endpoint.
        """
        follower = self._follower
        check_bindable(
            bound_addresses(feed),
            held=() if follower is None else follower.bound(),
            leaving=() if replaced is None else bound_addresses(replaced),
        )

    def remove(self, pod: PodId) -> None:
        """Stop following a pod; once this returns the sink hears no more of it.

        An address that only this pod had bound is free by then: ZeroMQ lets go of it later.

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

        Raises:
            ServiceError: The subscriber's thread has died.
        """
        if self._failure is not None:
            raise self._stopped()
        feeds = self._follower.feeds if self._follower is not None else {}
        return [feed.status() for pod in sorted(feeds) for feed in feeds[pod]]

    def strays(self) -> dict[str, int]:
        """Return how many messages concerned no followed pod, by reason."""
        return dict(self._follower.strays()) if self._follower is not None else {}

    def _stopped(self) -> ServiceError:
        why = "is not running" if self._failure is None else f"died of {self._failure!r}"
        return ServiceError(f"subscriber {why}; start a new one")

    def _command(self, work: Callable[[Follower], None]) -> None:
        """Have the subscriber's thread do something, and wait for it."""
        done: Future[None] = Future()
        with self._lock:
            follower = self._follower
            if self._reactor is None or follower is None:
                raise self._stopped()
            self._commands.append((done, lambda: work(follower)))
            self._reactor.wake()
        done.result()

    # The subscriber's thread.

    def _run(self, reactor: Reactor, follower: Follower) -> None:
        try:
            attend_at = 0.0
            while self._reactor is reactor:
                reactor.wait(self._tick_s)
                self._obey()
                now = time.monotonic()
                reactor.read(now)
                if now >= attend_at:
                    attend_at = now + self._tick_s
                    follower.attend(now)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._lock:
                self._reactor = None  # From here on nobody gives commands.
            for done, _ in self._commands:
                done.set_exception(self._stopped())
            follower.close()
            reactor.close()

    def _obey(self) -> None:
        """Carry out commands from other threads; their errors go back there."""
        while self._commands:
            done, work = self._commands.popleft()
            try:
                work()
            except KvbraidError as error:
                done.set_exception(error)
            else:
                done.set_result(None)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise InvalidValueError(f"{name} is {value}; expected more than 0")
