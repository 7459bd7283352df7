"""What the subscriber's thread owns: feeds by pod, their links and replays, and time limits.

A failure in one feed does not affect the others. This is not thread-safe: `subscriber.py` runs it
in one thread and passes on what other threads ask for.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, TypeAlias

from kvbraid.errors import InvalidValueError, ServiceError, UnknownError
from kvbraid.events.digest import RANDOM, Digests
from kvbraid.events.sequence import SequenceTracker, Settled
from kvbraid.ids import PodId
from kvbraid.reading import POSITIVE, check
from kvbraid.service.capacity import check_capacity
from kvbraid.service.feeds.backoff import Backoff
from kvbraid.service.feeds.bound_link import BoundLink
from kvbraid.service.feeds.connected_link import ConnectedLink
from kvbraid.service.feeds.endpoints import check_connects, rank_endpoint, subscriber_binds
from kvbraid.service.feeds.link import Link
from kvbraid.service.feeds.log_link import LogLink
from kvbraid.service.feeds.rank_feed import FeedConfig, NewFeed, RankFeed, Sink
from kvbraid.service.feeds.replay import Replay
from kvbraid.service.feeds.zmq_environment import ZmqEnvironment
from kvbraid.service.shared.inbox import LogSource

_AnyLink: TypeAlias = Link | LogLink
_CHANCE: Final = Random()  # noqa: S311  No secret. Programs may have seeded the global one.
_CALM_S: Final = 60.0  # A feed that has not failed for this long starts again at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds, and how many bytes may wait in the meantime.

    A replay is asked for after a random part of `replay_spread_s`. `hold_limit_bytes` is per rank,
    `queue_limit_bytes` per connection.
    """

    silence_s: float
    replay_timeout_s: float
    replay_spread_s: float
    retry_max_s: float
    hold_limit_bytes: int
    queue_limit_bytes: int


class Addresses(NamedTuple):
    """Where one rank is followed."""

    endpoint: str
    replay_endpoint: str | None
    is_bound: bool


def rank_addresses(config: FeedConfig) -> list[Addresses]:
    """Return the addresses of every rank.

    Raises:
        InvalidValueError: An address is malformed, or cannot be connected to.
    """
    is_bound = subscriber_binds(config.endpoint) if config.bind is None else config.bind
    found = []
    for rank in range(config.dp_size):
        endpoint, replay = rank_endpoint(config.endpoint, rank), config.replay_endpoint
        if not is_bound:
            check_connects(endpoint)
        if replay is not None:
            replay = rank_endpoint(replay, rank)
            check_connects(replay)
        found.append(Addresses(endpoint, replay, is_bound))
    return found


class Follower:
    """Every pod that is followed.

    Attributes:
        feeds: By pod, one per rank. Replaced, never changed in place: other threads may read it.
        links: As `feeds`.
        configs: As `feeds`; the arguments of `add`.
    """

    def __init__(
        self,
        sink: Sink,
        environment: ZmqEnvironment,
        patience: Patience,
        digests: Digests = RANDOM,
        *,
        log: LogSource | None = None,
        new_feed: NewFeed = RankFeed,
    ) -> None:
        self.feeds: dict[PodId, tuple[RankFeed, ...]] = {}
        self.links: tuple[_AnyLink, ...] = ()
        self.configs: dict[PodId, FeedConfig] = {}
        self._sink = sink
        self._environment = environment
        self._patience = patience
        self._digests = digests
        self._log = log
        self._new_feed = new_feed
        self._link_of: dict[RankFeed, _AnyLink] = {}
        self._backoffs: dict[RankFeed, Backoff] = {}
        self._bound: dict[str, BoundLink] = {}  # By the address as written.
        self._replays: dict[RankFeed, Replay] = {}
        self._bound_before: dict[str, str] = {}  # Real addresses by those written.
        self._trackers: dict[tuple[PodId, int], SequenceTracker] = {}  # Those taken over.
        self._is_taking_over = False

    @property
    def num_ranks(self) -> int:
        """How many ranks are followed; from any thread."""
        return sum(map(len, self.feeds.values()))

    def take_over(self, old: "Follower") -> None:
        """Follow the pods of another follower; links that cannot be opened are tried again."""
        self._bound_before = {written: link.endpoint for written, link in old._bound.items()}
        self._trackers = {(f.pod, f.rank): f.tracker for fs in old.feeds.values() for f in fs}
        self._is_taking_over = True
        for pod, config in old.configs.items():
            self.add(pod, config)
        self._is_taking_over = False

    def add(self, pod: PodId, config: FeedConfig, progress: Sequence[Settled] = ()) -> None:
        """Follow all ranks of a pod, or none of them if there is an error.

        With a `progress` for each rank they go on from there; else with a replay from 0.

        Raises:
            InvalidValueError: A malformed endpoint, or the pod is followed already.
            RefusalError: `too_many_pods`: the process may not open enough files.
            ServiceError: An address cannot be bound.
        """
        if pod in self.feeds:
            raise InvalidValueError(f"pod {pod!r} is followed already; remove it first")
        check("dp_size", config.dp_size, POSITIVE)
        if not self._is_taking_over:
            check_capacity(self.num_ranks + config.dp_size)
        self.feeds = {**self.feeds, pod: ()}
        self.configs = {**self.configs, pod: config}
        try:
            for rank, addresses in enumerate(rank_addresses(config)):
                self._add_rank(pod, rank, config, addresses, progress)
        except BaseException:
            self.remove(pod)
            raise

    def remove(self, pod: PodId) -> None:
        """Stop following a pod.

        Raises:
            UnknownError: The pod is not followed.
        """
        if pod not in self.feeds:
            raise UnknownError(f"pod {pod!r} is not followed; followed: {sorted(self.feeds)}")
        for feed in self.feeds[pod]:
            self.stop_replay(feed)
            link = self._link_of.pop(feed, None)
            if link is not None and not link.discard(feed):
                self._close(link)
            self._environment.reactor.forget(feed)
            self._backoffs.pop(feed, None)
        self.feeds = {name: ranks for name, ranks in self.feeds.items() if name != pod}
        self.configs = {name: config for name, config in self.configs.items() if name != pod}

    def progress(self, pod: PodId) -> list[Settled] | None:
        """Return how far each rank of a pod is settled in the sink; None while one is in doubt."""
        found = [feed.progress() for feed in self.feeds.get(pod, ())]
        return [known for known in found if known] if found and all(found) else None

    def attend(self, now: float) -> None:
        """Do what time calls for: give up late replays, reopen links, ask silent pods."""
        late_since = now - self._patience.replay_timeout_s
        for replay in list(self._replays.values()):
            try:
                if replay.heard_at <= late_since:
                    replay.fail()
                else:
                    replay.attend(now)
            except BaseException as error:  # noqa: BLE001  It is told where it belongs.
                replay.on_error(error)
        for link in self.links:
            try:
                link.attend(now)
                self._ask_the_silent(link, now)
            except BaseException as error:  # noqa: BLE001  Likewise.
                link.on_error(error)

    def bound(self) -> tuple[str, ...]:
        """Return the addresses that are bound, as written; from any thread."""
        return tuple(self._bound)

    def strays(self) -> Counter[str]:
        """Count messages that concern no followed pod, by reason."""
        return sum((link.strays for link in self.links), Counter())

    def start_replay(self, feed: RankFeed, start: int) -> bool:
        """Start a replay, replacing one under way; False: there is nobody to ask."""
        self.stop_replay(feed)
        link = self._link_of.get(feed)
        if isinstance(link, LogLink) and link.asks(start):
            return True
        if feed.replay_endpoint is None:
            return False
        now = time.monotonic()
        asks_at = now + _CHANCE.random() * self._patience.replay_spread_s
        self._replays[feed] = replay = Replay(self._environment, feed, start, asks_at)
        replay.attend(now)
        return True

    def stop_replay(self, feed: RankFeed) -> None:
        """Drop the replay under way, if any."""
        replay, link = self._replays.pop(feed, None), self._link_of.get(feed)
        if replay is not None:
            replay.close()
        if isinstance(link, LogLink):
            link.stop_replay()

    def wake(self, feed: RankFeed) -> None:
        """Give a feed turns until it has nothing left to do."""
        self._environment.reactor.wake(feed)

    def hand_in(self, feed: RankFeed) -> None:
        """Give a feed a turn; from any thread."""
        self._environment.reactor.hand_in(feed)

    def start_again(self, feed: RankFeed) -> None:
        """Reconnect a feed that has failed, after a pause that grows."""
        now = time.monotonic()
        self._link_of[feed].start_again(feed, now, self._backoffs[feed].pause_s(now))

    def _ask_the_silent(self, link: _AnyLink, now: float) -> None:
        for feed in link.feeds():
            if now - feed.heard_at >= self._patience.silence_s:
                feed.heard_at = now
                feed.fall_silent()

    def _add_rank(
        self,
        pod: PodId,
        rank: int,
        config: FeedConfig,
        addresses: Addresses,
        progress: Sequence[Settled],
    ) -> None:
        tracker = self._trackers.pop((pod, rank), None)
        if tracker is None:
            tracker = SequenceTracker(
                hold_limit_bytes=self._patience.hold_limit_bytes, digests=self._digests
            )
            if progress:
                tracker.go_on(progress[rank])
        feed = self._new_feed(self._sink, pod, rank, tracker=tracker, owner=self)
        feed.model = config.model
        feed.heard_at = time.monotonic()
        feed.endpoint, feed.replay_endpoint = addresses.endpoint, addresses.replay_endpoint
        if self._is_taking_over:
            feed.forget()
        else:
            feed.announce()
        self._backoffs[feed] = Backoff(self._patience.retry_max_s, calm_s=_CALM_S)
        self.feeds = {**self.feeds, pod: (*self.feeds[pod], feed)}
        if self._log is not None:
            self._open(LogLink(self._environment, feed, self._log), feed)
        elif addresses.is_bound:
            self._share(feed)
        else:
            self._open(ConnectedLink(self._environment, feed), feed)

    def _share(self, feed: RankFeed) -> None:
        """Put a feed on the link that is bound to its address, bound now if it was not."""
        written = feed.endpoint
        link = self._bound.get(written)
        if link is None:
            link = BoundLink(self._environment, self._bound_before.get(written, written))
            self._open(link, feed)
            self._bound[written] = link
        self._link_of[feed] = link
        feed.endpoint = link.endpoint
        link.add(feed)

    def _open(self, link: _AnyLink, feed: RankFeed) -> None:
        try:
            link.open(time.monotonic())
        except ServiceError as error:
            if not self._is_taking_over:
                raise
            link.on_error(error)
        self.links = (*self.links, link)
        self._link_of[feed] = link

    def _close(self, link: _AnyLink) -> None:
        link.close()
        self.links = tuple(other for other in self.links if other is not link)
        self._bound = {key: bound for key, bound in self._bound.items() if bound is not link}
